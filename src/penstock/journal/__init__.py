"""The journal: where facts become durable before anybody sees them."""
