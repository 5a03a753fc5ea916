"""The cycle collector of the server is tuned, and left as it was."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from penstock.server.engine.garbage import MIDDLE_MAX, OLD_AFTER, THRESHOLDS, YOUNG_MAX, GarbageCollector


class Kept:
    """An object that the collector visits."""

    def __init__(self) -> None:
        self.itself = self


def test_what_is_there_is_frozen_and_stop_leaves_the_collector_as_it_was() -> None:
    before = gc.get_threshold()
    collector = GarbageCollector()
    collector.start()
    assert gc.get_threshold() == THRESHOLDS and gc.get_freeze_count()
    collector.stop()
    collector.stop()
    assert gc.get_threshold() == before and not gc.get_freeze_count()


def test_a_state_that_grows_is_never_visited_as_a_whole() -> None:
    visits, kept = list[tuple[int, int]](), list[Kept]()

    def visited(phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            generation = info["generation"]
            visits.append((generation, sum(len(gc.get_objects(each)) for each in range(generation + 1))))

    collector = GarbageCollector()
    collector.start()
    gc.callbacks.append(visited)
    try:
        kept.extend(Kept() for _ in range(20 * YOUNG_MAX))
    finally:
        gc.callbacks.remove(visited)
        collector.stop()
    assert len(kept) == 20 * YOUNG_MAX and {generation for generation, _ in visits} == {0, 1}
    assert max(count for _, count in visits) <= (MIDDLE_MAX + 2) * (YOUNG_MAX + 1_000)


def test_everything_is_visited_in_the_end() -> None:
    assert 5_000_000 <= YOUNG_MAX * (MIDDLE_MAX + 1) * OLD_AFTER <= 20_000_000


@pytest.mark.parametrize("generation", [0, 1])
def test_cycles_that_end_young_are_freed_without_a_visit_of_all(generation: int) -> None:
    collector = GarbageCollector()
    collector.start()
    try:
        for _ in range(100):
            Kept()
        assert gc.collect(generation) >= 100
    finally:
        collector.stop()
