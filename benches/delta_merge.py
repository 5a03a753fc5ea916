"""Compare the lake's own merge and compaction with those of delta-rs, on the same tables, each in a process of its own.

    python benches/delta_merge.py            # prints one line a case: median and worst milliseconds, peak memory, files

Both write the same rows and carry the same progress in the commit; the run fails where the resulting rows differ.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction

from penstock.spark.lake.schemas import LATEST_PER_AGENT, QUEUE_MINUTES, TableDefinition
from penstock.spark.lake.table import LakeTable, Progress

APP = "journal/0"
START = datetime(2026, 3, 1, tzinfo=UTC)
CHANNELS = 50
MERGES = 20
ROWS = 50
FILES = 200
FILE_ROWS = 50_000


def queue_minutes(first: int, end: int, bytes_in: int = 0) -> pa.Table:
    """Rows `first` to `end - 1`: one for each of `CHANNELS` queues, then the next minute."""
    rows = []
    for number in range(first, end):
        minute = START + timedelta(minutes=number // CHANNELS)
        key = {"journal": "journal", "channel": f"queue-{number % CHANNELS}", "minute": minute}
        rows.append({**key, "date": minute.date(), "enqueued": number, "bytes_in": bytes_in, "final": True})
    return pa.Table.from_pylist(rows, QUEUE_MINUTES.schema)


def latest(numbers: range, offset: int = 0) -> pa.Table:
    """The newest envelope of some inboxes, with a payload of 300 bytes."""
    rows = [
        {"journal": "journal", "address": f"agents/a{number}/inbox", "agent": f"a{number}", "offset": offset + number,
         "payload": "x" * 300, "recorded_at": START}
        for number in numbers
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, LATEST_PER_AGENT.schema)


def build(lake: Path, definition: TableDefinition, rows: int) -> LakeTable:
    """A table with so many rows in files as compaction leaves them."""
    table = LakeTable(lake, definition)
    for first in range(0, rows, FILE_ROWS):
        end = min(first + FILE_ROWS, rows)
        data = queue_minutes(first, end) if definition is QUEUE_MINUTES else latest(range(first, end))
        table.append(table.stage(data.to_batches()), {APP: Progress(first, end)})
    return table


def merge_delta_rs(table: LakeTable, rows: pa.Table, end: int, *, is_streamed: bool) -> None:
    """The same merge by delta-rs: pruned by the bounds of the key, with the progress in the commit."""
    definition = table.definition
    on = [f"t.{name} = s.{name}" for name in definition.key]
    if "date" in definition.partition_by:
        days: list[date] = sorted(set(rows.column("date").to_pylist()))
        on += [f"t.date >= '{days[0]}' and t.date <= '{days[-1]}'"]
    properties = CommitProperties(
        custom_metadata={"penstock.operation": "merge"}, app_transactions=[Transaction(APP, end)]
    )
    merger = DeltaTable(str(table.path)).merge(
        rows, " and ".join(on), "s", "t", commit_properties=properties, streamed_exec=is_streamed
    )
    newer = None if definition.newest is None else f"s.{definition.newest} >= t.{definition.newest}"
    merger.when_matched_update_all(newer).when_not_matched_insert_all().execute()


def measure_merges(how: str, definition: TableDefinition, rows: int, lake: Path) -> list[float]:
    table = build(lake, definition, rows)
    took = []
    for number in range(MERGES):
        if definition is QUEUE_MINUTES:  # a batch touches the last minute again and begins the next
            first = rows - ROWS // 2 + number * ROWS // 2
            change = queue_minutes(first, first + ROWS, number)
        else:
            change = latest(range(number * 13, rows, rows // ROWS), offset=rows * (number + 1))
        start = time.perf_counter()
        if how == "ours":
            table.merge(change, {APP: Progress(rows + number, rows + number + 1)})
        else:
            merge_delta_rs(table, change, rows + number + 1, is_streamed=how == "delta-rs streamed")
        took.append(time.perf_counter() - start)
    return took


def measure_compaction(how: str, lake: Path) -> list[float]:
    table = LakeTable(lake, QUEUE_MINUTES)
    for number in range(FILES):
        rows = queue_minutes(number * ROWS, (number + 1) * ROWS)
        table.append(rows, {APP: Progress(number, number + 1)})
    start = time.perf_counter()
    if how == "ours":
        table.compact_files(files_min=2)
    else:
        DeltaTable(str(table.path)).optimize.compact()
    return [time.perf_counter() - start]


def child(case: str, how: str, rows: int, lake: Path) -> None:
    definition = LATEST_PER_AGENT if case == "latest_per_agent" else QUEUE_MINUTES
    if case == "compaction":
        took = measure_compaction(how, lake)
    else:
        took = measure_merges(how, definition, rows, lake)
    table = LakeTable(lake, definition)
    found = table.rows().sort_by([(name, "ascending") for name in definition.key])
    report = {
        "median_ms": round(statistics.median(took) * 1000, 1),
        "worst_ms": round(max(took) * 1000, 1),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "files": len(table.files()),
        "progress": table.progress(APP),
        "bounded_files": sum(bool(file.least) and None not in file.least.values() for file in table.files()),
        "digest": hash_of(found),
    }
    print(json.dumps(report))


def hash_of(rows: pa.Table) -> str:
    from hashlib import sha256

    return sha256(repr(rows.to_pylist()).encode()).hexdigest()[:16]


CASES = [
    ("queue_minutes", 50_000),
    ("queue_minutes", 400_000),
    ("latest_per_agent", 50_000),
    ("compaction", 0),
]


def main() -> None:
    if len(sys.argv) > 1:
        child(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
        return
    for case, rows in CASES:
        digests = set()
        ways = ("ours", "delta-rs") if case == "compaction" else ("ours", "delta-rs", "delta-rs streamed")
        for how in ways:
            with tempfile.TemporaryDirectory() as folder:
                words = [sys.executable, __file__, case, how, str(rows), folder]
                report = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
            digests.add((report.pop("digest"), report.pop("progress")))
            print(
                f"{case:17} {rows:7} {how:18}",
                *(f"{name} {value}" for name, value in report.items()),
                flush=True,
            )
        assert len(digests) == 1, f"the rows or the progress of {case} differ"


if __name__ == "__main__":
    main()
