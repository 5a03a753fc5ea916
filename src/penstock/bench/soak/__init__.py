"""All attackers at once beside normal traffic, against a control run in which they only burn CPU."""
