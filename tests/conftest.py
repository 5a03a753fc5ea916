"""Settings shared by every test: property tests give the same verdict on every run, and Ctrl-C reaches child processes."""

import signal

from hypothesis import settings

# A shell that starts the tests in the background has them ignore it, and their children with them.
signal.signal(signal.SIGINT, signal.default_int_handler)
settings.register_profile("ci", derandomize=True, deadline=None)
settings.load_profile("ci")
