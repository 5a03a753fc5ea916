"""Contracts between the server and its child processes. Imports neither side."""
