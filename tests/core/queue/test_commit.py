"""The outcome of a commit: a rejected batch has no effect, and a rejected settle restores its record."""

from __future__ import annotations

from penstock.core.queue.enqueue import Admitted
from penstock.core.queue.policy import Policy
from tests.core.driving import QueueDriver, purge_all, record_of


def test_a_batch_refused_whole_never_was() -> None:
    driver = QueueDriver()
    driver.subscribe("a", 10)
    driver.offer("a", record_of("1"), record_of("2"))
    driver.refuse()
    assert driver.state("a") == (0, 0, 0)
    assert driver.channel("a").live == {}
    assert driver.machine.totals.records_refused == 2
    answer = driver.offer("a", record_of("1"))
    assert isinstance(answer, Admitted)
    assert answer.duplicates is None
    driver.commit()
    assert driver.ids() == ["1"]


def test_numbers_never_go_back() -> None:
    driver = QueueDriver()
    driver.offer("a", record_of("1"))
    driver.refuse()
    assert driver.put("a", "2") == [2]


def test_a_refused_ack_brings_the_record_back_after_a_pause() -> None:
    driver = QueueDriver()
    consumer = driver.subscribe("a", 5)
    driver.put("a", "1")
    driver.machine.ack(driver.now, consumer, ["1"])
    driver.refuse()
    assert driver.channel("a").counters.ack == 0
    assert driver.machine.totals.settles_refused == 1
    assert driver.state("a") == (0, 0, 1)
    driver.advance(1_000)
    assert driver.deliveries == [("c", "1", 1), ("c", "1", 2)]
    assert driver.ack(consumer, "1") == []


def test_a_refused_drop_puts_the_victims_back_in_their_order() -> None:
    driver = QueueDriver(Policy(max_depth=3, overflow="drop-oldest"))
    driver.put("a", "1", "2", "3")
    driver.offer("a", record_of("4"), record_of("5"))
    driver.refuse()
    assert [record.id for record in driver.channel("a").ready] == ["1", "2", "3"]
    assert driver.channel("a").counters.drop == 0


def test_a_restored_record_goes_to_a_waiting_subscription() -> None:
    driver = QueueDriver(Policy(max_depth=1, overflow="drop-oldest"))
    driver.put("a", "1")
    driver.offer("a", record_of("2"))
    driver.subscribe("a", 1)
    driver.refuse()
    assert driver.deliveries == [("c", "1", 1)]


def test_a_refused_purge_and_a_refused_dead_letter_are_undone() -> None:
    driver = QueueDriver()
    consumer = driver.subscribe("a", 1)
    driver.put("a", "1", "2")
    purge_all(driver.machine, driver.now, driver.channel("a"))
    driver.machine.term(driver.now, consumer, driver.held(consumer, "1"), "no")
    driver.apply()
    driver.refuse()
    counters = driver.channel("a").counters
    assert (counters.purged, counters.dead) == (0, 0)
    assert driver.channel("dlq/a").live == {}
    assert driver.state("a") == (0, 0, 2)


def test_when_only_fresh_facts_are_refused_settles_stand() -> None:
    driver = QueueDriver()
    consumer = driver.subscribe("a", 5)
    driver.put("a", "1", "2")
    driver.offer("a", record_of("3"))
    driver.machine.ack(driver.now, consumer, ["1"])
    driver.machine.term(driver.now, consumer, driver.held(consumer, "2"), None)
    driver.apply()
    driver.commit(refused="no space")
    assert "3" not in driver.channel("a").live
    assert driver.channel("a").counters.ack == 1
    assert [record.id for record in driver.channel("dlq/a").ready] == ["2"]
    assert driver.batches[-1] == ["ack", "enqueue", "dead"]
    assert driver.channel("dlq/a").live["2"].offset == 3


def test_batches_still_under_way_survive_the_refusal_of_an_earlier_one() -> None:
    driver = QueueDriver()
    driver.offer("a", record_of("1"))
    assert driver.machine.commit_log.take_batch() is not None
    driver.offer("a", record_of("2"))
    assert driver.machine.commit_log.take_batch() is not None
    driver.machine.refused(driver.now)
    driver.machine.committed(driver.now, 0)
    driver.apply()
    assert [record.id for record in driver.channel("a").ready] == ["2"]
