"""The real server and a relay that injects faults, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client.token_relay import TinyRelay
from tests.server_process import server, start_server, stream

__all__ = ["server", "start_server", "stream"]


@pytest.fixture
def make_relay(tmp_path: Path) -> Iterator[Callable[..., TinyRelay]]:
    made: list[TinyRelay] = []

    def make(**options: Any) -> TinyRelay:
        made.append(TinyRelay(tmp_path, **options))
        return made[-1]

    yield make
    for relay in made:
        if relay._thread.is_alive():
            relay.stop()


@pytest.fixture
def relay(make_relay: Callable[..., TinyRelay]) -> TinyRelay:
    return make_relay()
