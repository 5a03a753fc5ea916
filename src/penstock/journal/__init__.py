"""The journal: makes facts durable before they take effect, and reads them back. Knows no protocol and no server."""
