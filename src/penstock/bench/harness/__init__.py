"""Processes, loads and results that every bench shares; it knows no protocol beyond `penstock up`."""
