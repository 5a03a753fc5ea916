"""The spaces of a server: their host in the runtime, connections, files and HTTP endpoint. Rules of MEW are in `dialects/mew`."""
