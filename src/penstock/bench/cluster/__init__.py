"""A cluster in trouble under load: how long its shards pause, and whether it keeps what it confirmed."""
