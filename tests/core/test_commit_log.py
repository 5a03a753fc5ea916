"""The commit log: gates, batches in order, and observations within their bounds."""

from __future__ import annotations

from penstock.core.commit_log import CommitLog
from penstock.core.limits import Limits
from penstock.core.records import Entry, Note, Record


def log_of(**bounds: int) -> CommitLog:
    return CommitLog(Limits(**bounds))


def record_of(id_: str) -> Record:
    return Record(id_, "note", b"{}")


def entry_of(size: int) -> Entry:
    return Entry("mew", "frame", "space/stream-1", body=b"x" * size)


def test_gates_count_up_and_an_empty_turn_takes_no_batch() -> None:
    log = log_of()
    assert log.take_batch() is None
    log.facts.append(record_of("1"))
    batch = log.take_batch()
    assert batch is not None
    assert (batch.no, log.gate) == (1, 2)
    assert log.take_batch() is None


def test_an_awaited_gate_makes_an_empty_batch_once() -> None:
    log = log_of()
    log.await_gate(log.gate + 1)
    assert log.take_batch() is None, "only the open batch can be awaited"
    log.await_gate(log.gate)
    batch = log.take_batch()
    assert batch is not None
    assert (batch.facts, batch.observations) == ([], [])
    assert log.take_batch() is None


def test_batches_are_decided_in_the_order_they_were_proposed() -> None:
    log = log_of()
    for id_ in ("1", "2"):
        log.facts.append(record_of(id_))
        log.take_batch()
    assert (log.undecided, log.decided) == (2, 0)
    assert [log.decide().no, log.decide().no] == [1, 2]
    assert (log.undecided, log.decided) == (0, 2)


def test_observations_beyond_the_bound_are_counted_until_a_batch_is_decided() -> None:
    log = log_of(observations_max=2)
    for id_ in ("1", "2", "3"):
        log.observe("extend", record_of(id_), "peer")
    log.take_batch()
    log.observe("extend", record_of("4"), "peer")
    assert (log.observed, log.observations_dropped) == (2, 2)
    log.decide()
    log.observe("extend", record_of("5"), "peer")
    assert (log.observed, log.observations_dropped) == (1, 2)


def test_bodies_of_observations_are_bounded_in_bytes_over_open_and_proposed_batches() -> None:
    log = log_of(observations_bytes_max=100)
    log.observe_entry(entry_of(60))
    log.take_batch()
    log.observe_entry(entry_of(60))
    assert (log.observed_bytes, log.observations_dropped) == (60, 1)
    log.observe_entry(entry_of(40))
    assert (log.observed_bytes, log.observations_dropped) == (100, 1)
    log.decide()
    assert log.observed_bytes == 40


def test_notes_of_the_server_are_never_dropped() -> None:
    log = log_of(observations_max=1)
    log.note(Note("tick", "server"))
    log.note(Note("tick", "server"))
    assert (len(log.observations), log.observations_dropped) == (2, 0)


def test_lowered_limits_count_at_once() -> None:
    log = log_of()
    log.observe("extend", record_of("1"), "peer")
    log.limits = Limits(observations_max=1)
    log.observe("extend", record_of("2"), "peer")
    assert log.observations_dropped == 1
