"""The sample traffic of `penstock up --demo`: agents, sensors and a story, each a short program that uses only the public API.

The programs are in `examples/` too. `python -m penstock.demo.process` runs them together; it reads its task from standard input.
"""
