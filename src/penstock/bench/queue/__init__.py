"""Benches of the queue: Control v1, HTTP, very many streams, and followers of views; the peer is Redis."""
