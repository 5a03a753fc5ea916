"""A node of a cluster on NATS JetStream: its shards, its front, and pipes to the other nodes."""
