"""The outcome of a commit: a rejected batch has no effect, and a rejected settle restores its record."""

from __future__ import annotations

from penstock.core.queue.enqueue import Admitted
from penstock.core.queue.policy import Policy
from tests.core.driving import QueueDriver, record_of


def test_a_batch_refused_whole_never_was() -> None:
    bench = QueueDriver()
    bench.subscribe("a", 10)
    bench.offer("a", record_of("1"), record_of("2"))
    bench.refuse()
    assert bench.state("a") == (0, 0, 0)
    assert bench.channel("a").live == {}
    assert bench.machine.totals.records_refused == 2
    answer = bench.offer("a", record_of("1"))
    assert isinstance(answer, Admitted)
    assert answer.duplicates is None
    bench.commit()
    assert bench.ids() == ["1"]


def test_numbers_never_go_back() -> None:
    bench = QueueDriver()
    bench.offer("a", record_of("1"))
    bench.refuse()
    assert bench.put("a", "2") == [2]


def test_a_refused_ack_brings_the_record_back_after_a_pause() -> None:
    bench = QueueDriver()
    consumer = bench.subscribe("a", 5)
    bench.put("a", "1")
    bench.machine.ack(bench.now, consumer, ["1"])
    bench.refuse()
    assert bench.channel("a").counters.ack == 0
    assert bench.machine.totals.settles_refused == 1
    assert bench.state("a") == (0, 0, 1)
    bench.advance(1_000)
    assert bench.deliveries == [("c", "1", 1), ("c", "1", 2)]
    assert bench.ack(consumer, "1") == []


def test_a_refused_drop_puts_the_victims_back_in_their_order() -> None:
    bench = QueueDriver(Policy(max_depth=3, overflow="drop-oldest"))
    bench.put("a", "1", "2", "3")
    bench.offer("a", record_of("4"), record_of("5"))
    bench.refuse()
    assert [record.id for record in bench.channel("a").ready] == ["1", "2", "3"]
    assert bench.channel("a").counters.drop == 0


def test_a_restored_record_goes_to_a_waiting_subscription() -> None:
    bench = QueueDriver(Policy(max_depth=1, overflow="drop-oldest"))
    bench.put("a", "1")
    bench.offer("a", record_of("2"))
    bench.subscribe("a", 1)
    bench.refuse()
    assert bench.deliveries == [("c", "1", 1)]


def test_a_refused_purge_and_a_refused_dead_letter_are_undone() -> None:
    bench = QueueDriver()
    consumer = bench.subscribe("a", 1)
    bench.put("a", "1", "2")
    bench.machine.purge(bench.now, bench.channel("a"))
    bench.machine.term(bench.now, consumer, bench.held(consumer, "1"), "no")
    bench.apply()
    bench.refuse()
    counters = bench.channel("a").counters
    assert (counters.purged, counters.dead) == (0, 0)
    assert bench.channel("dlq/a").live == {}
    assert bench.state("a") == (0, 0, 2)


def test_when_only_fresh_facts_are_refused_settles_stand() -> None:
    bench = QueueDriver()
    consumer = bench.subscribe("a", 5)
    bench.put("a", "1", "2")
    bench.offer("a", record_of("3"))
    bench.machine.ack(bench.now, consumer, ["1"])
    bench.machine.term(bench.now, consumer, bench.held(consumer, "2"), None)
    bench.apply()
    bench.commit(refused="no space")
    assert "3" not in bench.channel("a").live
    assert bench.channel("a").counters.ack == 1
    assert [record.id for record in bench.channel("dlq/a").ready] == ["2"]
    assert bench.batches[-1] == ["ack", "enqueue", "dead"]
    assert bench.channel("dlq/a").live["2"].offset == 3


def test_batches_still_under_way_survive_the_refusal_of_an_earlier_one() -> None:
    bench = QueueDriver()
    bench.offer("a", record_of("1"))
    assert bench.machine.commit_log.take_batch() is not None
    bench.offer("a", record_of("2"))
    assert bench.machine.commit_log.take_batch() is not None
    bench.machine.refused(bench.now)
    bench.machine.committed(bench.now, 0)
    bench.apply()
    assert [record.id for record in bench.channel("a").ready] == ["2"]
