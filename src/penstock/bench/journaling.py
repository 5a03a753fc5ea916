"""`penstock bench journal`: append with a sync per commit, read back, recover; SQLite beside it in the same run.

In process and without a server: what is measured is the journal. SQLite is given its fastest safe setting (WAL, full
synchronisation, prepared statements, the same number of rows a transaction).
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from penstock.bench import commands, result
from penstock.bench.result import Cell, Outcome, Round
from penstock.bench.template import envelope
from penstock.cli.options import PLAIN, Output
from penstock.core.clock import Now
from penstock.core.limits import Limits
from penstock.core.queue.channel import Channel
from penstock.core.queue.policy import Policy
from penstock.core.records import Record
from penstock.journal.disk import RealDisk
from penstock.journal.log import Log
from penstock.journal.open_and_repair import Opened, segments
from penstock.journal.parquet_table import EventsTable
from penstock.journal.reader import JournalReader
from penstock.journal.retention import Retention
from penstock.journal.seal import Sealer
from penstock.server.engine.machines import make_machine

STREAM = "bench/journal"
DEPTH = 100_000_000


def journal(
    *,
    rounds: Annotated[int, Parameter(help="Rounds a cell; the two take turns, medians are shown.")] = 3,
    count: Annotated[int, Parameter(help="Records a round.")] = 200_000,
    commit: Annotated[str, Parameter(help="Records a commit, several with commas.")] = "256,2048",
    size: Annotated[int, Parameter(help="Bytes of a record.")] = 300,
    live: Annotated[int, Parameter(help="Live records of the recovery cell; 0 leaves it out.")] = 200_000,
    output: Output = PLAIN,
) -> int:
    """Measure the journal: records appended a second with a sync per commit, read back, and recovered.

    For example:

      penstock bench journal
      penstock bench journal --live 1000000 --json
    """
    commits = [int(word) for word in commit.split(",")]
    options: dict[str, object] = {
        "rounds": rounds,
        "count": count,
        "commit": commits,
        "size": size,
        "live": live,
    }
    outcome = result.begin("journal", options)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        for group in commits:
            _measure_group(outcome, Path(folder), rounds, count, group, size)
        if live:
            done = _recover(Path(folder) / "live", live, size)
            _add(outcome, f"recover, {live:,} live records", "penstock", "one at a time", [done])
    return commands.show(outcome, output)


def _measure_group(outcome: Outcome, folder: Path, rounds: int, count: int, group: int, size: int) -> None:
    appended: dict[str, list[Round]] = {"penstock": [], "sqlite": []}
    read: dict[str, list[Round]] = {"penstock": [], "penstock, sealed": [], "sqlite": []}
    for number in range(rounds):
        place = folder / f"{group}-{number}"
        appended["penstock"].append(_append(place, count, group, size))
        read["penstock"].append(_timed(count, lambda: _read_back(place)))  # noqa: B023  # called at once
        _seal(place)
        read["penstock, sealed"].append(_timed(count, lambda: _read_back(place)))  # noqa: B023  # as above
        appended["sqlite"].append(_append_sqlite(place / "peer.db", count, group, size))
        read["sqlite"].append(_timed(count, lambda: _read_sqlite(place / "peer.db")))  # noqa: B023  # as above
    words = f"{group} records a commit, synced"
    ours = [_add(outcome, f"append, {words}", name, words, found) for name, found in appended.items()]
    ours[1].ratio = _ratio(ours[0], ours[1])
    cells = [_add(outcome, f"read back, {words}", name, "in order", found) for name, found in read.items()]
    cells[2].ratio = _ratio(cells[1], cells[2])


def _ratio(ours: Cell, theirs: Cell) -> float:
    speeds = [cell.middle(lambda one: one.per_second) or 0.0 for cell in (ours, theirs)]
    return round(speeds[0] / speeds[1], 3)


def _add(outcome: Outcome, workload: str, target: str, batched: str, rounds: list[Round]) -> Cell:
    cell = Cell(workload, target, "in process", batched, rounds)
    outcome.cells.append(cell)
    return cell


def _timed(count: int, work: Callable[[], int]) -> Round:
    begun = time.perf_counter()
    done = work()
    seconds = time.perf_counter() - begun
    if done != count:
        raise SystemExit(f"error: {done} records were found and {count} written")
    return Round(count, seconds, count / seconds)


def _records(count: int, size: int) -> list[Record]:
    channel = Channel(STREAM, Policy(max_depth=DEPTH))
    body = envelope(STREAM, size, "bench") % (0, 0)
    made = []
    for number in range(count):
        record = Record(f"bench-{number}", "bench.load", body, "bench")
        record.channel, record.seq = channel, number + 1
        made.append(record)
    return made


def _open(place: Path) -> tuple[Opened, Log]:
    opened = Opened(RealDisk(place / "journal"), fresh_id=os.urandom(16).hex(), sync="commit")
    for _ in opened.live_rows():
        pass
    for _ in opened.tail_rows():
        pass
    return opened, opened.log()


def _append(place: Path, count: int, group: int, size: int) -> Round:
    opened, log = _open(place)
    records = _records(count, size)

    def work() -> int:
        for start in range(0, count, group):
            log.commit([records[start : start + group]], time.time_ns() // 1000)
        return log.position.offset

    done = _timed(count, work)
    log.rotate()
    opened.publish()
    log.close()
    opened.end()
    return done


def _read_back(place: Path) -> int:
    return sum(batch.num_rows for batch in JournalReader(place).batches(0, DEPTH))


def _seal(place: Path) -> None:
    disk = RealDisk(place / "journal")
    sealer = Sealer(
        disk,
        place / "lake",
        lambda: make_machine(Limits(), lambda _: Policy(max_depth=DEPTH), os.urandom),
        retention=Retention(0, 0, 0, 0),
    )
    sealer.seal(time.time_ns() // 1000)
    files = EventsTable(place / "lake").files()
    rest = [segment for segment in segments(disk) if segment.limit is not None]
    if not files or rest:
        raise SystemExit("error: not everything was sealed")


def _append_sqlite(path: Path, count: int, group: int, size: int) -> Round:
    peer = sqlite3.connect(path, isolation_level=None)
    peer.execute("PRAGMA journal_mode=WAL")
    peer.execute("PRAGMA synchronous=FULL")
    peer.execute(
        "CREATE TABLE events (offset INTEGER PRIMARY KEY, at INTEGER, channel TEXT, id TEXT, kind TEXT, body BLOB)"
    )
    rows = [(record.channel.name, record.id, record.kind, record.body) for record in _records(count, size)]

    def work() -> int:
        for start in range(0, count, group):
            now_us = time.time_ns() // 1000
            peer.execute("BEGIN")
            peer.executemany(
                "INSERT INTO events (at, channel, id, kind, body) VALUES (?, ?, ?, ?, ?)",
                [(now_us, *row) for row in rows[start : start + group]],
            )
            peer.execute("COMMIT")
        return int(peer.execute("SELECT count(*) FROM events").fetchone()[0])

    done = _timed(count, work)
    peer.close()
    return done


def _read_sqlite(path: Path) -> int:
    peer = sqlite3.connect(path)
    found = sum(1 for _ in peer.execute("SELECT offset, at, channel, id, kind, body FROM events"))
    peer.close()
    return found


def _recover(place: Path, live: int, size: int) -> Round:
    """A machine rebuilt from a live file of that many records."""
    _append(place, live, 2048, size)
    _seal(place)
    machine = make_machine(Limits(), lambda _: Policy(max_depth=DEPTH), os.urandom)
    now = Now(time.monotonic_ns() // 1000, time.time_ns() // 1000)
    opened = Opened(RealDisk(place / "journal"), fresh_id="", sync="commit")

    def work() -> int:
        for row in opened.live_rows():
            machine.resume(now, row)
        for row in opened.tail_rows():
            machine.restore(now, row)
        machine.recovered(now)
        return machine.live

    return _timed(live, work)
