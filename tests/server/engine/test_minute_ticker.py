"""Ticks and gauges that a runtime with history writes in addition to facts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from penstock.core.clock import Now
from penstock.core.limits import Limits
from penstock.core.links import Consumer, Link
from penstock.core.queue.policy import Policy
from penstock.core.records import Fact, Record
from penstock.core.rows import row_of
from penstock.core.scopes import OPERATOR
from penstock.journal.port import Committed, Outcome
from penstock.server.engine.machines import make_machine
from penstock.server.engine.minute_ticker import GAUGES_A_TURN, TICK_US
from penstock.server.engine.runtime import Runtime
from penstock.server.engine.schedulers import HandScheduler

MINUTE_US = 2 * TICK_US


class Kept:
    """A journal that keeps its rows, on a loop run by hand."""

    id = "kept"

    def __init__(self, soon: Callable[[Callable[[], None]], object]) -> None:
        self._soon = soon
        self.events: list[str] = []
        self.metas: list[str | None] = []
        self.count = 0
        self.appended: Callable[[list[str]], None] = lambda events: None

    def append(self, shard: int, epoch: int, facts: Sequence[Fact], done: Callable[[Outcome], None]) -> None:
        rows = [row_of(fact) for fact in facts]
        self.events += [row.event for row in rows]
        self.metas += [row.meta for row in rows]
        self.appended([row.event for row in rows])
        first, self.count = self.count, self.count + len(rows)
        self._soon(lambda: done(Committed(first)))

    def close(self) -> None:
        return None


class TickerDriver:
    def __init__(self) -> None:
        self.now_us = 1_000_000
        self.wall_lag_us = 0
        self.scheduler = HandScheduler(lambda: Now(self.now_us, self.now_us - self.wall_lag_us))
        self.journal = Kept(self.scheduler.soon)
        machine = make_machine(Limits(), lambda _: Policy(), lambda n: b"\1" * n)
        self.runtime = Runtime(
            machine,
            self.journal,
            self.scheduler,
            authenticate=lambda _: None,
            version="t",
            keeps_history=True,
        )

    def enqueue(self, stream: str, id_: str) -> None:
        self.runtime.machine.enqueue(self.scheduler.now(), stream, [Record(id_, "t", b"{}")])
        self.runtime.apply(self.scheduler.now())
        self.scheduler.run()

    def pass_time(self, us: int) -> None:
        self.now_us += us
        self.scheduler.run()


class Deaf:
    """The session of a peer that takes what it is given and never says anything."""

    def deliver(self, now: Now, consumer: Consumer, records: list[Record]) -> None:
        return None

    def expired(self, consumer: Consumer, record: Record, lease_id: str) -> None:
        return None


def gauges(driver: TickerDriver) -> list[dict[str, Any]]:
    rows = zip(driver.journal.events, driver.journal.metas, strict=True)
    return [msgspec.json.decode(meta) for event, meta in rows if event == "gauge" and meta is not None]


@pytest.fixture
def driver() -> TickerDriver:
    return TickerDriver()


def test_a_quiet_server_writes_nothing(driver: TickerDriver) -> None:
    driver.pass_time(10 * TICK_US)
    assert driver.journal.events == []


@pytest.mark.promise("Journal", "ticks are written while rows come and once after; each changed queue gets a gauge")
def test_ticks_come_while_rows_come_and_once_after(driver: TickerDriver) -> None:
    driver.enqueue("a", "1")
    driver.pass_time(TICK_US)
    driver.enqueue("a", "2")
    for _ in range(10):
        driver.pass_time(TICK_US)
    assert driver.journal.events.count("tick") == 3


@pytest.mark.promise("Journal", "ticks are written while rows come and once after; each changed queue gets a gauge")
def test_each_changed_queue_has_one_gauge_with_every_count(driver: TickerDriver) -> None:
    driver.enqueue("a", "1")
    driver.enqueue("a", "2")
    driver.enqueue("b", "1")
    for _ in range(10):
        driver.pass_time(TICK_US)
    assert [(gauge["counters"]["in"], gauge["ready"]) for gauge in gauges(driver)] == [(2, 2), (1, 1)]


@pytest.mark.promise("Spark: pipeline", "gauges close whole minutes; ticks come at :00 and :30")
def test_ticks_fall_on_the_full_and_the_half_minute_until_the_last_rows_minute_is_over(driver: TickerDriver) -> None:
    at: list[int] = []
    driver.journal.appended = lambda events: at.extend([driver.now_us] * events.count("tick"))
    driver.pass_time(9_000_000)
    driver.enqueue("a", "1")
    for _ in range(200):
        driver.pass_time(1_000_000)
    assert at == [TICK_US, MINUTE_US, MINUTE_US + TICK_US]


@pytest.mark.promise("Spark: pipeline", "gauges close whole minutes; ticks come at :00 and :30")
def test_a_gauge_closes_the_minute_that_just_ended_and_says_what_changed_in_it(driver: TickerDriver) -> None:
    driver.pass_time(4 * MINUTE_US)
    driver.enqueue("a", "1")
    driver.pass_time(10_000_000)
    driver.enqueue("a", "1")
    driver.enqueue("a", "2")
    driver.pass_time(MINUTE_US - 11_000_000)
    driver.enqueue("a", "3")
    driver.pass_time(MINUTE_US)
    first, second = gauges(driver)
    assert (first["minute"], second["minute"]) == (4 * MINUTE_US, 5 * MINUTE_US)
    assert (first["delta"], second["delta"]) == ({"in": 2, "dup": 1}, {"in": 1})
    assert (first["oldest"], second["oldest"]) == (59_000, 119_000)
    assert second["counters"]["in"] == second["ready"] == 3


def test_a_timer_that_fires_a_little_early_closes_the_same_minute_and_ticks_once(driver: TickerDriver) -> None:
    driver.enqueue("a", "1")
    for second in range(120):
        driver.wall_lag_us = 5_000 * (second > 40)
        driver.pass_time(1_000_000)
    assert [gauge["minute"] for gauge in gauges(driver)] == [0]
    assert driver.journal.events.count("tick") == 3


def test_what_changes_without_a_row_is_in_a_gauge_before_the_ticks_end(driver: TickerDriver) -> None:
    machine = driver.runtime.machine
    driver.enqueue("a", "1")
    driver.pass_time(MINUTE_US + 10_000_000)
    link = machine.connect(OPERATOR, Deaf())
    assert isinstance(link, Link)
    consumer = machine.pull(driver.scheduler.now(), link, "a", 1, 0, lease_us=10 * MINUTE_US)
    assert isinstance(consumer, Consumer)
    driver.runtime.apply(driver.scheduler.now())
    for _ in range(8):
        driver.pass_time(TICK_US)
    assert [(gauge["minute"], gauge["delta"]) for gauge in gauges(driver)] == [
        (0, {"in": 1}),
        (MINUTE_US, {"out": 1}),
    ]


def test_rows_that_are_no_facts_keep_ticks_going_too(driver: TickerDriver) -> None:
    """A lease that ends, again and again, is a row each time, though nothing is settled."""
    machine = driver.runtime.machine
    driver.enqueue("a", "1")
    link = machine.connect(OPERATOR, Deaf())
    assert isinstance(link, Link)
    consumer = machine.pull(driver.scheduler.now(), link, "a", 1, 0, lease_us=5 * MINUTE_US)
    assert isinstance(consumer, Consumer)
    driver.runtime.apply(driver.scheduler.now())
    for _ in range(24):
        driver.pass_time(TICK_US)
    ended = gauges(driver)[-1]
    assert driver.journal.events.count("timeout") == 1
    assert (ended["minute"], ended["delta"], ended["ready"]) == (5 * MINUTE_US, {"timeout": 1}, 1)


def test_a_drain_leaves_a_gauge_of_what_changed_since_the_last(driver: TickerDriver) -> None:
    driver.enqueue("a", "1")
    driver.pass_time(MINUTE_US)
    driver.enqueue("a", "2")
    given_up: list[int] = []
    driver.runtime.drain(given_up.append)
    driver.scheduler.run()
    last = gauges(driver)[-1]
    assert given_up == [0]
    assert (last["minute"], last["delta"], last["ready"]) == (MINUTE_US, {"in": 1}, 2)


def test_a_journal_far_behind_stops_all_reading_until_it_has_caught_up() -> None:
    """Settles are never rejected; the bound is that the server stops reading."""
    limits = Limits(undecided_max=1)
    machine = make_machine(limits, lambda _: Policy(), lambda n: b"\1" * n)
    for id_ in ("1", "2"):
        machine.enqueue(Now(1, 1), "a", [Record(id_, "t", b"{}")])
    machine.commit_log.take_batch()
    assert machine.commit_log.undecided == 2 > limits.undecided_max
    machine.committed(Now(2, 2), 0)
    assert machine.commit_log.undecided == 0


class Refusing(Kept):
    """A journal whose disk is full while the test says so."""

    reason: str | None = None

    def append(self, shard: int, epoch: int, facts: Sequence[Fact], done: Callable[[Outcome], None]) -> None:
        first, reason = self.count, self.reason
        self.count += len(facts) if reason is None else 0
        self._soon(lambda: done(Committed(first, reason)))


def test_degradation_and_recovery_are_reported_once_each_and_shown_in_health() -> None:
    told: list[str] = []
    scheduler = HandScheduler(lambda: Now(1, 1))
    journal = Refusing(scheduler.soon)
    machine = make_machine(Limits(), lambda _: Policy(), lambda n: b"\1" * n)
    runtime = Runtime(
        machine,
        journal,
        scheduler,
        authenticate=lambda _: None,
        version="t",
        log=lambda event, **_: told.append(event),
    )
    for id_, reason in (("1", None), ("2", "the disk is full"), ("3", "the disk is full"), ("4", None)):
        journal.reason = reason
        machine.enqueue(Now(1, 1), "a", [Record(id_, "t", b"{}")])
        runtime.apply(Now(1, 1))
        scheduler.run()
        assert runtime.health(Now(1, 1))["journal"] == {"ok": reason is None, "trouble": reason}
    assert told == ["journal.refused", "journal.mended"]


@pytest.mark.promise("Streams", "the gauges of very many streams are spread over turns, for the same minute")
def test_very_many_queues_are_gauged_over_several_turns_and_all_for_the_same_minute(driver: TickerDriver) -> None:
    count = 2 * GAUGES_A_TURN + 10
    for number in range(count):
        driver.enqueue(f"q{number}", "1")
    turns: list[int] = []
    driver.journal.appended = lambda events: turns.append(events.count("gauge"))
    for _ in range(6):
        driver.pass_time(TICK_US)
    assert [turn for turn in turns if turn] == [GAUGES_A_TURN, GAUGES_A_TURN, 10]
    assert [(gauge["minute"], gauge["delta"]) for gauge in gauges(driver)] == [(0, {"in": 1})] * count


def test_a_queue_that_is_unloaded_while_others_are_gauged_is_left_to_its_next_life(driver: TickerDriver) -> None:
    machine = driver.runtime.machine
    driver.enqueue("a", "1")
    channel = machine.channels["a"]
    del machine.channels["a"]
    machine.close_minute(driver.scheduler.now(), 0, [channel])
    assert machine.commit_log.observations == []
