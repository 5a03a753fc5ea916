"""Commands on the journal: inspect, follow, replay, export and import rows. It knows nothing of the tables."""
