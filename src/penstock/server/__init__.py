"""The server: runtime, config, security and the commands that run it."""
