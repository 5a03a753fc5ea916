"""Kernel pipes: connects pipe transports to the Control v1 door of a server. Knows nothing of the queue."""
