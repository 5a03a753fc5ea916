"""Seal: move closed segments into the Delta table, write the state after them as a live file, then remove them.

Runs in its own process; the writer never touches a closed segment again. Each step is durable before the next and idempotent, so a crash
only repeats work. The order matters: a segment is removed only when the table has its rows and a live file has its state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Protocol

import msgspec
import pyarrow as pa

from penstock.core.clock import Now
from penstock.core.rows import Row
from penstock.journal import named_readers
from penstock.journal.columns import SCHEMA, decode_rows, encode_rows, fitted
from penstock.journal.delta_log import DeltaLog, damaged_tables
from penstock.journal.disk import Disk
from penstock.journal.lake_location import LakePath
from penstock.journal.open_and_repair import (
    LIVE_PREFIX,
    SUFFIX,
    Segment,
    last_live_row,
    live_name,
    named,
    read_identity,
    read_live,
    replace_file,
    segments,
)
from penstock.journal.parquet_table import FILE_SCHEMA, EventsTable
from penstock.journal.retention import Retention, choose
from penstock.journal.segments import (
    KIND_LIVE,
    SHARD,
    DamageError,
    Header,
    Scan,
    SegmentFrame,
    batches,
    encode_frame,
    encode_header,
)

LIVE_BATCH_ROWS = 4096


class Recoverable(Protocol):
    """State that can be rebuilt from rows; the machine of every protocol implements it."""

    def snapshot(self, now: Now) -> Iterator[Row]:
        """The state as rows."""

    def resume(self, now: Now, row: Row) -> None:
        """Take back one row of a snapshot."""

    def restore(self, now: Now, row: Row) -> None:
        """Apply one row of history."""

    def wake(self, now: Now) -> None:
        """Let what is due happen."""


class SealReport(msgspec.Struct):
    """What a seal did."""

    sealed_rows: int = 0
    sealed_end: int = 0
    live_offset: int = 0
    removed_segments: int = 0
    removed_files: int = 0
    removed_bytes: int = 0
    ended_readers: list[str] = []
    damaged: list[str] = []
    """Tables of the lake that cannot be opened, and why."""


class Sealer:
    """Seals the closed segments of one journal directory."""

    def __init__(
        self, disk: Disk, lake: LakePath, make_machine: Callable[[], Recoverable], *, retention: Retention
    ) -> None:
        self._disk = disk
        self._bronze = EventsTable(lake)
        self._make_machine = make_machine
        self._retention = retention

    def seal(self, now_us: int, *, wants_live: bool = False, only_sealed: bool = False) -> SealReport:
        """Seal all closed segments; `wants_live` writes a live file even if little has changed.

        With `only_sealed`, another writer has sealed the rows: segments that it has not come to are left alone.
        """
        identity = read_identity(self._disk)
        report = SealReport()
        if identity is None:
            return report
        closed = [segment for segment in segments(self._disk) if segment.limit is not None]
        report.sealed_end = self._bronze.sealed_end(identity.id, SHARD)
        if only_sealed:
            closed = [segment for segment in closed if (segment.limit or 0) <= report.sealed_end]
        for segment in closed:
            report.sealed_rows += self._publish(segment, report.sealed_end, identity.id)
            report.sealed_end = max(report.sealed_end, segment.limit or 0)
        live = named(self._disk, LIVE_PREFIX)[-1:]
        report.live_offset = int(live[0][len(LIVE_PREFIX) : -len(SUFFIX)]) if live else 0
        if closed and (wants_live or self._live_is_due(closed, report.live_offset, live)):
            report.live_offset = self._derive_live(closed, report.live_offset, identity.id)
        self._remove(closed, report)
        self._retain(report, now_us, identity.id)
        if report.sealed_rows or report.removed_files:
            self._bronze.tidy()
            DeltaLog(self._bronze.path).record()
        report.damaged = list(damaged_tables(self._bronze.path.parent))
        return report

    def _publish(self, segment: Segment, sealed_end: int, journal: str) -> int:
        limit = segment.limit
        assert limit is not None
        if limit <= sealed_end:
            return 0
        scan = Scan(self._disk.read(segment.name), segment.name, is_last=False)
        identity = scan.header.identity | {"journal": journal}
        rows = pa.Table.from_batches([fitted(part, FILE_SCHEMA, identity) for part in batches(_until(scan, limit))])
        rows = rows.filter(pa.compute.greater_equal(rows.column("offset"), sealed_end))
        self._bronze.publish(rows, journal, SHARD, limit)
        return int(rows.num_rows)

    def _live_is_due(self, closed: list[Segment], live_offset: int, live: list[str]) -> bool:
        """A new live file pays off when the history since the last one is as large as the state."""
        behind = sum(self._disk.size(s.name) for s in closed if (s.limit or 0) > live_offset)
        return behind > 0 and (not live or behind >= self._disk.size(live[0]))

    def _derive_live(self, closed: list[Segment], live_offset: int, journal: str) -> int:
        """Rebuild the state from the last live file and the closed segments, and write a new live file."""
        end = closed[-1].limit
        assert end is not None
        if end <= live_offset:
            return live_offset
        machine = self._make_machine()
        last_us = 0
        epoch = 0
        if live_offset:
            name = live_name(live_offset)
            scan, parts = read_live(self._disk.read(name), name)
            for batch in parts:
                for row in decode_rows(batch, journal, SHARD, scan.header.epoch):
                    last_us = max(last_us, row.recorded_at)
                    machine.resume(Now(last_us, last_us), row)
        for segment in closed:
            if (segment.limit or 0) <= live_offset:
                continue
            scan = Scan(self._disk.read(segment.name), segment.name, is_last=False)
            epoch = scan.header.epoch
            for frame in _until(scan, segment.limit or 0):
                for row in frame.rows():
                    if row.offset >= live_offset:
                        last_us = max(last_us, row.recorded_at)
                        machine.restore(Now(last_us, last_us), row)
        header = Header(journal, SHARD, epoch, end, KIND_LIVE)
        machine.wake(Now(last_us, last_us))  # what has been idle for a while is written down as asleep
        write_live(self._disk, header, machine.snapshot(Now(last_us, last_us)), last_us)
        return end

    def _remove(self, closed: list[Segment], report: SealReport) -> None:
        """Remove the segments whose rows are in the table and whose state is in a live file."""
        safe = min(report.sealed_end, report.live_offset)
        for segment in closed:
            if segment.limit is not None and segment.limit <= safe:
                self._disk.remove(segment.name)
                report.removed_segments += 1
        for name in named(self._disk, LIVE_PREFIX)[:-1]:
            self._disk.remove(name)
        self._disk.sync_names()

    def _retain(self, report: SealReport, now_us: int, journal: str) -> None:
        readers = named_readers.list_readers(self._disk)
        choice = choose(self._bronze.files(), readers, self._retention, now_us, journal)
        for reader in choice.ended:
            named_readers.end(self._disk, reader)
            report.ended_readers.append(reader.name)
        self._bronze.remove(choice.remove, now_us // 1000)
        report.removed_files = len(choice.remove)
        report.removed_bytes = sum(file.size for file in choice.remove)


def write_live(disk: Disk, header: Header, rows: Iterator[Row], last_us: int) -> None:
    """Write a live file, or replace one."""

    def parts() -> Iterator[bytes]:
        yield encode_header(header, SCHEMA)
        count = 0
        while len(part := list(islice(rows, LIVE_BATCH_ROWS))) == LIVE_BATCH_ROWS:
            count += len(part)
            yield encode_frame(encode_rows(part))
        last = last_live_row(count + len(part), header.first_offset, last_us)
        yield encode_frame(encode_rows([*part, last]))

    replace_file(disk, live_name(header.first_offset), parts())


def _until(scan: Scan, limit: int) -> Iterator[SegmentFrame]:
    """The frames of a segment up to the beginning of the next one; later rows were refused."""
    expected = scan.header.first_offset
    frames = scan.frames()
    while expected < limit:
        frame = next(frames, None)
        if frame is None:
            raise DamageError(scan.name, scan.end, f"rows {expected} to {limit - 1} are missing")
        yield frame
        expected += frame.count
