"""MEW v0.4: spaces, their participants, the envelopes they exchange and the streams they open. Pure."""
