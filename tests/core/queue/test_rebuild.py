"""A machine rebuilt from its rows has the state of the old one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.queue.policy import Policy
from penstock.core.records import Fact, Note
from penstock.core.rows import Row, row_of
from penstock.core.scopes import PIPELINE
from tests.core.driving import QueueDriver, record_of, redrive


class Recorded(QueueDriver):
    """A driver that keeps the rows of what it commits, as a journal would."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.rows: list[Row] = []
        super().__init__(policy)

    def commit(self, *, refused: str | None = None) -> None:
        while (batch := self.machine.commit_log.take_batch()) is not None:
            facts: list[Fact] = [*batch.facts, *batch.observations]
            self.machine.committed(self.now, self.offset)
            for fact in facts:
                row = msgspec.structs.replace(row_of(fact), offset=self.offset, recorded_at=self.now.wall_us)
                self.rows.append(row)
                self.offset += 1
            self.apply()

    def restarted(self, later_ms: int = 0) -> QueueDriver:
        """Another machine, some time later, given the rows."""
        fresh = QueueDriver(self.machine.policy_for("any"))
        fresh.us = self.us + later_ms * 1000
        for row in self.rows:
            fresh.machine.restore(fresh.now, row)
        fresh.machine.recovered(fresh.now)
        fresh.apply()
        return fresh


def test_live_records_come_back_with_their_bytes_and_numbers() -> None:
    driver = Recorded()
    driver.put("a", "1", "2", "3")
    driver.put("b", "1")
    fresh = driver.restarted()
    assert [(r.id, r.seq, r.body, r.offset) for r in fresh.channel("a").ready] == [
        (r.id, r.seq, r.body, r.offset) for r in driver.channel("a").ready
    ]
    assert fresh.put("a", "4") == [4]
    assert fresh.put("b", "2") == [2]


def test_what_was_settled_stays_settled_and_is_remembered() -> None:
    driver = Recorded()
    consumer = driver.subscribe("a", 5)
    driver.put("a", "1", "2")
    driver.ack(consumer, "1")
    fresh = driver.restarted()
    assert [record.id for record in fresh.channel("a").ready] == ["2"]
    assert fresh.put("a", "1") == [1]
    again = fresh.subscribe("a", 5)
    assert fresh.ack(again, "1") == ["AlreadyAcked"]


def test_leases_end_with_the_process_and_attempts_go_on() -> None:
    driver = Recorded()
    consumer = driver.subscribe("a", 5)
    driver.put("a", "1")
    driver.nack(consumer, "1", reason="boom")
    fresh = driver.restarted()
    fresh.subscribe("a", 1)
    assert fresh.deliveries[0][1] == "1"
    assert fresh.deliveries[0][2] >= 2
    assert fresh.channel("a").live["1"].error == "boom"


def test_failures_and_lost_connections_are_known_after_a_restart() -> None:
    driver = Recorded(Policy(lease_us=1_000_000, max_abandoned=4))
    driver.put("a", "1")
    for _ in range(3):
        link = driver.connect()
        driver.subscribe("a", 1, link=link)
        driver.disconnect(link)
    consumer = driver.subscribe("a", 9)
    driver.nack(consumer, "1")
    driver.release(consumer, "1")
    driver.advance(1_000)
    driver.release(consumer, "1")
    before = driver.channel("a").live["1"]
    assert (before.failures, before.abandoned) == (2, 3)
    for rows in (driver.rows, [*driver.machine.snapshot(driver.now)]):
        fresh = QueueDriver()
        for row in rows:
            (fresh.machine.restore if rows is driver.rows else fresh.machine.resume)(fresh.now, row)
        fresh.machine.recovered(fresh.now)
        after = fresh.channel("a").live["1"]
        assert (after.failures, after.abandoned) == (2, 3)


@pytest.mark.promise("Journal", "a journal of an earlier version counts the failures that it counted then")
def test_rows_of_an_earlier_version_count_as_they_did() -> None:
    old = {"channel": "a", "seq": 1, "id": "1", "attempt": 7}
    live = Row(event="enqueue", meta='{"released":4}', body=b"{}", **old)
    fresh = QueueDriver()
    fresh.machine.resume(fresh.now, live)
    record = fresh.channel("a").live["1"]
    assert (record.attempt, record.failures, record.abandoned) == (7, 3, 0)
    for event, failures in (("release", 3), ("timeout", 9), ("nack", 10)):
        attempt = {"release": 8, "timeout": 9, "nack": 10}[event]
        fresh.machine.restore(fresh.now, Row(event=event, **{**old, "attempt": attempt}))
        assert (record.attempt, record.failures) == (attempt, failures)


def test_the_window_ages_over_a_restart() -> None:
    driver = Recorded(Policy(dedup_us=10_000_000))
    consumer = driver.subscribe("a", 5)
    driver.put("a", "1")
    driver.ack(consumer, "1")
    assert driver.restarted(9_000).put("a", "1") == [1]
    assert driver.restarted(11_000).put("a", "1") == [2]


def test_delays_end_when_they_would_have() -> None:
    driver = Recorded()
    consumer = driver.subscribe("a", 5)
    driver.offer("a", record_of("scheduled", due_wall_us=0))
    driver.commit()
    due = driver.now.wall_us + 60_000_000
    driver.offer("a", record_of("later", due_wall_us=due, scheduled_wall_us=due))
    driver.commit()
    driver.nack(consumer, "scheduled", 30_000)
    fresh = driver.restarted(10_000)
    again = fresh.subscribe("a", 5)
    assert fresh.state("a") == (0, 0, 2)
    fresh.advance(19_999)
    assert fresh.ids() == []
    fresh.advance(1)
    assert fresh.ids() == ["scheduled"]
    fresh.ack(again, "scheduled")
    fresh.advance(30_000)
    assert fresh.ids() == ["later"]


def test_dead_letters_and_redriven_ones_are_where_they_were() -> None:
    driver = Recorded()
    consumer = driver.subscribe("a", 5)
    driver.put("a", "1", "2")
    driver.term(consumer, "1")
    driver.term(consumer, "2")
    redrive(driver.machine, driver.now, "a", 1)
    driver.apply()
    driver.commit()
    fresh = driver.restarted()
    assert [(r.id, r.seq) for r in fresh.channel("a").ready] == [("1", 3)]
    assert [record.id for record in fresh.channel("dlq/a").ready] == ["2"]


def test_rows_about_records_that_the_rows_do_not_hold_are_passed_over() -> None:
    driver = Recorded()
    consumer = driver.subscribe("a", 5)
    driver.put("a", "1", "2")
    driver.ack(consumer, "1")
    driver.nack(consumer, "2")
    fresh = QueueDriver()
    for row in driver.rows[1:]:
        fresh.machine.restore(fresh.now, row)
    fresh.machine.recovered(fresh.now)
    fresh.check()
    assert list(fresh.channel("a").live) == ["2"]
    assert fresh.channel("a").counters.ack == 0


def test_an_empty_stream_may_sleep_after_a_restart() -> None:
    driver = Recorded()
    consumer = driver.subscribe("a", 5)
    driver.put("a", "1")
    driver.ack(consumer, "1")
    fresh = driver.restarted()
    fresh.advance(120_000)
    assert "a" not in fresh.machine.channels
    assert fresh.put("a", "1", "2") == [1, 2]


@pytest.mark.promise("Journal", "the live file and the log after it restore the whole state")
@given(st.lists(st.tuples(st.sampled_from(["put", "ack", "nack", "release", "term", "wait"]), st.integers(0, 5))))
def test_any_history_is_rebuilt_with_the_same_live_ids_and_balance(steps: list[tuple[str, int]]) -> None:
    driver = Recorded(Policy(max_deliveries=3, lease_us=2_000_000))
    consumer = driver.subscribe("a", 10_000)
    for n, (verb, pick) in enumerate(steps):
        held = list(consumer.leases.values())
        match verb:
            case "put":
                driver.put("a", f"e{n}")
            case "wait":
                driver.advance(pick * 700)
            case "ack" if held:
                driver.ack(consumer, held[pick % len(held)].id)
            case "nack" if held:
                driver.nack(consumer, held[pick % len(held)].id, pick * 100)
            case "release" if held:
                driver.release(consumer, held[pick % len(held)].id)
            case "term" if held:
                driver.term(consumer, held[pick % len(held)].id)
            case _:
                pass
    fresh = driver.restarted()
    for name, channel in driver.machine.channels.items():
        if channel.counters.in_:
            rebuilt = fresh.channel(name)
            assert {r.id: r.seq for r in rebuilt.live.values()} == {r.id: r.seq for r in channel.live.values()}
            assert {i: s.outcome for i, s in rebuilt.settled.items()} == {
                i: s.outcome for i, s in channel.settled.items()
            }
            assert (rebuilt.counters.in_, rebuilt.counters.ack) == (
                channel.counters.in_,
                channel.counters.ack,
            )


def test_the_streams_of_a_snapshot_sleep_until_something_of_them_is_live() -> None:
    before = QueueDriver()
    before.put("full", "x")
    before.put("empty", "y")
    assert before.ack(before.subscribe("empty", 1), "y") == []
    before.commit()
    after = QueueDriver()
    for row in before.machine.snapshot(before.now):
        after.machine.resume(after.now, row)
    after.machine.recovered(after.now)
    assert list(after.machine.channels) == ["full"]
    asleep = after.machine.dormant["empty"]
    assert ("y" in asleep.settled, asleep.counters.ack, asleep.seq) == (True, 1, 1)
    assert after.put("empty", "z") == [2]


def tick(driver: QueueDriver, minute_us: int) -> list[dict[str, Any]]:
    """Close a minute; what the gauges say."""
    driver.machine.tick(driver.now, minute_us)
    notes = [
        note for note in driver.machine.commit_log.observations if isinstance(note, Note) and note.event == "gauge"
    ]
    driver.commit()
    return [{"channel": note.channel, **msgspec.json.decode(note.meta or "")} for note in notes]


def test_what_was_counted_before_a_restart_is_in_no_gauge_after_it() -> None:
    driver = Recorded(Policy(lease_us=1_000_000))
    consumer = driver.subscribe("a", 2)
    driver.put("a", "1", "2", "3")
    driver.ack(consumer, "1")
    (before,) = tick(driver, 0)
    assert before["delta"] == {"in": 3, "out": 2, "ack": 1}
    driver.ack(consumer, "2")
    fresh = driver.restarted()
    (stands,) = tick(fresh, 60_000_000)
    assert (stands["delta"], stands["ready"], stands["leased"]) == ({}, 1, 0)
    assert (stands["counters"]["in"], stands["counters"]["ack"]) == (3, 2)
    again = fresh.subscribe("a", 1)
    fresh.ack(again, "3")
    (after,) = tick(fresh, 120_000_000)
    assert after["delta"] == {"out": 1, "ack": 1}
    assert tick(fresh, 180_000_000) == []


def test_a_stream_that_slept_says_what_changed_since_its_last_gauge() -> None:
    driver = QueueDriver()
    driver.ack(driver.pull("a", wait_ms=60_000), "none")
    driver.put("a", "1")
    consumer = next(iter(driver.machine.consumers.values()))
    driver.ack(consumer, "1")
    assert tick(driver, 0)[0]["delta"] == {"in": 1, "out": 1, "ack": 1}
    driver.put("a", "1")
    driver.advance(200_000)
    assert "a" in driver.machine.dormant
    driver.put("a", "2")
    assert tick(driver, 60_000_000)[0]["delta"] == {"in": 1, "dup": 1}


def test_a_gauge_says_what_of_it_the_pipeline_sent() -> None:
    driver = QueueDriver(Policy(lease_us=1_000_000))
    driver.offer("inbox", record_of("own-1", sender=PIPELINE))
    driver.offer("inbox", record_of("own-2", sender=PIPELINE))
    driver.put("inbox", "mine")
    (gauge,) = tick(driver, 60_000_000)
    assert (gauge["ready"], gauge["own"], gauge["oldest"]) == (3, {"ready": 2}, 0)
    consumer = driver.subscribe("inbox", 3)
    driver.ack(consumer, "mine")
    driver.advance(1_500)
    (gauge,) = tick(driver, 120_000_000)
    assert (gauge["own"]["out"], gauge["own"]["timeout"], gauge["own"]["ready"]) == (2, 2, 2)
    assert (gauge["delta"]["out"], gauge["delta"]["timeout"], gauge["ready"]) == (3, 2, 2)
    driver.put("jobs", "a")
    (plain,) = tick(driver, 180_000_000)
    assert (plain["channel"], "own" in plain) == ("jobs", False)


def test_a_refused_settle_does_not_make_a_gauge_count_backwards() -> None:
    driver = QueueDriver()
    consumer = driver.subscribe("a", 1)
    driver.put("a", "1")
    driver.machine.ack(driver.now, consumer, ["1"])
    driver.machine.tick(driver.now, 0)
    driver.refuse()
    (gauge,) = tick(driver, 60_000_000)
    assert (gauge["delta"], gauge["delayed"], gauge["counters"]["ack"]) == ({}, 1, 0)


def test_the_oldest_ready_record_is_found_behind_leased_ones_and_within_a_bound() -> None:
    driver = QueueDriver()
    driver.subscribe("a", 2)
    driver.put("a", "1", "2")
    driver.advance(1_000)
    driver.put("a", "3")
    driver.advance(500)
    driver.put("a", "4")
    assert tick(driver, 0)[0]["oldest"] == 500
    driver.subscribe("a", 1)
    driver.advance(250)
    assert tick(driver, 0)[0]["oldest"] == 250
    driver.subscribe("a", 1)
    assert tick(driver, 0)[0]["oldest"] == 0
