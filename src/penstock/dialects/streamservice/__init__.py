"""StreamService: the wire format, signatures, keys and MAC chains of token streams. Knows no socket, clock or other dialect."""
