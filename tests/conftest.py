"""Settings shared by every test: property tests give the same verdict on every run."""

from hypothesis import settings

settings.register_profile("ci", derandomize=True, deadline=None)
settings.load_profile("ci")
