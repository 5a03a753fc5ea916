"""Envelopes, deliveries and frames as bytes. Knows no operation and no session."""
