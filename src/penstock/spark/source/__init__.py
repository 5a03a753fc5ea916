"""The format `penstock` for reading: journals as batch and streaming DataFrames.

Reads a data directory or a server's HTTP door. It knows no lake table and no pipeline.
"""
