"""Rules that act on records: triggers, and the rate limits of senders and streams. They know no protocol."""
