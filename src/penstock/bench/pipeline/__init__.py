"""The bench of the Spark pipeline; the peers are Spark's own file sources."""
