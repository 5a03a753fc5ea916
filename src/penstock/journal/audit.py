"""The audit: read every byte of a journal once and check every guarantee about it.

Changes nothing and takes no lock, so it can run while a server writes: it reads the rows below the watermark at its start, and looks in
the table for a segment that the sealer removed meanwhile. A note, unlike a finding, is a condition that the next start repairs by itself.
Checked: checksums, headers, the journal's id; dense offsets over table and segments; times that never decrease; the live file; the
watermark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.journal.delta_log import DeltaLog
from penstock.journal.disk import RealDisk
from penstock.journal.lake_location import lake_of, open_parquet, size_and_time
from penstock.journal.named_readers import Reader, reader_files
from penstock.journal.open_and_repair import (
    LIVE_PREFIX,
    SUFFIX,
    Identity,
    Progress,
    Segment,
    named,
    read_identity,
    read_live,
    read_watermark,
    segments,
    settled_watermark,
)
from penstock.journal.parquet_table import FILE_SCHEMA, DataFile, EventsTable
from penstock.journal.segments import KIND_LOG, SHARD, DamageError, Scan

FINDINGS_MAX = 1000
"""Findings that are listed; further ones are dropped."""


class Finding(msgspec.Struct, frozen=True):
    """One thing that is wrong, and where."""

    place: str
    what: str


class Audit(msgspec.Struct):
    """The result of an audit."""

    journal: str = ""
    epoch: int = 0
    first: int = 0
    sealed_end: int = 0
    end: int = 0
    sealed_files: int = 0
    sealed_rows: int = 0
    segments: int = 0
    segment_rows: int = 0
    live_offset: int = 0
    live_rows: int = 0
    bytes_read: int = 0
    findings: list[Finding] = []
    notes: list[Finding] = []

    @property
    def is_sound(self) -> bool:
        return not self.findings

    def find(self, place: str, what: str) -> None:
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(Finding(place, what))


class _Walk:
    """Where the next row should be, and when at the earliest."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit
        self.expected: int | None = None
        self._last_us = 0

    def step(self, place: str, offsets: pa.Array, times: pa.Array) -> None:
        """Rows follow one another without a gap, not earlier than the one before."""
        if not len(offsets):
            return
        first, last = offsets[0].as_py(), offsets[-1].as_py()
        if self.expected is not None and first != self.expected:
            self._audit.find(place, f"row {first} where {self.expected} belongs")
        steps = pc.pairwise_diff(offsets)
        if len(offsets) > 1 and (pc.min(steps).as_py() != 1 or pc.max(steps).as_py() != 1):
            self._audit.find(place, f"rows {first} to {last} are not one after another")
        self.expected = last + 1
        micros = times.cast(pa.int64())
        falls = len(micros) > 1 and pc.min(pc.pairwise_diff(micros)).as_py() < 0
        if falls or micros[0].as_py() < self._last_us:
            self._audit.find(place, f"time runs backwards in rows {first} to {last}")
        self._last_us = max(self._last_us, pc.max(micros).as_py())


def audit(data: Path, progress: Progress | None = None) -> Audit:
    """Audit a data directory."""
    report = Audit()
    disk = RealDisk(data / "journal")
    bronze = EventsTable(lake_of(data))
    try:
        identity = read_identity(disk)
    except DamageError as error:
        report.find(error.name, error.what)
        return report
    if identity is None:
        report.find("journal.json", "there is none: this is not the directory of a journal")
        return report
    report.journal, report.epoch = identity.id, identity.epoch
    mark = settled_watermark(disk)
    if mark is None:
        report.find("watermark", "it is missing or its checksum is wrong")
    found = segments(disk)
    readable, report.sealed_end = _table(bronze, identity.id, report)
    files = readable or []
    total = sum(file.size for file in files) + sum(_sizes(disk, [s.name for s in found]))
    walk = _Walk(report)

    def advance(size: int) -> None:
        report.bytes_read += size
        if progress is not None:
            progress(min(report.bytes_read, total), total)

    for file in files:
        _sealed(bronze, file, walk, report)
        advance(file.size)
    report.first = files[0].first if files else (found[0].first if found else 0)
    if files and walk.expected is not None and walk.expected != report.sealed_end:
        report.find("lake/events", f"ends at row {walk.expected} and says it ends at {report.sealed_end}")
    if not files:
        walk.expected = found[0].first if found else None
    # Retention removes sealed files, and never before the table has said how far it reached.
    if readable is not None and found and found[0].first > report.sealed_end:
        report.find(
            found[0].name, f"rows {report.sealed_end} to {found[0].first - 1} are neither here nor in the table"
        )
    end = _hot(disk, found, walk, report, _Context(bronze, identity, mark), advance)
    if readable is None and not found and mark is not None:
        end = mark[0]  # all rows are in the table
    report.end = end if mark is None else min(end, mark[0])
    _watermark(report, end, mark, identity.sync)
    _live(disk, found, report, identity.id)
    _readers(disk, report)
    if progress is not None:
        progress(total, total)
    return report


def _sizes(disk: RealDisk, names: list[str]) -> Iterator[int]:
    for name in names:
        try:
            yield disk.size(name)
        except FileNotFoundError:
            continue


def _table(bronze: EventsTable, journal: str, report: Audit) -> tuple[list[DataFile] | None, int]:
    for name, what in DeltaLog(bronze.path).damage():
        report.find(f"lake/events/_delta_log/{name}", what)
    try:
        table = bronze.table()  # once, so that files and end are of one version
        if table is None:
            return [], 0
        files = [file for file in bronze.files(table) if file.journal == journal]
        return files, table.transaction_version(f"{journal}/{SHARD}") or 0
    except Exception as error:  # whatever the Delta library says: the table cannot be read
        what = error.what if isinstance(error, DamageError) else f"the table cannot be opened: {error}"
        report.find("lake/events", what)
        return None, 0


def _sealed(bronze: EventsTable, file: DataFile, walk: _Walk, report: Audit) -> None:
    """One data file of the table: there, of the size that was noted, readable to the last page."""
    path = bronze.path / file.path
    place = f"lake/events/{file.path}"
    rows = 0
    try:
        size, _ = size_and_time(path)
        if size != file.size:
            report.find(place, f"has {size} bytes where {file.size} were written")
        with open_parquet(path) as data:
            missing = [name for name in FILE_SCHEMA.names if name not in data.schema_arrow.names]
            if missing:
                report.find(place, f"lacks the column `{missing[0]}`")
            for batch in data.iter_batches():
                walk.step(place, batch.column("offset"), batch.column("recorded_at"))
                rows += batch.num_rows
    except FileNotFoundError:
        if file in bronze.files():
            report.find(place, f"is missing, with rows {file.first} to {file.last}")
        walk.expected = file.last + 1
        return
    except (OSError, KeyError, pa.ArrowException) as error:
        report.find(place, f"rows {file.first + rows} to {file.last} cannot be read: {error}")
        walk.expected = file.last + 1
        report.sealed_files += 1
        report.sealed_rows += rows
        return
    if rows != file.rows or rows != file.last - file.first + 1:
        report.find(place, f"holds {rows} rows where {file.first} to {file.last} belong")
    report.sealed_files += 1
    report.sealed_rows += rows


class _Context(msgspec.Struct):
    """What the walk over the segments needs to know."""

    bronze: EventsTable
    identity: Identity
    mark: tuple[int, int] | None


def _hot(
    disk: RealDisk, found: list[Segment], walk: _Walk, report: Audit, context: _Context, advance: Callable[[int], None]
) -> int:
    """The segments, and on from where the table ends. Returns the offset behind the last whole row."""
    end = report.sealed_end
    for segment in found:
        try:
            data = disk.read(segment.name)
        except FileNotFoundError:
            end = max(end, _moved(context, walk, report))
            continue
        advance(len(data))
        try:
            end = max(end, _segment(disk, data, segment, walk, report, context))
        except DamageError as error:
            finding = Finding(segment.name, f"at byte {error.position}: {error.what}")
            is_begun = segment.limit is None and error.is_cut_short
            (report.notes if is_begun else report.findings).append(finding)
            walk.expected = segment.limit
    return end


def _moved(context: _Context, walk: _Walk, report: Audit) -> int:
    """The sealer removed a segment meanwhile: its rows must be in the table now."""
    files, report.sealed_end = _table(context.bronze, context.identity.id, report)
    for file in files or []:
        if walk.expected is None or file.first >= walk.expected:
            _sealed(context.bronze, file, walk, report)
    return report.sealed_end


def _segment(disk: RealDisk, data: bytes, segment: Segment, walk: _Walk, report: Audit, context: _Context) -> int:
    scan = Scan(data, segment.name, is_last=segment.limit is None)
    header = scan.header
    is_ours = header.journal == context.identity.id and header.kind == KIND_LOG
    if not is_ours or header.first_offset != segment.first:
        raise DamageError(segment.name, 0, "the header is of another journal or another place")
    offset = segment.first
    report.segments += 1
    own = _Walk(report)
    own.expected = segment.first
    # Rows above the watermark may be half written.
    committed = None if context.mark is None else context.mark[0]
    limit = segment.limit if segment.limit is not None else committed
    frames = scan.frames()
    while limit is None or offset < limit:
        frame = next(frames, None)
        if frame is None:
            break
        batch = frame.select("offset", "recorded_at")
        place = f"{segment.name} at byte {frame.position}"
        sealed = min(max(report.sealed_end - offset, 0), batch.num_rows)
        own.step(place, batch.column("offset"), batch.column("recorded_at"))
        fresh = batch.slice(sealed)
        walk.step(place, fresh.column("offset"), fresh.column("recorded_at"))
        offset += batch.num_rows
        report.segment_rows += batch.num_rows
    may_lose = segment.limit is None and context.identity.sync != "commit"
    if limit is not None and offset < limit and not may_lose:
        raise DamageError(segment.name, scan.end, f"rows {offset} to {limit - 1} are missing")
    rest = len(data) - scan.end
    if segment.limit is None and rest and read_watermark(disk) == context.mark:
        what = f"{rest} bytes behind row {offset - 1} are not committed; if no server writes, the next start decides"
        report.notes.append(Finding(f"{segment.name} at byte {scan.end}", what))
    return offset


def _watermark(report: Audit, end: int, mark: tuple[int, int] | None, sync: str) -> None:
    if mark is None:
        return
    if mark[0] > end:
        what = f"promises rows up to {mark[0] - 1}, and the last one is {end - 1}"
        if sync == "commit":
            report.find("watermark", what)
        else:
            report.notes.append(Finding("watermark", f"{what}; `sync: {sync}` may lose rows in a crash"))
    if mark[1] < report.epoch:
        what = f"is of epoch {mark[1]}, and the journal of {report.epoch}"
        report.notes.append(Finding("watermark", what))


def _live(disk: RealDisk, found: list[Segment], report: Audit, journal: str) -> None:
    """The newest live file: sound, and not older than what the segments need."""
    names = named(disk, LIVE_PREFIX)
    needed = found[0].first if found else 0
    if not names:
        if needed > 0:
            report.find(found[0].name, "no live file is left for the log that remains")
        return
    name = names[-1]
    report.live_offset = int(name[len(LIVE_PREFIX) : -len(SUFFIX)])
    try:
        scan, batches = read_live(disk.read(name), name)
        if scan.header.journal != journal or scan.header.first_offset != report.live_offset:
            raise DamageError(name, 0, "the header is of another journal or another place")
        report.live_rows = sum(batch.num_rows for batch in batches) - 1  # the last only ends it
    except DamageError as error:
        report.find(name, f"at byte {error.position}: {error.what}")
    except FileNotFoundError:
        return  # replaced by a newer one just now
    if report.live_offset < needed:
        report.find(name, f"rows {report.live_offset} to {needed - 1} are missing behind it")
    if report.live_offset > report.end:
        report.find(name, f"is of row {report.live_offset}, and the journal ends at {report.end}")


def _readers(disk: RealDisk, report: Audit) -> None:
    for name in reader_files(disk):
        try:
            msgspec.json.decode(disk.read(name), type=Reader)
        except msgspec.DecodeError as error:
            report.find(name, f"is not a reader's file: {error}")
        except FileNotFoundError:
            continue
