"""The connections of Courier as pure sessions: messages in, messages out. Knows no transport."""
