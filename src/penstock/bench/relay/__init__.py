"""The bench of token streams; the peer is libzmq's proxy."""
