"""Transports: move bytes between sockets and connections, with back-pressure. They know no protocol."""
