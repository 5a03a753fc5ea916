"""Waits for the writing thread of a log."""

import time
from typing import Any

from penstock.server.files.line_writer import LineWriter

POLL_S = 0.0005


def drain(log: LineWriter[Any]) -> None:
    """Return when the thread has written, or lost, what was put."""
    end = time.monotonic() + 10
    while log.written + log._unwritten < log._put_items:
        assert time.monotonic() < end, "the thread does not write"
        time.sleep(POLL_S)
