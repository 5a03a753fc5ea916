"""Compare the lake's own merge and compaction with those of delta-rs, on the same tables, each in a process of its own.

    python benches/delta_merge.py            # prints one line a case: median milliseconds, CPU, peak memory, files
    python benches/delta_merge.py conversations   # only the cases of this table
    python benches/delta_merge.py conversations ours 10000000 FOLDER   # one case, as JSON
    python benches/delta_merge.py recent ours 10000000 FOLDER   # what a batch does: look 50 recent rows up, then merge them

`recent` uses the table in FOLDER again if there is one, so that small and large tables can be measured in turn.

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

from penstock.spark.lake.schemas import CONVERSATIONS, LATEST_PER_AGENT, QUEUE_MINUTES, TableDefinition
from penstock.spark.lake.table import LakeTable, Progress

APP = "journal/0"
START = datetime(2026, 3, 1, tzinfo=UTC)
CHANNELS = 50
MERGES = 10
WARM = 5
ROWS = 50
FILES = 200
FILE_ROWS = 50_000
CHECKED_ROWS_MAX = 1_000_000


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


def conversations(numbers: list[int], settled: int = 0) -> pa.Table:
    """Conversations with random names, a tenth of a second apart."""
    starts = [START + timedelta(milliseconds=100 * number) for number in numbers]
    columns = {
        "journal": ["journal"] * len(numbers),
        "cluster": ["journal"] * len(numbers),
        "corr": [f"talk-{number * 0x9E3779B97F4A7C15 % 2**64:016x}" for number in numbers],
        "root_id": [f"e-{number}" for number in numbers],
        "started_at": starts,
        "last_at": [start + timedelta(seconds=30) for start in starts],
        "settled": [settled] * len(numbers),
        "agents": [["a1", "a2", "a3"]] * len(numbers),
        "critical_path": [[f"e-{number}", f"f-{number}"] for number in numbers],
        "final": [True] * len(numbers),
    }
    empty = {name: [None] * len(numbers) for name in CONVERSATIONS.schema.names}
    return pa.Table.from_pydict(empty | columns, CONVERSATIONS.schema)


def rows_of(definition: TableDefinition, first: int, end: int) -> pa.Table:
    if definition is CONVERSATIONS:
        return conversations(list(range(first, end)))
    return queue_minutes(first, end) if definition is QUEUE_MINUTES else latest(range(first, end))


def build(lake: Path, definition: TableDefinition, rows: int) -> LakeTable:
    """A table with so many rows in files as compaction leaves them."""
    table = LakeTable(lake, definition)
    for first in range(0, rows, FILE_ROWS):
        end = min(first + FILE_ROWS, rows)
        table.append(table.stage(rows_of(definition, first, end).to_batches()), {APP: Progress(first, end)})
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


def measure_merges(how: str, definition: TableDefinition, rows: int, lake: Path) -> tuple[list[float], list[float]]:
    table = build(lake, definition, rows)
    took, cpu = [], []
    for number in range(MERGES):
        if definition is QUEUE_MINUTES:  # a batch touches the last minute again and begins the next
            first = rows - ROWS // 2 + number * ROWS // 2
            change = queue_minutes(first, first + ROWS, number)
        elif definition is CONVERSATIONS:  # new ones, ones of the last seconds, and an old one that goes on
            first = rows - ROWS // 2 + number * ROWS // 2
            change = conversations([rows // MERGES * number, *range(first, first + ROWS - 1)], number)
        else:
            change = latest(range(number * 13, rows, rows // ROWS), offset=rows * (number + 1))
        start, start_cpu = time.perf_counter(), time.process_time()
        if how == "ours":
            table.merge(change, {APP: Progress(rows + number, rows + number + 1)})
        else:
            merge_delta_rs(table, change, rows + number + 1, is_streamed=how == "delta-rs streamed")
        took.append(time.perf_counter() - start)
        cpu.append(time.process_time() - start_cpu)
    return took, cpu


def measure_recent(rows: int, lake: Path) -> tuple[list[float], list[float]]:
    """Look up and merge conversations of the last seconds, half of them new, as each batch of the pipeline does."""
    table = LakeTable(lake, CONVERSATIONS) if (lake / "conversations").exists() else build(lake, CONVERSATIONS, rows)
    done = table.progress(APP) or 0
    took, cpu = [], []
    for number in range(WARM + 3 * MERGES):
        first = rows + (done - rows + number) * ROWS // 2 - ROWS // 2
        change = conversations(list(range(first, first + ROWS)), number)
        start, start_cpu = time.perf_counter(), time.process_time()
        table.rows_with({"corr": change.column("corr").combine_chunks()}, ["cluster", "started_at"])
        table.merge(change, {APP: Progress(done + number, done + number + 1)})
        took.append(time.perf_counter() - start)
        cpu.append(time.process_time() - start_cpu)
    return took[WARM:], cpu[WARM:]


def measure_compaction(how: str, lake: Path) -> tuple[list[float], list[float]]:
    table = LakeTable(lake, QUEUE_MINUTES)
    for number in range(FILES):
        rows = queue_minutes(number * ROWS, (number + 1) * ROWS)
        table.append(rows, {APP: Progress(number, number + 1)})
    start, start_cpu = time.perf_counter(), time.process_time()
    if how == "ours":
        table.compact_files(files_min=2)
    else:
        DeltaTable(str(table.path)).optimize.compact()
    return [time.perf_counter() - start], [time.process_time() - start_cpu]


def child(case: str, how: str, rows: int, lake: Path) -> None:
    definition = {"latest_per_agent": LATEST_PER_AGENT, "conversations": CONVERSATIONS, "recent": CONVERSATIONS}.get(
        case, QUEUE_MINUTES
    )
    if case == "compaction":
        took, cpu = measure_compaction(how, lake)
    elif case == "recent":
        took, cpu = measure_recent(rows, lake)
    else:
        took, cpu = measure_merges(how, definition, rows, lake)
    table = LakeTable(lake, definition)
    report = {
        "median_ms": round(statistics.median(took) * 1000, 1),
        "cpu_ms": round(statistics.median(cpu) * 1000, 1),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "files": len(table.files()),
        "progress": table.progress(APP),
        "bounded_files": sum(bool(file.least) and None not in file.least.values() for file in table.files()),
        "digest": hash_of(table) if rows <= CHECKED_ROWS_MAX else "",
    }
    print(json.dumps(report))


def hash_of(table: LakeTable) -> str:
    from hashlib import sha256

    key = table.definition.key
    names = [*key, "last_at", "settled"] if table.definition is CONVERSATIONS else None
    found = table.rows(names).sort_by([(name, "ascending") for name in key])
    return sha256(repr(found.to_pylist()).encode()).hexdigest()[:16]


CASES = [
    ("queue_minutes", 50_000),
    ("queue_minutes", 400_000),
    ("latest_per_agent", 50_000),
    ("conversations", 100_000),
    ("conversations", 1_000_000),
    ("compaction", 0),
]


def main() -> None:
    if len(sys.argv) > 2:
        child(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
        return
    for case, rows in [one for one in CASES if sys.argv[1:] in ([], [one[0]])]:
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
