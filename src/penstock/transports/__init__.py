"""Transports: frames in and out, and how fast; nothing of what they mean."""
