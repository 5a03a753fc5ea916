"""Courier: envelopes, Control v1 lines, the subscribe socket and the HTTP bodies."""
