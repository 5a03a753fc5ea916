"""The bench of the journal on disk, without a server; the peer is SQLite."""
