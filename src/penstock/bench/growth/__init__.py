"""How cost, latency and pauses grow with what a server holds: streams, envelopes, connections, triggers, participants."""
