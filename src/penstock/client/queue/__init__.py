"""The client of queues: sending, subscriptions, pulled leases, questions, live views. It knows nothing of spaces or token streams."""
