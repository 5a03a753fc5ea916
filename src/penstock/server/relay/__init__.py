"""The relay of token streams: the process that relays, its supervisor, and WebSockets that follow a topic. It never sees plain text."""
