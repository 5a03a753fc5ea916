"""Copies a data directory consistently, while a server writes it or offline, and restores one.

Invariant: nothing in the copy is ahead of its journal. So everything derived from the journal is copied first: tokens and other files,
then the tables of the pipeline (the log of each before its data, because a log names only files that exist), then sealed history. What
is new in sealed history, and the segments, are copied under the lock of the sealer, which would otherwise move rows between the two;
most of sealed history is copied before, so the lock is held briefly. The journal comes last, cut at its watermark: the copy holds every
committed row and no other.

Never copied: `run` (it holds the operator's token), locks, the disk reserve, drafts, and checkpoints of Spark, which may be lost.

A restore compares every byte with the manifest, audits the journal, then renames the directory into place. Rows committed after the backup
are lost, and readers may have seen them. So the journal continues in a new epoch, as after a recovery that lost rows: readers notice it
instead of taking new rows for those that they have seen.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote

import msgspec
from deltalake import DeltaTable

from penstock.client.address import read_endpoints
from penstock.core.errors import PenstockError, Refusal
from penstock.journal.audit import Audit, audit
from penstock.journal.delta_log import DeltaLog
from penstock.journal.disk import RealDisk, sync_path
from penstock.journal.named_readers import reader_files
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
    replace_file,
    segments,
    settled_watermark,
)
from penstock.journal.parquet_table import TABLE as EVENTS
from penstock.journal.segments import DamageError, Scan
from penstock.server.journal.seal_process import SHARDS_DIR
from penstock.server.ops.backup_format import (
    BackupFile,
    BackupManifest,
    BackupReader,
    BackupWriter,
    DigestReader,
    is_taken,
    open_target,
    refused,
    write_file,
)

Progress = Callable[[int, int], None]
_DRAFT = re.compile(r"\..+\.(parquet|[0-9a-f]{16})")
"""Prefixes of drafts: tables and secret files that are not complete yet."""
LEFT_OUT = ("journal", "lake", "run")
"""Directories that are not copied file by file; `run` is not copied at all."""


def backup(data: Path, target: Path, version: str, progress: Progress | None = None) -> BackupManifest:
    """Copy a data directory and return the manifest of the copy."""
    if not (data / "journal" / IDENTITY).is_file():
        raise refused(f"there is no journal in `{data}`", "name the data directory of a server with --data")
    if (data / SHARDS_DIR).is_dir():
        raise refused(f"`{data}` is divided into shards", "stop the server and copy the whole directory")
    if target.resolve().is_relative_to(data.resolve()):
        raise refused(f"`{target}` is inside the directory to copy", "choose a target elsewhere, on another disk")
    place = open_target(target)
    try:
        return _Backup(data, BackupWriter(place), version, progress).run()
    except BaseException as error:
        place.abandon()
        if isinstance(error, OSError):
            message = f"the copy failed: {error.strerror or error}"
            hint = "check free space and permissions of source and target; the partial copy was removed"
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
        """Copy in the order that keeps the copy consistent."""
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

    def _file(self, path: Path) -> None:
        self._copy.file(self._name(path), path)
        self._show()

    def _show(self, *, is_over: bool = False) -> None:
        if self._progress is not None:
            total = max(self._total, self._copy.bytes)
            self._progress(total if is_over else min(self._copy.bytes, total - 1), total)

    def _tables(self) -> list[Path]:
        lake = self._data / "lake"
        entries = sorted(lake.iterdir()) if lake.is_dir() else []
        return [
            path for path in entries if path.name != EVENTS and _is_folder(path) and _is_folder(path / "_delta_log")
        ]

    def _log_files(self, table: Path) -> list[Path]:
        """The files of a table's log; the pointer to a checkpoint first, because its checkpoint already exists."""
        log = table / "_delta_log"
        last = log / "_last_checkpoint"
        return [last, *sorted(path for path in log.iterdir() if path != last and _is_whole(path))]

    def _table(self, table: Path) -> None:
        """Copy a table that the pipeline may be writing."""
        for path in self._log_files(table):
            self._file(path)
        copied = [name for name in self._copy.files if name.startswith(self._name(table) + "/_delta_log/")]
        numbers = [int(stem) for name in copied if (stem := Path(name).stem).isdecimal()]
        if not numbers:  # the table is being created
            return
        for path in _walk(table, ("_delta_log",)):
            self._file(path)
        try:
            read = DeltaTable(str(table), version=max(numbers))
            added = read.get_add_actions(flatten=True)
            needed = dict(zip(added.column("path").to_pylist(), added.column("size_bytes").to_pylist(), strict=True))
        except Exception as error:  # any error of the Delta library: the table does not match its log
            raise self._changed(table) from error
        for path, size in needed.items():
            copied_file = self._copy.files.get(f"{self._name(table)}/{unquote(path)}")
            if copied_file is None or copied_file.bytes != size:
                raise self._changed(table)

    def _changed(self, table: Path) -> PenstockError:
        hint = "run the backup again when no rebuild or vacuum is running; if it fails again, rebuild the table"
        return refused(f"the table `{table.name}` changed during the copy, or it is damaged", hint)

    def _sealed_files(self) -> list[Path]:
        events = self._data / "lake" / EVENTS
        return list(_walk(events, ("_delta_log",))) if events.is_dir() else []

    def _journal(self, copied: list[Path]) -> tuple[Identity, int]:
        """Copy the rest of sealed history, then the journal up to its watermark."""
        folder = self._data / "journal"
        disk = RealDisk(folder)
        sealing = RealDisk(folder)
        sealing.lock("sealing", waits=True)  # a starting server waits for this lock before it changes anything
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
            # Before the watermark is read, so that no reader is ahead of the copy.
            for name in reader_files(disk):
                self._file(folder / name)
            identity = read_identity(disk)
            assert identity is not None
            mark = self._mark(disk)
            if is_written:
                self._written(disk, identity, *mark)
                return identity, mark[0]
            return identity, self._quiet(disk)
        finally:
            sealing.unlock()

    def _is_written(self, folder: Path) -> bool:
        """Whether a server writes the journal; one that is starting has published no watermark yet."""
        writing = RealDisk(folder)
        if writing.lock():
            writing.unlock()
            return False
        if read_endpoints(self._data / "run" / "endpoints.json") is None:
            message = f"a process without open ports has locked `{self._data}`"
            hint = "try again when the server is up or the command has ended"
            raise PenstockError(Refusal("JournalUnavailable", message, hint=hint))
        return True

    def _mark(self, disk: RealDisk) -> tuple[int, int]:
        if (mark := settled_watermark(disk)) is not None:
            return mark
        hint = "start a server on it once, which repairs it"
        raise refused(f"`{self._data}` has no readable watermark", hint)

    def _written(self, disk: RealDisk, identity: Identity, end: int, epoch: int) -> None:
        """Copy the journal of a running server: committed rows, nothing of the commit in progress."""
        for name in named(disk, LIVE_PREFIX):
            self._file(disk.directory / name)
        found = [segment for segment in segments(disk) if segment.first <= end]
        for segment in found:
            if segment is found[-1]:
                self._tail(disk, segment, end)
            else:
                self._file(disk.directory / segment.name)
        self._copy.data(f"journal/{WATERMARK}", encode_watermark(end, epoch))
        # The copy ends at a commit, so a recovery loses nothing of it.
        clean = msgspec.structs.replace(identity, is_clean=True)
        self._copy.data(f"journal/{IDENTITY}", msgspec.json.encode(clean))

    def _tail(self, disk: RealDisk, segment: Segment, end: int) -> None:
        """Copy the segment with the last committed row, up to the end of its commit."""
        data = disk.read(segment.name)
        try:
            scan = Scan(data, segment.name, is_last=True)
        except DamageError:
            if segment.first == end:  # just created: it holds no committed row
                return
            raise
        offset, position = segment.first, scan.start
        frames = scan.frames()
        while offset < end:
            frame = next(frames, None)
            if frame is None:
                raise DamageError(segment.name, position, f"rows {offset} to {end - 1} are missing")
            offset, position = offset + frame.count, frame.end
        self._copy.data(f"journal/{segment.name}", memoryview(data)[:position])
        self._show()

    def _quiet(self, disk: RealDisk) -> int:
        """Copy the journal of a stopped server as it is; the next start repairs a torn tail."""
        for name in named(disk, LIVE_PREFIX):
            self._file(disk.directory / name)
        end, _ = self._mark(disk)
        for segment in segments(disk):
            self._file(disk.directory / segment.name)
        for name in (WATERMARK, IDENTITY):
            self._file(disk.directory / name)
        return end


def _is_whole(path: Path) -> bool:
    """Whether a file is copied: no draft, lock or socket."""
    if path.name.endswith(".tmp") or _DRAFT.fullmatch(path.name):
        return False
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        return False


def _is_folder(path: Path) -> bool:
    """Whether a directory is copied: not through a link, which could lead anywhere."""
    return path.is_dir() and not path.is_symlink()


def _walk(folder: Path, without: tuple[str, ...]) -> Iterator[Path]:
    """The files below a directory, in order, without drafts, links and the named directories."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".staging-") and not (Path(place) == folder and name in without)
        )
        yield from (path for name in sorted(names) if _is_whole(path := Path(place, name)))


def _sizes(data: Path) -> Iterator[int]:
    """The approximate number of bytes to copy."""
    for path in _walk(data, ("run",)):
        try:
            yield path.stat().st_size if path.name != "reserve" else 0
        except FileNotFoundError:
            continue


def restore(source: Path, data: Path, progress: Progress | None = None) -> tuple[BackupManifest, Audit]:
    """Restore a backup to a data directory; returns its manifest and the audit of its journal."""
    if is_taken(data):
        raise refused(f"`{data}` is not empty", "choose another directory with --data, or move this one away")
    found = BackupReader(source)
    draft = data.with_name(f".{data.name}.{secrets.token_hex(4)}.part")
    try:
        draft.mkdir(mode=0o700, parents=True)
        _unpack(found, draft, progress)
        report = audit(draft)
        if not report.is_sound:
            first = report.findings[0]
            message = f"the journal of the backup is damaged: {first.place}: {first.what}"
            raise PenstockError(Refusal("JournalDamaged", message, hint="use another backup"))
        if report.journal != found.manifest.journal:
            raise refused("the manifest belongs to another journal", "use another backup")
        _begin_epoch(draft)
        sync_path(draft)
        draft.rename(data)  # replaces an empty directory, and fails on anything else
        sync_path(data.absolute().parent)
        return found.manifest, report
    except OSError as error:
        message = f"cannot write `{data}`: {error.strerror or error}"
        raise refused(message, "free some space or choose another directory; the partial restore was removed") from None
    finally:
        found.close()
        shutil.rmtree(draft, ignore_errors=True)


def _unpack(source: BackupReader, draft: Path, progress: Progress | None) -> None:
    total = sum(entry.bytes for entry in source.manifest.files.values())
    done = 0
    for name, entry, file in source.files():
        if name.split("/")[0] == "run":
            raise refused(f"the backup names `{name}`", "`penstock backup` did not write this backup")
        place = draft / name
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _one(name, entry, file, place)
        done += entry.bytes
        if progress is not None:
            progress(done, total)


def _one(name: str, entry: BackupFile, file: BinaryIO, place: Path) -> None:
    counted = DigestReader(file, entry.bytes)
    try:
        write_file(place, counted, entry.bytes)
        is_same = not file.read(1) and counted.digest.hexdigest() == entry.sha256
    except (OSError, EOFError) as error:
        if getattr(error, "errno", None) is not None:
            raise  # an error of the target disk, not of the backup
        is_same = False
    if not is_same:
        raise refused(f"`{name}` does not match the digest in the manifest", "the backup is damaged; use another one")


def _begin_epoch(draft: Path) -> None:
    """Start a new epoch: from here on this is not the journal that continued elsewhere."""
    disk = RealDisk(draft / "journal")
    identity = read_identity(disk)
    assert identity is not None
    mark = read_watermark(disk)
    identity.epoch += 1
    replace_file(disk, IDENTITY, [msgspec.json.encode(identity)])
    if mark is not None:
        replace_file(disk, WATERMARK, [encode_watermark(mark[0], identity.epoch)])
    os.chmod(draft / "journal", 0o700)
