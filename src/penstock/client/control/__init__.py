"""One Control v1 connection of a client: transports of lines, frames, pending requests, reconnection. It knows no queue semantics."""
