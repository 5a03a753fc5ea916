"""A generated history equals what a server would have written."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from penstock.journal.reader import JournalReader
from penstock.testing.history import BODY_BYTES, growing_history, make_history


def test_history_is_sealed_rows_of_envelopes_and_acks(tmp_path):
    reader = JournalReader(make_history(tmp_path / "data", 1_001))
    assert reader.bounds().end == 1_001
    rows = pa.Table.from_batches(list(reader.batches(0, 1_001))).to_pylist()
    enqueued = {row["offset"]: row for row in rows if row["event"] == "enqueue"}
    acks = [row for row in rows if row["event"] == "ack"]
    assert len(enqueued) + len(acks) == 1_001 and len(enqueued) - len(acks) < 300
    for row in enqueued.values():
        body = json.loads(row["body"])
        assert len(row["body"]) == BODY_BYTES and body["id"] == row["id"] and body["corr"] == row["corr"]
    for ack in acks:
        begun = enqueued[ack["ref_offset"]]
        assert (begun["channel"], begun["seq"], begun["id"]) == (ack["channel"], ack["seq"], ack["id"])
        assert begun["recorded_at"] == ack["ref_at"] < ack["first_at"] < ack["recorded_at"]
    assert len({ack["ref_offset"] for ack in acks}) == len(acks)


def test_a_directory_with_a_journal_is_refused_and_left_as_it_is(tmp_path):
    make_history(tmp_path, 10)
    with pytest.raises(ValueError, match="already has a journal"):
        make_history(tmp_path, 10)
    assert JournalReader(tmp_path).bounds().end == 10


def test_a_growing_history_is_read_while_it_grows(tmp_path):
    with growing_history(tmp_path, 2_000, rate=200) as history:
        history.grow(600)
        reader = JournalReader(tmp_path)
        assert reader.bounds().end == 600
        assert history.commit(10, talk=3) == reader.bounds().end == 610
        rows = pa.Table.from_batches(list(reader.batches(600, 610))).to_pylist()
        assert [row["event"] for row in rows] == ["ack"] * 5 + ["enqueue"] * 5
        assert rows[5]["corr"] == "talk-3" == json.loads(rows[5]["body"])["corr"]
        history.grow(1_000)
        assert reader.bounds().end == 1_000
