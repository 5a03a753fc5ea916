"""MEW v0.4: spaces, their participants, the envelopes they exchange and the streams they open. Knows no socket, clock or other dialect."""
