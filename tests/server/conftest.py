"""Fixtures of this folder."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture
def signals() -> Iterator[None]:
    """Restores what this process does on signals: an event loop leaves the default behind, and `nohup` had them ignored."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
