"""StreamService: the wire, the signatures, the keys and the MAC chains of token streams."""
