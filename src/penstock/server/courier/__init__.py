"""Courier on the server: skills, staged batches, payload schemas, the frame recorder. Knows no HTTP route."""
