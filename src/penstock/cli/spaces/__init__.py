"""Commands on MEW spaces. They go through the client only."""
