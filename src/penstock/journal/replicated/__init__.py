"""The journal of a shard of a cluster: a replicated log, a copy of it on the local disk, and live files that every node finds."""
