"""Packed facts give the same rows as `row_of`, and the same columns."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from penstock.core.queue.channel import Channel
from penstock.core.queue.policy import Policy
from penstock.core.records import Applied, Fact, Fired, Note, Record, Settle
from penstock.core.rows import row_of
from penstock.journal.columns import (
    SCHEMA,
    RowRun,
    decode_rows,
    pack_facts,
    read_run_head,
    run_head,
    run_rows,
    to_batch,
    unpack_run,
)

RECORD = Record("a", "test", b"{}", "sam", "c", channel=Channel("q", Policy()), seq=3, offset=2, recorded_us=5)
FACTS: list[Fact] = [
    RECORD,
    Settle("ack", RECORD, "kim", 1, 6),
    Note("gauge", "courier", "q", 4, "{}"),
    Applied("report", 0, 2),
]


def packed(facts: Sequence[Fact], first: int = 7, time_us: int = 9) -> RowRun:
    """Facts as a frame has them, and back."""
    data = b"".join([run_head(first, time_us, len(facts)), *pack_facts(facts)])
    assert read_run_head(memoryview(data)) == (first, time_us, len(facts))
    return unpack_run(memoryview(data), SCHEMA)


@pytest.mark.parametrize("facts", list(itertools.product(FACTS, repeat=3)))
def test_any_mixture_is_encoded_as_its_rows(facts: tuple[Fact, ...]) -> None:
    run = packed(facts)
    rows = [replace(row_of(fact), offset=7 + place, recorded_at=9) for place, fact in enumerate(facts)]
    assert list(run_rows(run, SCHEMA, "", 0, 0)) == rows
    batch = to_batch([run], SCHEMA)
    assert batch.schema == SCHEMA
    assert list(decode_rows(batch, "", 0, 0)) == rows


@pytest.mark.parametrize("count", [1, 15, 16, 255, 256, 257, 513])
def test_any_number_of_facts_is_packed_in_one_array(count: int) -> None:
    run = packed(FACTS * count)
    assert len(run.rows) == len(FACTS) * count
    assert run.rows[: len(FACTS)] == run.rows[-len(FACTS) :]


def test_frames_become_one_batch() -> None:
    batch = to_batch([packed(FACTS, 7, 9), packed(FACTS, 11, 12)], SCHEMA, ["offset", "recorded_at", "event"])
    assert batch.column("offset").to_pylist() == list(range(7, 15))
    assert batch.column("recorded_at").cast("int64").to_pylist() == [9] * 4 + [12] * 4
    assert batch.column("event").to_pylist() == ["enqueue", "ack", "gauge", "tick"] * 2


@pytest.mark.promise("Spark: pipeline", "a `trigger` row names the row that caused it and what the journal kept")
@pytest.mark.parametrize("between", [[], FACTS[2:3], FACTS[3:], FACTS[:2], FACTS])
def test_what_happens_to_a_record_in_its_own_batch_names_its_row(between: list[Fact]) -> None:
    """A trigger on a staged batch: the records, the note that the batch came, and then the firing."""
    fresh = Record("b", "test", b"{}", channel=Channel("q", Policy()), seq=4)
    facts = [RECORD, fresh, *between, Fired("trigger", fresh, "rule", 0, 0, "fired")]
    rows = list(run_rows(packed(facts), SCHEMA, "", 0, 0))
    assert rows[-1].ref_offset == rows[1].offset == 8
    assert rows[-1].ref_at == rows[1].recorded_at == 9
    assert {row.ref_offset for row in rows if row.event == "ack"} <= {2}


def test_what_happens_to_a_record_that_is_not_in_the_batch_names_no_row() -> None:
    fresh = Record("b", "test", b"{}", channel=Channel("q", Policy()), seq=4)
    (row,) = run_rows(packed([Settle("drop", fresh, None, 0, 0)]), SCHEMA, "", 0, 0)
    assert (row.id, row.ref_offset, row.ref_at) == ("b", None, None)


def test_a_reference_counts_back_over_pieces() -> None:
    fresh = Record("b", "test", b"{}", channel=Channel("q", Policy()), seq=4)
    rows = list(run_rows(packed([RECORD, fresh, *FACTS * 200, Settle("drop", fresh, None, 0, 0)]), SCHEMA, "", 0, 0))
    assert rows[-1].ref_offset == rows[1].offset == 8
