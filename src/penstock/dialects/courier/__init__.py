"""Courier, the queue protocol: HTTP operations, Control v1, sockets and triggers. Knows the queue machine, never a transport."""
