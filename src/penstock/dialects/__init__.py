"""The protocols: bytes in, calls of core machines, bytes out. Pure: no sockets, clocks or files, and no dialect knows another."""
