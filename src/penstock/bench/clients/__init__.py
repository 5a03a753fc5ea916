"""`penstock bench clients`: the Python client as users have it, and those of peers."""
