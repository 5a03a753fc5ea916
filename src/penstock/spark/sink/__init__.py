"""The format `penstock` for writing: rows of a DataFrame become envelopes in queues or frames in spaces.

Knows the server's HTTP door through `penstock.client`. It knows no journal and no lake table.
"""
