"""The sample traffic of `penstock up --demo`: agents, sensors and a story, each a page that uses nothing but what everybody may use.

The pages are in `examples/` too. `python -m penstock.demo.process` runs them together, told what to do on its standard input.
"""
