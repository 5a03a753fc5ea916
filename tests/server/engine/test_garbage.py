"""The cycle collector of the server is tuned, and left as it was."""

from __future__ import annotations

import gc

from penstock.server.engine.garbage import THRESHOLDS, GarbageCollector


def test_what_is_there_is_frozen_and_stop_leaves_the_collector_as_it_was() -> None:
    before = gc.get_threshold()
    collector = GarbageCollector()
    collector.start()
    assert gc.get_threshold() == THRESHOLDS and gc.get_freeze_count()
    collector.stop()
    collector.stop()
    assert gc.get_threshold() == before and not gc.get_freeze_count()
