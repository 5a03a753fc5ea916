"""The cycle collector of the server: what survives is frozen, and all is collected after many connections have ended."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from penstock.server.engine import garbage
from penstock.server.engine.garbage import ENDED_MIN, THRESHOLDS, GarbageCollector


class Cycle:
    """An object that only the collector frees."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def collector() -> Iterator[GarbageCollector]:
    collector = GarbageCollector(lambda: ENDED_MIN)
    collector.start()
    yield collector
    collector.stop()


def test_what_survives_two_collections_is_visited_no_more_until_all_is(collector: GarbageCollector) -> None:
    cycle = Cycle()
    known = weakref.ref(cycle)
    gc.collect(1)
    del cycle
    gc.collect(1)
    assert known() is not None, "it is frozen"
    collector.collect()
    assert known() is None


def test_enough_ended_connections_collect_everything_once(
    collector: GarbageCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage, "LOOK_S", 0.0)

    async def look_often() -> None:
        looking = asyncio.ensure_future(collector.run())
        for _ in range(20):
            await asyncio.sleep(0)
        looking.cancel()

    asyncio.run(look_often())
    assert collector.full == 1


def test_stop_leaves_the_collector_as_it_was() -> None:
    before, callbacks = gc.get_threshold(), list(gc.callbacks)
    collector = GarbageCollector(int)
    collector.start()
    assert gc.get_threshold() == THRESHOLDS
    collector.stop()
    collector.stop()
    assert gc.get_threshold() == before and gc.callbacks == callbacks
