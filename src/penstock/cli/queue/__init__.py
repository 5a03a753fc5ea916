"""Commands on streams: send, take, settle and inspect envelopes, triggers and schemas. They go through the client only."""
