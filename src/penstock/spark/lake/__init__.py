"""The lake: Delta tables in a directory, read and written exactly once without a JVM.

Knows the journal only through its Delta log. It knows no batch, step or query of the pipeline.
"""
