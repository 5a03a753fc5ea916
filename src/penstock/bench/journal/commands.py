"""`penstock bench journal`: append with a sync per commit, read back and recover; SQLite with WAL does the same."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from penstock.bench.harness.load import import_role
from penstock.bench.harness.processes import ProcessGroup
from penstock.bench.harness.result import BenchError, BenchResult, BenchRound
from penstock.bench.queue.commands import Rounds
from penstock.bench.queue.envelopes import envelope
from penstock.cli.options import PLAIN, Output
from penstock.core.clock import Now
from penstock.core.limits import Limits
from penstock.core.queue.channel import Channel
from penstock.core.queue.machine import QueueMachine
from penstock.core.queue.policy import Policy
from penstock.core.records import Record
from penstock.journal.disk import RealDisk
from penstock.journal.log import Log
from penstock.journal.open_and_repair import Opened
from penstock.journal.reader import JournalReader
from penstock.server.engine.machines import make_machine
from penstock.testing.history import DEPTH, open_journal, seal

STREAM = "bench/journal"
SEALED = "penstock, sealed"


def journal(
    *,
    rounds: Rounds = 3,
    count: Annotated[int, Parameter(help="Records per round.")] = 200_000,
    commit: Annotated[str, Parameter(help="Records per commit, several with commas.")] = "256,2048",
    size: Annotated[int, Parameter(help="Bytes of a record.")] = 300,
    live: Annotated[int, Parameter(help="Live records of the recovery cell; 0 leaves it out.")] = 200_000,
    output: Output = PLAIN,
) -> int:
    """Measure the journal: records appended a second with a sync per commit, read back, and recovered.

    For example:

      penstock bench journal --live 1000000 --json
    """
    result = BenchResult.begin("journal", locals())
    commits = result.parse_numbers("commit")
    if import_role("sqlite_events") is None:
        result.notes.append("no peer: the client of SQLite is in the source repository only")

    def run(group: ProcessGroup) -> None:
        for records in commits:
            _measure(result, group.folder, rounds, count, records, size)
        if live:
            done = _recover(group.folder / "live", live, size)
            result.add(f"recover, {live:,} live records", "one at a time", [done], client="in process")

    return ProcessGroup(result).run(run, output)


def _measure(result: BenchResult, folder: Path, rounds: int, count: int, group: int, size: int) -> None:
    words, sqlite = f"{group} records a commit, synced", import_role("sqlite_events")
    found: dict[tuple[str, str], list[BenchRound]] = {}
    for number in range(rounds):
        data = folder / f"{group}-{number}"
        done = {("append", "penstock"): _append(data, count, group, size)}
        peer = sqlite.SqliteEvents(data / "peer.db") if sqlite else None
        if peer:
            rows = [(one.channel.name, one.id, one.kind, one.body) for one in _make_records(count, size)]
            done["append", "sqlite"] = _timed(count, partial(peer.append, rows, group))
        done["read back", "penstock"] = _timed(count, partial(_read_back, data))
        if seal(data, _make_machine) != count:
            raise BenchError(f"not all of {count} records were sealed")
        done["read back", SEALED] = _timed(count, partial(_read_back, data))
        if peer:
            done["read back", "sqlite"] = _timed(count, peer.read)
        for key, one in done.items():
            found.setdefault(key, []).append(one)
    for (kind, target), one_rounds in found.items():
        batched = words if kind == "append" else "in order"
        cell = result.add(f"{kind}, {words}", batched, one_rounds, target, "in process")
        if target == "sqlite":  # compared with the cell before: our append, our reading of sealed rows
            cell.compare(result.cells[-2])


def _make_machine() -> QueueMachine:
    return make_machine(Limits(), lambda _: Policy(max_depth=DEPTH), os.urandom)


def _timed(count: int, work: Callable[[], int]) -> BenchRound:
    begun = time.perf_counter()
    done = work()
    seconds = time.perf_counter() - begun
    if done != count:
        raise BenchError(f"{done} records were found and {count} written")
    return BenchRound.timed(count, seconds)


def _make_records(count: int, size: int) -> list[Record]:
    channel = Channel(STREAM, Policy(max_depth=DEPTH))
    body = envelope(STREAM, size, "bench") % (0, 0)
    made = [Record(f"bench-{number}", "bench.load", body, "bench") for number in range(count)]
    for seq, record in enumerate(made, 1):
        record.channel, record.seq = channel, seq
    return made


def _append(data: Path, count: int, group: int, size: int) -> BenchRound:
    records = _make_records(count, size)

    def append(log: Log) -> int:
        for start in range(0, count, group):
            log.commit([records[start : start + group]], time.time_ns() // 1000)
        return log.position.offset

    return open_journal(data, lambda log: _timed(count, partial(append, log)), sync="commit")


def _read_back(data: Path) -> int:
    return sum(batch.num_rows for batch in JournalReader(data).batches(0, DEPTH))


def _recover(data: Path, live: int, size: int) -> BenchRound:
    """A machine rebuilt from a live file of that many records."""
    _append(data, live, 2048, size)
    seal(data, _make_machine)
    machine = _make_machine()
    now = Now(time.monotonic_ns() // 1000, time.time_ns() // 1000)
    opened = Opened(RealDisk(data / "journal"), fresh_id="", sync="commit")

    def rebuild() -> int:
        for row in opened.live_rows():
            machine.resume(now, row)
        for row in opened.tail_rows():
            machine.restore(now, row)
        machine.recovered(now)
        return machine.live

    return _timed(live, rebuild)
