"""Streams are created, unloaded and removed; their numbers never decrease."""

from __future__ import annotations

import pytest

from penstock.core.errors import Refusal
from penstock.core.limits import Limits
from penstock.core.queue.policy import Policy
from penstock.core.records import Record
from tests.core.driving import QueueDriver, record_of

QUICK = Limits(idle_unload_ms=1_000)


def emptied(bench: QueueDriver, stream: str, *ids: str) -> None:
    """Put records through a stream and leave it empty and alone."""
    consumer = bench.subscribe(stream, len(ids))
    bench.put(stream, *ids)
    bench.ack(consumer, *ids)
    bench.unsubscribe(consumer)


class TestUnloading:
    @pytest.mark.promise("Streams", "idle streams are unloaded and keep `seq` and ids")
    def test_an_idle_stream_sleeps_and_keeps_its_numbers_counts_and_ids(self) -> None:
        bench = QueueDriver(limits=QUICK)
        emptied(bench, "a", "1", "2")
        bench.advance(999)
        assert "a" in bench.machine.channels
        bench.advance(1)
        assert "a" not in bench.machine.channels
        assert bench.machine.known("a")
        assert bench.put("a", "2", "3") == [2, 3]
        counters = bench.channel("a").counters
        assert (counters.in_, counters.ack, counters.dup) == (3, 2, 1)

    def test_the_window_of_ids_goes_on_ageing_in_sleep(self) -> None:
        bench = QueueDriver(Policy(dedup_us=5_000_000), limits=QUICK)
        emptied(bench, "a", "1")
        bench.advance(5_000)
        assert bench.put("a", "1") == [2]

    @pytest.mark.parametrize("by", ["a record", "a consumer"])
    def test_a_stream_in_use_stays(self, by: str) -> None:
        bench = QueueDriver(limits=QUICK)
        if by == "a record":
            bench.put("a", "1")
        else:
            bench.subscribe("a")
        bench.advance(10_000)
        assert "a" in bench.machine.channels

    def test_use_starts_the_wait_again(self) -> None:
        bench = QueueDriver(limits=QUICK)
        emptied(bench, "a", "1")
        bench.advance(900)
        emptied(bench, "a", "2")
        bench.advance(900)
        assert "a" in bench.machine.channels
        bench.advance(100)
        assert "a" not in bench.machine.channels

    @pytest.mark.parametrize("touch", ["subscribe", "pull", "refused", "conflict", "withdrawn", "purge", "redrive"])
    def test_no_way_of_touching_a_stream_keeps_it_for_ever(self, touch: str) -> None:
        bench = QueueDriver(Policy(max_depth=1), limits=QUICK)
        name = "dlq/a" if touch == "redrive" else "a"
        if touch in ("refused", "conflict", "purge", "redrive"):
            emptied(bench, name, "1")
            bench.advance(5_000)
            assert name not in bench.machine.channels
        match touch:
            case "subscribe":
                bench.unsubscribe(bench.subscribe("a", 1))
            case "pull":
                bench.pull("a")
            case "refused":
                bench.refusal("a", record_of("2"), record_of("3"))
            case "conflict":
                bench.refusal("a", record_of("1", "other"))
            case "withdrawn":
                bench.offer("a", record_of("1"))
                bench.refuse()
            case "purge":
                channel = bench.machine.find("a")
                assert not isinstance(channel, Refusal)
                bench.machine.purge(bench.now, channel)
            case _:
                bench.machine.redrive(bench.now, "a", 1)
        assert name in bench.machine.channels
        bench.advance(2_000)
        assert name not in bench.machine.channels

    @pytest.mark.parametrize("second", [record_of("2"), record_of("1", "other")], ids=["full", "conflict"])
    def test_a_refused_enqueue_makes_no_stream(self, second: Record) -> None:
        bench = QueueDriver(Policy(max_depth=1))
        bench.refusal("a", record_of("1"), second)
        assert not bench.machine.known("a")
        assert bench.put("a", "1") == [1]

    def test_the_ids_of_a_sleeping_stream_are_let_go_when_too_old(self) -> None:
        bench = QueueDriver(Policy(dedup_us=5_000_000), limits=QUICK)
        emptied(bench, "a", "1", "2")
        bench.advance(1_000)
        assert bench.machine.ids == 2
        bench.advance(5_000)
        assert bench.machine.ids == 0
        assert bench.machine.known("a")


class TestForgetting:
    def test_new_streams_start_above_forgotten_numbers(self) -> None:
        bench = QueueDriver(limits=Limits(idle_unload_ms=1_000, dormant_max=1))
        emptied(bench, "a", "1", "2", "3")
        bench.advance(1_000)
        emptied(bench, "b", "1")
        bench.advance(1_000)
        machine = bench.machine
        assert (machine.known("a"), machine.known("b")) == (False, True)
        assert (machine.seq_floor, machine.totals.dormant_forgotten) == (3, 1)
        assert bench.put("a", "1") == [4], "a number is never used twice"
        assert bench.put("b", "2") == [2]

    def test_the_least_recently_unloaded_is_forgotten_first(self) -> None:
        bench = QueueDriver(limits=Limits(idle_unload_ms=1_000, dormant_max=2))
        for name in ("a", "b", "c"):
            emptied(bench, name, "1")
            bench.advance(1_000)
        assert list(bench.machine.dormant) == ["b", "c"]
        bench.check()


def test_effects_are_taken_once() -> None:
    bench = QueueDriver()
    bench.subscribe("a", 1)
    bench.machine.enqueue(bench.now, "a", [record_of("1")])
    bench.machine.commit_log.take_batch()
    bench.machine.committed(bench.now, 0)
    assert len(bench.machine.take_effects()) == 1
    assert bench.machine.take_effects() == []


@pytest.mark.promise("Streams", "enqueue and subscribe create a stream, a read never does")
def test_reading_never_makes_a_stream() -> None:
    bench = QueueDriver()
    found = bench.machine.find("a")
    assert isinstance(found, Refusal)
    assert (found.code, found.ref) == ("UnknownStream", "a")
    assert not bench.machine.known("a")


def test_the_bound_on_streams_counts_those_that_wake_up() -> None:
    bench = QueueDriver(limits=Limits(streams_max=2, idle_unload_ms=1_000))
    for name in ("a", "b", "c"):
        bench.put(name, "1")
        bench.ack(bench.subscribe(name, 1), "1")
        bench.machine.disconnect(bench.now, bench.link)
        bench.link = bench.connect()
        bench.advance(1_000)
    assert list(bench.machine.dormant) == ["a", "b", "c"]
    bench.put("a", "2")
    bench.put("b", "2")
    found = bench.machine.find("c")
    assert isinstance(found, Refusal)
    assert found.code == "QuotaExceeded"
    assert bench.refusal("c", record_of("2")).code == "QuotaExceeded"
    assert len(bench.machine.channels) == 2


def test_a_stream_that_was_only_tried_leaves_nothing_behind() -> None:
    bench = QueueDriver(limits=Limits(idle_unload_ms=1_000))
    bench.pull("a")
    assert bench.machine.known("a")
    bench.advance(1_000)
    assert not bench.machine.known("a")
