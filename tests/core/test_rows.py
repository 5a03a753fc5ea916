"""Rows of facts: each kind of fact fills its own columns, and a row reads nothing that changes later."""

from __future__ import annotations

import msgspec

from penstock.core.records import Applied, Entry, Note, Ruled, Settle
from penstock.core.rows import Row, row_of
from tests.core.driving import QueueDriver


def test_the_journal_fills_the_first_five_columns_itself() -> None:
    assert Row.__struct_fields__[:5] == ("journal", "shard", "epoch", "offset", "recorded_at")
    driver = QueueDriver()
    driver.put("jobs", "a")
    row = row_of(driver.channel("jobs").live["a"])
    assert (row.journal, row.shard, row.epoch, row.offset, row.recorded_at) == ("", 0, 0, -1, 0)


def test_a_record_is_an_enqueue_with_its_bytes() -> None:
    driver = QueueDriver()
    driver.put("jobs", "a")
    record = driver.channel("jobs").live["a"]
    row = row_of(record)
    assert (row.door, row.event, row.channel, row.seq, row.id) == ("courier", "enqueue", "jobs", record.seq, "a")
    assert (row.body, row.size) == (record.body, len(record.body))


def test_a_settle_refers_to_its_record_and_does_not_repeat_its_bytes() -> None:
    driver = QueueDriver()
    driver.put("jobs", "a")
    record = driver.channel("jobs").live["a"]
    row = row_of(Settle("nack", record, "sam", 2, 0, "busy"))
    assert (row.event, row.id, row.peer, row.attempt, row.reason) == ("nack", "a", "sam", 2, "busy")
    assert (row.ref_offset, row.ref_at) == (record.offset, record.recorded_us)
    assert (row.body, row.size) == (None, len(record.body))


def test_a_note_and_an_entry_name_their_door() -> None:
    note = row_of(Note("frames", "mew", meta="{}"))
    assert (note.door, note.event, note.channel, note.seq, note.meta) == ("mew", "frames", "", 0, "{}")
    entry = row_of(Entry("mew", "envelope", "demo", id="e-1", sender="sam", recipients=3, body=b"{}"))
    assert (entry.door, entry.event, entry.channel, entry.id) == ("mew", "envelope", "demo", "e-1")
    assert (entry.sender, entry.recipients, entry.body) == ("sam", 3, b"{}")


def test_facts_about_the_server_have_no_channel() -> None:
    for fact in (Applied("app", 7, 0), Ruled("r", "{}")):
        row = row_of(fact)
        assert (row.door, row.channel, row.event) == ("server", "", fact.event)
        assert row.meta == fact.meta


def test_defaults_are_left_out_and_the_size_is_called_bytes() -> None:
    assert msgspec.to_builtins(Row(event="tick", size=3)) == {"event": "tick", "bytes": 3}
