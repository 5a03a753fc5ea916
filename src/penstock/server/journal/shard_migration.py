"""Divide the journal of a data directory into shards, and join shards into one journal, while no server runs.

The state moves as live files: unsettled envelopes with their numbers, attempts and delays, remembered ids, counters, the view and the rules.
History is sealed first and stays in the table `events` under the old ids of its journals. New journals begin behind the offsets of the old
ones, so a number of an old row never names a new one. Spaces, the relay and staged batches stay in `DIR/journal`.

Both ways can be repeated after a crash. New journals are written aside; one rename makes them valid, and what follows is moved by later
renames that a second run finishes. The old journals are kept, renamed, until the operator deletes them.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from penstock.core.clock import Now
from penstock.core.errors import PenstockError, Refusal
from penstock.core.placement import SHARDS, shard_of, stream_key
from penstock.core.rows import Row
from penstock.journal.disk import RealDisk, sync_path
from penstock.journal.log import RESERVE
from penstock.journal.open_and_repair import (
    IDENTITY,
    WATERMARK,
    Identity,
    encode_watermark,
    read_identity,
    replace_file,
    segments,
)
from penstock.journal.seal import write_live
from penstock.journal.segments import KIND_LIVE, SHARD, Header
from penstock.server.config.load import Config, ConfigError, load, policy_for
from penstock.server.engine.machines import Machines, make_machine
from penstock.server.engine.schedulers import real_now
from penstock.server.journal.lifecycle import JournalLifecycle, LockedError, seal_directory
from penstock.server.journal.seal_process import SHARDS_DIR, shard_config, shard_dir

PART = "shards.part"
"""Shards that are being written."""
HOUSE = "house"
"""Among new shards: the journal of what is in no shard, until it is in its place."""
JOINED, JOINED_PART = "journal.joined", "journal.joined.part"
FLOOR_CHANNEL = "system/numbers"
"""Keeps the lowest free number in a shard without streams."""


class MigrationReport(msgspec.Struct):
    """What was moved, or would be."""

    data: str
    envelopes: int = 0
    streams: int = 0
    ids: int = 0
    """Settled ids that are remembered."""
    rules: int = 0
    shards: dict[int, int] = {}
    """Envelopes of each shard that has some."""
    kept: list[str] = []
    """Old journals, which can be deleted."""


def is_interrupted(data: Path) -> str | None:
    """The command that finishes what was interrupted."""
    if (data / SHARDS_DIR / HOUSE).is_dir():
        return "import"
    return "export" if (data / JOINED).is_dir() else None


def _refuse(message: str, hint: str) -> PenstockError:
    return PenstockError(Refusal("InvalidRequest", message, hint=hint))


def _load(path: Path | None) -> Config:
    try:
        return load(path, os.environ)
    except ConfigError as error:
        raise PenstockError(Refusal("InvalidRequest", "; ".join(error.errors))) from None


@contextmanager
def _opened(data: Path, config: Config) -> Iterator[tuple[Machines, int]]:
    """The state of a journal and its end, locked meanwhile."""
    machine = make_machine(config.limits, lambda name: policy_for(config, name), os.urandom)
    machines = Machines(machine)
    archive = JournalLifecycle(data, config)
    try:
        archive.recover(machines, real_now())
    except LockedError as error:
        message, _, hint = str(error).partition("\nhint: ")
        raise PenstockError(Refusal("JournalUnavailable", message, hint=hint or None)) from None
    try:
        assert archive._opened is not None
        yield machines, archive._opened.position.offset
    finally:
        archive._disk.unlock()


def _write(journal: Path, rows: Iterable[Row], first: int, now: Now) -> None:
    """A new journal that begins with this state."""
    journal.mkdir(mode=0o700, parents=True)
    disk = RealDisk(journal)
    identity = Identity(secrets.token_hex(16))
    write_live(disk, Header(identity.id, SHARD, 0, first, KIND_LIVE), iter(rows), now.wall_us)
    replace_file(disk, WATERMARK, [encode_watermark(first, 0)])
    replace_file(disk, IDENTITY, [msgspec.json.encode(identity)])


def _count(report: MigrationReport, rows: list[Row]) -> int:
    report.streams += sum(row.event == "gauge" and row.channel != FLOOR_CHANNEL for row in rows)
    report.ids += sum(row.event == "seen" for row in rows)
    envelopes = sum(row.event == "enqueue" for row in rows)
    report.envelopes += envelopes
    return envelopes


def _is_rule(row: Row) -> bool:
    return row.door == "server" and row.meta is not None and '"trigger"' in row.meta


def divide(data: Path, config_path: Path | None = None, *, is_dry: bool = False) -> MigrationReport:
    """Divide the journal of a directory into shards."""
    data = data.absolute()
    config = _load(config_path)
    if is_interrupted(data) == "import":
        return MigrationReport(str(data), kept=_finish_divide(data))
    if (data / SHARDS_DIR).is_dir():
        raise _refuse(f"`{data}` is divided already", "start it with `penstock up --cells N`")
    if not (data / "journal" / IDENTITY).exists():
        raise _refuse(f"`{data}` has no journal", "name the data directory of a server")
    if not is_dry:
        seal_directory(data, config_path)
    report = MigrationReport(str(data))
    now = real_now()
    with _opened(data, config) as (machines, end):
        parts, house = _parts(machines, now)
        for shard, rows in parts.items():
            if envelopes := _count(report, rows):
                report.shards[shard] = envelopes
        report.rules = sum(map(_is_rule, parts[0]))
        if is_dry:
            return report
        part = data / PART
        shutil.rmtree(part, ignore_errors=True)
        for shard, rows in parts.items():
            _write(part / str(shard) / "journal", rows, max(end, 1), now)
        _write(part / HOUSE / "journal", house, max(end, 1), now)
        _sync_tree(part)
        part.rename(data / SHARDS_DIR)
        sync_path(data)
    report.kept = _finish_divide(data)
    return report


def _parts(machines: Machines, now: Now) -> tuple[dict[int, list[Row]], list[Row]]:
    """The rows of each shard, and those of none."""
    parts: dict[int, list[Row]] = {shard: [] for shard in range(SHARDS)}
    house: list[Row] = []
    for row in machines.snapshot(now):
        if _is_rule(row):
            for rows in parts.values():
                rows.append(row)
        elif row.door == "courier":
            parts[shard_of(stream_key(row.channel))].append(row)
        else:
            house.append(row)
    floor = machines.queue.seq_floor
    for rows in parts.values() if floor else ():
        meta = msgspec.json.encode({"counters": {}, "floor": floor}).decode()
        rows.insert(0, Row(event="gauge", channel=FLOOR_CHANNEL, meta=meta))
    return parts, house


def _finish_divide(data: Path) -> list[str]:
    """Put the journal of what is in no shard into its place."""
    house = data / SHARDS_DIR / HOUSE
    if (house / "journal").is_dir():
        if (data / "journal").is_dir():
            _retire(data / "journal")
        (house / "journal").rename(data / "journal")
        sync_path(data)
    with suppress(FileNotFoundError):
        house.rmdir()
    return _retired(data)


def _retire(journal: Path) -> None:
    """Rename an old journal by its id."""
    identity = read_identity(RealDisk(journal))
    (journal / RESERVE).unlink(missing_ok=True)
    journal.rename(journal.parent / f"journal-{identity.id if identity else 'unknown'}")
    sync_path(journal.parent)


def _retired(data: Path) -> list[str]:
    return sorted(str(path) for pattern in ("journal-*", "shards-*") for path in data.glob(pattern))


def join(data: Path, config_path: Path | None = None, *, is_dry: bool = False) -> MigrationReport:
    """Join the shards of a directory into one journal."""
    data = data.absolute()
    config = _load(config_path)
    if is_interrupted(data) == "export":
        return MigrationReport(str(data), kept=_finish_join(data))
    if is_interrupted(data):
        raise _refuse(f"the import of `{data}` was interrupted", f"`penstock cluster import {data}` finishes it")
    if not (data / SHARDS_DIR).is_dir():
        raise _refuse(f"`{data}` is not divided", "it has one journal already")
    config = shard_config(config, data)
    report = MigrationReport(str(data))
    folders = [shard_dir(data, shard) for shard in range(SHARDS)]
    folders = [folder for folder in folders if (folder / "journal" / IDENTITY).exists()]
    now, ends = real_now(), [1]
    known: set[str | None] = set()
    if not is_dry:
        _seal(data, config_path)
    with _opened(data, config) as (house, end):  # locked all the time: no server starts meanwhile
        ends.append(end)
        rows = list(house.snapshot(now))
        for folder in folders:
            if not is_dry:
                _seal(folder, config_path)
            with _opened(folder, config) as (machines, end):
                ends.append(end)
                found = list(machines.snapshot(now))
            if envelopes := _count(report, found):
                report.shards[int(folder.name)] = envelopes
            # Every shard has every rule.
            rows += [row for row in found if not (_is_rule(row) and row.meta in known)]
            known |= {row.meta for row in found if _is_rule(row)}
        report.rules = len(known)
        if not is_dry:
            _write_joined(data, rows, max(ends), now)
    if not is_dry:
        report.kept = _finish_join(data)
    return report


def _seal(folder: Path, config_path: Path | None) -> None:
    """Move the history of a journal to the table, if it has any."""
    if segments(RealDisk(folder / "journal")):
        seal_directory(folder, config_path)


def _write_joined(data: Path, rows: list[Row], first: int, now: Now) -> None:
    part = data / JOINED_PART
    shutil.rmtree(part, ignore_errors=True)
    # Rules and batches first: a live file begins with them.
    rows.sort(key=lambda row: row.door == "courier")
    _write(part, [row for row in rows if row.channel != FLOOR_CHANNEL], first, now)
    _sync_tree(part)
    part.rename(data / JOINED)
    sync_path(data)


def _finish_join(data: Path) -> list[str]:
    shards = data / SHARDS_DIR
    if shards.is_dir():
        for reserve in shards.glob(f"*/journal/{RESERVE}"):
            reserve.unlink()
        identity = read_identity(RealDisk(data / JOINED))
        shards.rename(data / f"shards-{identity.id if identity else 'unknown'}")
        sync_path(data)
    if (data / "journal").is_dir():
        _retire(data / "journal")
    (data / JOINED).rename(data / "journal")
    sync_path(data)
    return _retired(data)


def _sync_tree(top: Path) -> None:
    """Make the names of new files durable."""
    for folder, _, _ in os.walk(top, topdown=False):
        sync_path(Path(folder))
