"""Files on disk: YAML, secrets, addresses and the thread that writes log lines. Knows nothing of the server above it."""
