"""Reading sealed rows: next to a sealer, and without decoding what is not wanted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from penstock.journal.parquet_table import EventsTable
from penstock.journal.reader import JournalReader
from penstock.journal.selection import Selection
from tests.journal.histories import START_US, sealer
from tests.journal.test_reader import EXPECTED, read


@pytest.mark.parametrize("name", ["files", "sealed_end"])
@pytest.mark.parametrize("turn", range(3))
def test_the_sealer_may_come_between_two_looks_at_the_table(
    sealed: Path, monkeypatch: pytest.MonkeyPatch, name: str, turn: int
) -> None:
    original = getattr(EventsTable, name)
    calls = 0

    def interrupted(self: EventsTable, *args: object) -> object:
        nonlocal calls
        calls += 1
        if calls == turn + 1:
            monkeypatch.setattr(EventsTable, name, original)
            sealer(sealed).seal(START_US + 99, wants_live=True)
        return original(self, *args)

    monkeypatch.setattr(EventsTable, name, interrupted)
    assert read(sealed, 0, 10) == EXPECTED


def test_row_groups_that_hold_nothing_wanted_are_not_decoded(sealed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sealer(sealed).seal(START_US + 99, wants_live=True)
    groups: list[int] = []
    original = pq.ParquetFile.iter_batches

    def watched(self: pq.ParquetFile, *args: Any, **options: Any) -> Any:
        groups.extend(options["row_groups"])
        return original(self, *args, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", watched)
    assert list(JournalReader(sealed).batches(0, 7, ["id"], Selection(channels=("other",)))) == []
    assert list(JournalReader(sealed).batches(0, 7, ["id"], Selection(doors=("mew",)))) == []
    assert groups == []
    assert len(list(JournalReader(sealed).batches(0, 7, ["id"], Selection(channels=("jo*",))))) == 1
    assert len(groups) == 2
