"""Streams are created, unloaded and removed; their numbers never decrease."""

from __future__ import annotations

import pytest

from penstock.core.errors import Refusal
from penstock.core.limits import Limits
from penstock.core.queue.policy import Policy
from penstock.core.records import Record
from tests.core.driving import QueueDriver, purge_all, record_of, redrive

QUICK = Limits(idle_unload_ms=1_000)


def emptied(driver: QueueDriver, stream: str, *ids: str) -> None:
    """Put records through a stream and leave it empty and alone."""
    consumer = driver.subscribe(stream, len(ids))
    driver.put(stream, *ids)
    driver.ack(consumer, *ids)
    driver.unsubscribe(consumer)


class TestUnloading:
    @pytest.mark.promise("Streams", "idle streams are unloaded and keep `seq` and ids")
    def test_an_idle_stream_sleeps_and_keeps_its_numbers_counts_and_ids(self) -> None:
        driver = QueueDriver(limits=QUICK)
        emptied(driver, "a", "1", "2")
        driver.advance(999)
        assert "a" in driver.machine.channels
        driver.advance(1)
        assert "a" not in driver.machine.channels
        assert driver.machine.known("a")
        assert driver.put("a", "2", "3") == [2, 3]
        counters = driver.channel("a").counters
        assert (counters.in_, counters.ack, counters.dup) == (3, 2, 1)

    def test_the_window_of_ids_goes_on_ageing_in_sleep(self) -> None:
        driver = QueueDriver(Policy(dedup_us=5_000_000), limits=QUICK)
        emptied(driver, "a", "1")
        driver.advance(5_000)
        assert driver.put("a", "1") == [2]

    @pytest.mark.parametrize("by", ["a record", "a consumer"])
    def test_a_stream_in_use_stays(self, by: str) -> None:
        driver = QueueDriver(limits=QUICK)
        if by == "a record":
            driver.put("a", "1")
        else:
            driver.subscribe("a")
        driver.advance(10_000)
        assert "a" in driver.machine.channels

    def test_use_starts_the_wait_again(self) -> None:
        driver = QueueDriver(limits=QUICK)
        emptied(driver, "a", "1")
        driver.advance(900)
        emptied(driver, "a", "2")
        driver.advance(900)
        assert "a" in driver.machine.channels
        driver.advance(100)
        assert "a" not in driver.machine.channels

    @pytest.mark.parametrize("touch", ["subscribe", "pull", "refused", "conflict", "withdrawn", "purge", "redrive"])
    def test_no_way_of_touching_a_stream_keeps_it_for_ever(self, touch: str) -> None:
        driver = QueueDriver(Policy(max_depth=1), limits=QUICK)
        name = "dlq/a" if touch == "redrive" else "a"
        if touch in ("refused", "conflict", "purge", "redrive"):
            emptied(driver, name, "1")
            driver.advance(5_000)
            assert name not in driver.machine.channels
        match touch:
            case "subscribe":
                driver.unsubscribe(driver.subscribe("a", 1))
            case "pull":
                driver.pull("a")
            case "refused":
                driver.refusal("a", record_of("2"), record_of("3"))
            case "conflict":
                driver.refusal("a", record_of("1", "other"))
            case "withdrawn":
                driver.offer("a", record_of("1"))
                driver.refuse()
            case "purge":
                channel = driver.machine.find("a")
                assert not isinstance(channel, Refusal)
                purge_all(driver.machine, driver.now, channel)
            case _:
                redrive(driver.machine, driver.now, "a", 1)
        assert name in driver.machine.channels
        driver.advance(2_000)
        assert name not in driver.machine.channels

    @pytest.mark.parametrize("second", [record_of("2"), record_of("1", "other")], ids=["full", "conflict"])
    def test_a_refused_enqueue_makes_no_stream(self, second: Record) -> None:
        driver = QueueDriver(Policy(max_depth=1))
        driver.refusal("a", record_of("1"), second)
        assert not driver.machine.known("a")
        assert driver.put("a", "1") == [1]

    def test_the_ids_of_a_sleeping_stream_are_let_go_when_too_old(self) -> None:
        driver = QueueDriver(Policy(dedup_us=5_000_000), limits=QUICK)
        emptied(driver, "a", "1", "2")
        driver.advance(1_000)
        assert driver.machine.ids == 2
        driver.advance(5_000)
        assert driver.machine.ids == 0
        assert driver.machine.known("a")


class TestForgetting:
    def test_new_streams_start_above_forgotten_numbers(self) -> None:
        driver = QueueDriver(limits=Limits(idle_unload_ms=1_000, dormant_max=1))
        emptied(driver, "a", "1", "2", "3")
        driver.advance(1_000)
        emptied(driver, "b", "1")
        driver.advance(1_000)
        machine = driver.machine
        assert (machine.known("a"), machine.known("b")) == (False, True)
        assert (machine.seq_floor, machine.totals.dormant_forgotten) == (3, 1)
        assert driver.put("a", "1") == [4], "a number is never used twice"
        assert driver.put("b", "2") == [2]

    def test_the_least_recently_unloaded_is_forgotten_first(self) -> None:
        driver = QueueDriver(limits=Limits(idle_unload_ms=1_000, dormant_max=2))
        for name in ("a", "b", "c"):
            emptied(driver, name, "1")
            driver.advance(1_000)
        assert list(driver.machine.dormant) == ["b", "c"]
        driver.check()


def test_effects_are_taken_once() -> None:
    driver = QueueDriver()
    driver.subscribe("a", 1)
    driver.machine.enqueue(driver.now, "a", [record_of("1")])
    driver.machine.commit_log.take_batch()
    driver.machine.committed(driver.now, 0)
    assert len(driver.machine.take_effects()) == 1
    assert driver.machine.take_effects() == []


@pytest.mark.promise("Streams", "enqueue and subscribe create a stream, a read never does")
def test_reading_never_makes_a_stream() -> None:
    driver = QueueDriver()
    found = driver.machine.find("a")
    assert isinstance(found, Refusal)
    assert (found.code, found.ref) == ("UnknownStream", "a")
    assert not driver.machine.known("a")


def test_the_bound_on_streams_counts_those_that_wake_up() -> None:
    driver = QueueDriver(limits=Limits(streams_max=2, idle_unload_ms=1_000))
    for name in ("a", "b", "c"):
        driver.put(name, "1")
        driver.ack(driver.subscribe(name, 1), "1")
        driver.machine.disconnect(driver.now, driver.link)
        driver.link = driver.connect()
        driver.advance(1_000)
    assert list(driver.machine.dormant) == ["a", "b", "c"]
    driver.put("a", "2")
    driver.put("b", "2")
    found = driver.machine.find("c")
    assert isinstance(found, Refusal)
    assert found.code == "QuotaExceeded"
    assert driver.refusal("c", record_of("2")).code == "QuotaExceeded"
    assert len(driver.machine.channels) == 2


def test_a_stream_that_was_only_tried_leaves_nothing_behind() -> None:
    driver = QueueDriver(limits=Limits(idle_unload_ms=1_000))
    driver.pull("a")
    assert driver.machine.known("a")
    driver.advance(1_000)
    assert not driver.machine.known("a")
