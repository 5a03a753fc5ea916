"""The bench of stream frames in a space; the peer is a small Node relay."""
