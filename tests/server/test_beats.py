"""Ticks and gauges: what a runtime that keeps history writes beside the facts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import pytest

from penstock.core.instant import Now
from penstock.core.limits import Limits
from penstock.core.policy import Policy
from penstock.core.records import Fact, Record
from penstock.core.rows import row_of
from penstock.journal.port import Committed, Outcome
from penstock.server.machine import make_machine
from penstock.server.runtime import BEAT_US, Runtime
from penstock.server.schedulers import HandScheduler


class Kept:
    """A journal that keeps its rows, on a loop run by hand."""

    id = "kept"

    def __init__(self, soon: Callable[[Callable[[], None]], object]) -> None:
        self._soon = soon
        self.events: list[str] = []
        self.metas: list[str | None] = []
        self.count = 0

    def append(self, shard: int, epoch: int, facts: Sequence[Fact], done: Callable[[Outcome], None]) -> None:
        rows = [row_of(fact) for fact in facts]
        self.events += [row.event for row in rows]
        self.metas += [row.meta for row in rows]
        first, self.count = self.count, self.count + len(rows)
        self._soon(lambda: done(Committed(first)))

    def close(self) -> None:
        return None


class Bench:
    def __init__(self) -> None:
        self.now_us = 1_000_000
        self.scheduler = HandScheduler(lambda: Now(self.now_us, self.now_us))
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


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_quiet_server_writes_nothing(bench: Bench) -> None:
    bench.pass_time(10 * BEAT_US)
    assert bench.journal.events == []


def test_ticks_come_while_rows_come_and_once_after(bench: Bench) -> None:
    bench.enqueue("a", "1")
    bench.pass_time(BEAT_US)
    bench.enqueue("a", "2")
    for _ in range(10):
        bench.pass_time(BEAT_US)
    assert bench.journal.events.count("tick") == 3


def test_each_changed_queue_has_one_gauge_with_every_count(bench: Bench) -> None:
    bench.enqueue("a", "1")
    bench.enqueue("a", "2")
    bench.enqueue("b", "1")
    for _ in range(10):
        bench.pass_time(BEAT_US)
    gauges = [
        msgspec.json.decode(meta)
        for event, meta in zip(bench.journal.events, bench.journal.metas, strict=True)
        if event == "gauge" and meta is not None
    ]
    assert [(gauge["counters"]["in"], gauge["ready"]) for gauge in gauges] == [(2, 2), (1, 1)]


def test_a_journal_far_behind_stops_all_reading_until_it_has_caught_up() -> None:
    """Settles are never refused, so what bounds them is that nobody is read from."""
    limits = Limits(undecided_max=1)
    machine = make_machine(limits, lambda _: Policy(), lambda n: b"\1" * n)
    for id_ in ("1", "2"):
        machine.enqueue(Now(1, 1), "a", [Record(id_, "t", b"{}")])
    machine.take_batch()
    assert machine.undecided == 2 > limits.undecided_max
    machine.committed(Now(2, 2), 0)
    assert machine.undecided == 0


class Refusing(Kept):
    """A journal whose disk is full while it is told so."""

    reason: str | None = None

    def append(self, shard: int, epoch: int, facts: Sequence[Fact], done: Callable[[Outcome], None]) -> None:
        first, reason = self.count, self.reason
        self.count += len(facts) if reason is None else 0
        self._soon(lambda: done(Committed(first, reason)))


def test_trouble_and_its_end_are_told_once_each_and_shown_in_health() -> None:
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
