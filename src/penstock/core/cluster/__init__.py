"""A shard's log and who may write it, as pure machines: messages, the reader's rule, the writer, leases and assignment."""
