"""Selections of rows, sealed or not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.core.queue.channel import Channel
from penstock.core.queue.policy import Policy
from penstock.journal.disk import RealDisk
from penstock.journal.reader import JournalReader
from penstock.journal.selection import Selection
from tests.journal.histories import START_US, ack, publish, put, reopened, sealer


@pytest.mark.parametrize("is_sealed", [False, True])
def test_a_selection_passes_what_a_filter_afterwards_would(tmp_path: Path, is_sealed: bool) -> None:
    disk = RealDisk(tmp_path / "journal")
    log, _ = reopened(disk)
    for n in range(90):
        name = f"{'abc'[n // 30]}/jobs-{n % 3}"
        record = put(f"e{n}", channel=Channel(name, Policy()), seq=n + 1)
        record.sender = "pipeline/own" if n % 4 == 0 else None if n % 4 == 1 else "sam"
        log.commit([[record, ack(f"e{n}", channel=record.channel)]], START_US + n)
        if is_sealed and n % 30 == 29:
            log.rotate()
            publish(disk, 2 * n + 2)
            sealer(tmp_path).seal(START_US + n, wants_live=True)
    log.close()
    publish(disk, 180)
    reader = JournalReader(tmp_path)
    everything = pa.Table.from_batches(reader.batches(0, 180)).to_pylist()
    wanted: list[tuple[Selection, Callable[[dict[str, Any]], bool]]] = [
        (Selection(channels=("b/*",)), lambda row: row["channel"].startswith("b/")),
        (Selection(channels=("*-1", "c/jobs-0")), lambda row: row["channel"][-1] == "1" or row["channel"] == "c/jobs-0"),
        (Selection(channels=("zzz",)), lambda row: False),
        (Selection(events=("ack",), doors=("courier",)), lambda row: row["event"] == "ack"),
        (Selection(doors=("mew",)), lambda row: False),
        (Selection(with_pipeline=False), lambda row: row["sender"] != "pipeline/own"),
    ]  # fmt: skip
    for selection, keeps in wanted:
        found = [row["offset"] for b in reader.batches(3, 170, ["offset"], selection) for row in b.to_pylist()]
        assert found == [row["offset"] for row in everything[3:170] if keeps(row)], selection
        assert is_sealed or not found or selection.columns
