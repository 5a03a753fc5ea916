"""All attackers at once during normal traffic, against a control run in which they only burn CPU."""
