"""A consistent copy of a data directory, beside a server that writes it or without one.

What must hold: nothing in the copy may be ahead of its journal. So what follows from the journal is copied before it: tokens
and other files, the pipeline's tables (each with its log before its data, because a log speaks of files that are there already),
then sealed history. Sealed history and segments are then copied under the lock of the sealer, which would otherwise move rows from one
to the other meanwhile; the large part of sealed history went before, so the lock is held for a moment. Last comes the journal, cut at the
watermark of that moment: every row that was committed is in, none that was not.

Never in it: `run`, with the operator's token; locks, the reserve, drafts, checkpoints of Spark, which can be lost.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote

import msgspec
from deltalake import DeltaTable

from penstock.client.address import read_endpoints
from penstock.core.errors import PenstockError, Refusal
from penstock.journal.delta_log import DeltaLog
from penstock.journal.disk import RealDisk
from penstock.journal.named_readers import PREFIX as READER_PREFIX
from penstock.journal.open_and_repair import (
    IDENTITY,
    LIVE_PREFIX,
    WATERMARK,
    Identity,
    Segment,
    encode_watermark,
    named,
    read_identity,
    read_watermark,
    segments,
)
from penstock.journal.parquet_table import TABLE as EVENTS
from penstock.journal.segments import DamageError, Scan
from penstock.server.ops.backup_format import BackupManifest, BackupWriter, open_target, refused

Progress = Callable[[int, int], None]
WATERMARK_TRIES = 100
_DRAFT = re.compile(r"\..+\.(parquet|[0-9a-f]{16})")
"""Names under which tables and files with secrets are written before they count."""
LEFT_OUT = ("journal", "lake", "run")
"""Directories that are not copied file by file; `run` not at all."""


def backup(data: Path, target: Path, version: str, progress: Progress | None = None) -> BackupManifest:
    """Copy a data directory; the manifest of the copy."""
    if not (data / "journal" / IDENTITY).is_file():
        raise refused(f"there is no journal in `{data}`", "name the data directory of a server with --data")
    if target.resolve().is_relative_to(data.resolve()):
        raise refused(
            f"`{target}` is in the directory that is copied", "choose a place elsewhere, on another disk"
        )
    place = open_target(target)
    try:
        return _Backup(data, BackupWriter(place), version, progress).run()
    except BaseException as error:
        place.abandon()
        if isinstance(error, OSError):
            message = f"the copy failed: {error.strerror or error}"
            hint = "look after space and rights, here and there; nothing was left behind"
            raise refused(message, hint) from None
        if isinstance(error, DamageError):
            raise PenstockError(Refusal("JournalDamaged", str(error))) from None
        raise


class _Backup:
    def __init__(self, data: Path, copy: BackupWriter, version: str, progress: Progress | None) -> None:
        self._data = data
        self._copy = copy
        self._version = version
        self._progress = progress
        self._total = sum(_sizes(data)) if progress is not None else 0

    def run(self) -> BackupManifest:
        """In the order that keeps the copy whole."""
        made_at = datetime.fromtimestamp(int(time.time()), UTC).isoformat()
        for path in _walk(self._data, LEFT_OUT):
            self._file(path)
        for table in self._tables():
            self._table(table)
        sealed = self._sealed_files()
        for path in sealed:
            self._file(path)
        identity, end = self._journal(sealed)
        manifest = BackupManifest(self._version, identity.id, identity.epoch, end, made_at, self._copy.files)
        self._copy.finish(manifest)
        self._show(is_over=True)
        return manifest

    def _name(self, path: Path) -> str:
        return path.relative_to(self._data).as_posix()

    def _file(self, path: Path) -> bool:
        found = self._copy.file(self._name(path), path)
        self._show()
        return found

    def _show(self, *, is_over: bool = False) -> None:
        if self._progress is not None:
            total = max(self._total, self._copy.bytes)
            self._progress(total if is_over else min(self._copy.bytes, total - 1), total)

    def _tables(self) -> list[Path]:
        lake = self._data / "lake"
        entries = sorted(lake.iterdir()) if lake.is_dir() else []
        return [path for path in entries if path.name != EVENTS and (path / "_delta_log").is_dir()]

    def _log_files(self, table: Path) -> list[Path]:
        """The files of a table's log; the one that names a checkpoint first, for the checkpoint is there already."""
        log = table / "_delta_log"
        last = log / "_last_checkpoint"
        return [last, *sorted(path for path in log.iterdir() if path != last and _is_whole(path))]

    def _table(self, table: Path) -> None:
        """A table that the pipeline may be writing."""
        for path in self._log_files(table):
            self._file(path)
        copied = [name for name in self._copy.files if name.startswith(self._name(table) + "/_delta_log/")]
        numbers = [int(stem) for name in copied if (stem := Path(name).stem).isdecimal()]
        if not numbers:  # a table that is just being made
            return
        for path in _walk(table, ("_delta_log",)):
            self._file(path)
        try:
            read = DeltaTable(str(table), version=max(numbers))
            needed = read.get_add_actions(flatten=True).column("path").to_pylist()
        except Exception as error:  # whatever the Delta library says: the table is not what its log said
            raise self._changed(table) from error
        if any(f"{self._name(table)}/{unquote(path)}" not in self._copy.files for path in needed):
            raise self._changed(table)

    def _changed(self, table: Path) -> PenstockError:
        hint = "run it again when nothing rebuilds or vacuums the tables; `penstock lake ls` shows them"
        return refused(f"the table `{table.name}` was changed while it was copied", hint)

    def _sealed_files(self) -> list[Path]:
        events = self._data / "lake" / EVENTS
        return list(_walk(events, ("_delta_log",))) if events.is_dir() else []

    def _journal(self, copied: list[Path]) -> tuple[Identity, int]:
        """Sealed history as it is now, then the journal up to its watermark."""
        folder = self._data / "journal"
        disk = RealDisk(folder)
        sealing = RealDisk(folder)
        sealing.lock("sealing", waits=True)  # a start waits for it too, before it touches anything
        try:
            is_written = self._is_written(folder)
            now = self._sealed_files()
            for path in now:
                if self._name(path) not in self._copy.files:
                    self._file(path)
            kept = set(now)
            for path in copied:
                if path not in kept:
                    self._copy.drop(self._name(path))
            if DeltaLog(self._data / "lake" / EVENTS).entries():
                for path in self._log_files(self._data / "lake" / EVENTS):
                    self._file(path)
            # Before the watermark is read: no reader is then ahead of the copy.
            for name in disk.names():
                if name.startswith(READER_PREFIX) and name.endswith(".json"):
                    self._file(folder / name)
            identity = read_identity(disk)
            assert identity is not None
            mark = self._mark(disk)
            if is_written:
                self._written(disk, identity, *mark)
                return identity, mark[0]
            return identity, self._quiet(disk, identity)
        finally:
            sealing.unlock()

    def _is_written(self, folder: Path) -> bool:
        """Whether a server writes the journal; one that is just starting has not said how far it is."""
        writing = RealDisk(folder)
        if writing.lock():
            writing.unlock()
            return False
        if read_endpoints(self._data / "run" / "endpoints.json") is None:
            message = f"a process that opens no doors yet has `{self._data}`"
            hint = "try again when the server is up, or the command that has it is over"
            raise PenstockError(Refusal("JournalUnavailable", message, hint=hint))
        return True

    def _mark(self, disk: RealDisk) -> tuple[int, int]:
        for _ in range(WATERMARK_TRIES):
            mark = read_watermark(disk)
            if mark is not None:
                return mark
        hint = "start a server on it once, which mends that"
        raise refused(f"`{self._data}` has no watermark that can be read", hint)

    def _written(self, disk: RealDisk, identity: Identity, end: int, epoch: int) -> None:
        """The journal of a server at work: what is committed, and nothing of the commit under way."""
        for name in named(disk, LIVE_PREFIX):
            self._file(disk.directory / name)
        found = [segment for segment in segments(disk) if segment.first <= end]
        for segment in found:
            if segment is found[-1]:
                self._tail(disk, segment, end)
            else:
                self._file(disk.directory / segment.name)
        self._copy.data(f"journal/{WATERMARK}", encode_watermark(end, epoch))
        # The copy is cut at a commit, so nothing of it can have been lost.
        clean = msgspec.structs.replace(identity, is_clean=True)
        self._copy.data(f"journal/{IDENTITY}", msgspec.json.encode(clean))

    def _tail(self, disk: RealDisk, segment: Segment, end: int) -> None:
        """The segment that holds the last committed row, up to the end of its commit."""
        data = disk.read(segment.name)
        try:
            scan = Scan(data, segment.name, is_last=True)
        except DamageError:
            if segment.first == end:  # just being begun: nothing in it counts yet
                return
            raise
        offset, position = segment.first, scan.start
        frames = scan.frames()
        while offset < end:
            frame = next(frames, None)
            if frame is None:
                raise DamageError(segment.name, position, f"rows {offset} to {end - 1} are missing")
            offset, position = offset + frame.batch.num_rows, frame.end
        self._copy.data(f"journal/{segment.name}", memoryview(data)[:position])
        self._show()

    def _quiet(self, disk: RealDisk, identity: Identity) -> int:
        """The journal of nobody at work: as it is, torn tail and all, for the next start to judge."""
        for name in named(disk, LIVE_PREFIX):
            self._file(disk.directory / name)
        end, _ = self._mark(disk)
        for segment in segments(disk):
            self._file(disk.directory / segment.name)
        for name in (WATERMARK, IDENTITY):
            self._file(disk.directory / name)
        return end


def _is_whole(path: Path) -> bool:
    """A plain file that is no draft, lock or socket."""
    if path.name.endswith(".tmp") or _DRAFT.fullmatch(path.name):
        return False
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        return False


def _walk(folder: Path, without: tuple[str, ...]) -> Iterator[Path]:
    """The files of a directory and those below it, in order; drafts, links and the named directories left out."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".staging-") and not (Path(place) == folder and name in without)
        )
        yield from (path for name in sorted(names) if _is_whole(path := Path(place, name)))


def _sizes(data: Path) -> Iterator[int]:
    """About how much there is to copy."""
    for path in _walk(data, ("run",)):
        try:
            yield path.stat().st_size if path.name != "reserve" else 0
        except FileNotFoundError:
            continue
