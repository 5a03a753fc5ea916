"""The runtime around the pure machines: turns, timers, connections, ticks. It knows no sockets, config or HTTP."""
