"""Facts as columns give the same rows as `row_of`."""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace

from penstock.core.queue.channel import Channel
from penstock.core.queue.policy import Policy
from penstock.core.records import Applied, Fact, Fired, Note, Record, Settle
from penstock.core.rows import row_of
from penstock.journal.columns import SCHEMA, decode_rows, encode_facts

RECORD = Record("a", "test", b"{}", "sam", "c", channel=Channel("q", Policy()), seq=3, offset=2, recorded_us=5)
FACTS: list[Fact] = [
    RECORD,
    Settle("ack", RECORD, "kim", 1, 6),
    Note("gauge", "courier", "q", 4, "{}"),
    Applied("report", 0, 2),
]


@pytest.mark.parametrize("facts", list(itertools.product(FACTS, repeat=3)))
def test_any_mixture_is_encoded_as_its_rows(facts: tuple[Fact, ...]) -> None:
    batch = encode_facts(facts, 7, 9)
    assert batch.schema == SCHEMA
    rows = [replace(row_of(fact), offset=7 + place, recorded_at=9) for place, fact in enumerate(facts)]
    assert list(decode_rows(batch, "", 0, 0)) == rows


@pytest.mark.promise("Spark: pipeline", "a `trigger` row names the row that caused it and what the journal kept")
@pytest.mark.parametrize("between", [[], FACTS[2:3], FACTS[3:], FACTS[:2], FACTS])
def test_what_happens_to_a_record_in_its_own_batch_names_its_row(between: list[Fact]) -> None:
    """A trigger on a staged batch: the records, the note that the batch came, and then the firing."""
    fresh = Record("b", "test", b"{}", channel=Channel("q", Policy()), seq=4)
    facts = [RECORD, fresh, *between, Fired("trigger", fresh, "rule", 0, 0, "fired")]
    rows = list(decode_rows(encode_facts(facts, 7, 9), "", 0, 0))
    assert rows[-1].ref_offset == rows[1].offset == 8
    assert {row.ref_offset for row in rows if row.event == "ack"} <= {2}
