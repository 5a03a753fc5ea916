"""The process log, the event log and the log files of a gateway. Log lines never hold a token."""
