"""What an operator does to a cluster: servers to try it with, settings, checks, repair."""
