"""Open a journal directory: find the state and the log behind it, cut a torn tail, and refuse damage.

    journal.json            the journal's id, made with the directory; how the last run ended
    log-<offset>.seg        history from that offset on; the newest is being written
    live-<offset>.seg       the state after all rows before that offset
    watermark               the offset up to which rows are committed, for readers in other processes
    readers.json            named readers and how far they have read
    reserve, lock
    lost-<epoch>-<name>     bytes that `penstock log repair --accept-loss` took out of the journal

Opening finds the newest valid live file and the segments after it. An incomplete write at the end of the newest segment is a torn tail:
it was never acknowledged, so it is cut off. Anything else that cannot be read is damage: it is reported with file and position, and never
skipped. Under `sync: commit` the watermark proves that a tail was never acknowledged. Without it a torn tail is damage, and an end that
looks whole starts a new epoch.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated

import msgspec
import pyarrow as pa

from penstock.core.records import Entry
from penstock.core.rows import Row
from penstock.journal.columns import SCHEMA, decode_rows
from penstock.journal.disk import Disk
from penstock.journal.log import RESERVE, Log, Position, Sync
from penstock.journal.segments import (
    KIND_LIVE,
    PACKED,
    SHARD,
    DamageError,
    Header,
    Scan,
    crc32c,
    decode_header,
    encode_header,
    has_sound_frame,
)

IDENTITY = "journal.json"
WATERMARK = "watermark"
LOG_PREFIX, LIVE_PREFIX, SUFFIX = "log-", "live-", ".seg"
LOST_PREFIX = "lost-"
ERASURE = "erase.json"
UNFINISHED = "an erasure was interrupted; stop the server and run `penstock lake erase` to complete it"
FORMAT = 1


class Identity(msgspec.Struct):
    """The file `journal.json`."""

    id: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
    format: int = FORMAT
    epoch: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] = 0
    sync: Sync = "commit"
    """What the last run promised."""
    is_clean: bool = True
    """Whether the last run ended by itself."""


_MARK = struct.Struct("<QII")


def encode_watermark(offset: int, epoch: int) -> bytes:
    """The watermark's sixteen bytes: next offset, epoch, checksum."""
    head = _MARK.pack(offset, epoch, 0)[:12]
    return head + crc32c(head).to_bytes(4, "little")


def read_watermark(disk: Disk) -> tuple[int, int] | None:
    """The next offset and the epoch as the writer last published them; None when it is just being written."""
    data = bytes(disk.read(WATERMARK)) if WATERMARK in disk.names() else b""
    if len(data) != _MARK.size or crc32c(data[:12]) != int.from_bytes(data[12:], "little"):
        return None
    offset, epoch, _ = _MARK.unpack(data)
    return offset, epoch


WATERMARK_TRIES = 100
"""The watermark is written in place, so a read may see it half written, but not this often."""


def settled_watermark(disk: Disk) -> tuple[int, int] | None:
    """The watermark, also while a server writes it; None if there is none or its checksum is wrong."""
    return next((mark for _ in range(WATERMARK_TRIES) if (mark := read_watermark(disk)) is not None), None)


class Segment(msgspec.Struct, frozen=True):
    """A log segment and its range of offsets."""

    name: str
    first: int
    limit: int | None
    """Where the next segment begins; rows after that were refused and do not count."""


Progress = Callable[[int, int], None]
"""Called with bytes read and bytes in all."""


def live_name(offset: int) -> str:
    return f"{LIVE_PREFIX}{offset:020d}{SUFFIX}"


def named(disk: Disk, prefix: str) -> list[str]:
    """The segment files of one kind, oldest first."""
    return [
        name
        for name in disk.names()
        if name.startswith(prefix) and name.endswith(SUFFIX) and name[len(prefix) : -len(SUFFIX)].isdecimal()
    ]


def segments(disk: Disk) -> list[Segment]:
    """Every log segment in order."""
    names = named(disk, LOG_PREFIX)
    firsts = [int(name[len(LOG_PREFIX) : -len(SUFFIX)]) for name in names]
    limits: list[int | None] = [*firsts[1:], None]
    return [Segment(*parts) for parts in zip(names, firsts, limits, strict=False)]


def replace_file(disk: Disk, name: str, parts: Iterable[bytes]) -> None:
    """Replace a file durably and atomically."""
    draft = name + ".tmp"
    disk.remove(draft)
    file = disk.open(draft)
    try:
        for part in parts:
            file.append(part)
        file.sync()
    finally:
        file.close()
    disk.replace(draft, name)
    disk.sync_names()


def read_identity(disk: Disk) -> Identity | None:
    """The identity of the journal, or None in a new directory."""
    if IDENTITY not in disk.names():
        return None
    try:
        identity = msgspec.json.decode(disk.read(IDENTITY), type=Identity)
    except msgspec.DecodeError as error:
        raise DamageError(IDENTITY, 0, str(error)) from error
    if identity.format > FORMAT:
        raise DamageError(IDENTITY, 0, f"format {identity.format} was written by a newer Penstock")
    return identity


def read_live(data: bytes | memoryview, name: str) -> tuple[Scan, list[pa.RecordBatch]]:
    """A live file, whole: its last row says how many come before it."""
    scan = Scan(data, name, is_last=False)
    if scan.header.kind != KIND_LIVE:
        raise DamageError(name, 0, "this is not a live file")
    batches = [frame.batch for frame in scan.frames()]
    count = sum(batch.num_rows for batch in batches)
    last = batches[-1].slice(batches[-1].num_rows - 1).to_pylist()[0] if batches else {}
    if (last.get("door"), last.get("seq")) != ("server", count - 1):
        raise DamageError(name, scan.end, f"the file ends after {count} rows, before its last")
    return scan, batches


def last_live_row(count: int, offset: int, recorded_us: int) -> Row:
    """The row that ends a live file: how many rows it has, and when the last row of the history behind it was."""
    return Row(offset=offset - 1, recorded_at=recorded_us, door="server", event="tick", seq=count)


def _is_unbegun(data: bytes | memoryview) -> bool:
    """Whether a file is only an incomplete header: the header is synced before the first frame is written."""
    longest = len(encode_header(Header("00" * 16, 0, 0, 0), SCHEMA))
    return len(data) <= longest and not has_sound_frame(memoryview(data))


class Opened:
    """A directory that was opened for writing: rows to rebuild from, then a log to append to.

    With `loss_floor`, damage is accepted: the journal is cut where it begins, but not before this offset.
    """

    def __init__(self, disk: Disk, *, fresh_id: str, sync: Sync, loss_floor: int | None = None) -> None:
        self.disk = disk
        self.sync = sync
        found = read_identity(disk)
        if found is None and named(disk, LOG_PREFIX):
            raise DamageError(IDENTITY, 0, "segments are here, but the journal's identity is missing")
        self.identity = found or Identity(fresh_id)
        self._loss_floor = loss_floor
        self.news: Entry | None = None
        """The row that begins a new epoch, and says why."""
        self.position = Position(self.identity.id, SHARD, self.identity.epoch, 0)
        self._mark = read_watermark(disk)
        self._may_have_lost = not self.identity.is_clean and self.identity.sync != "commit"
        if self._may_have_lost:
            self._begin_epoch("epoch", f"the last run crashed under `sync: {self.identity.sync}`")
        elif self._mark is None and (named(disk, LOG_PREFIX) or named(disk, LIVE_PREFIX)):
            self._begin_epoch("epoch", f"the file `{WATERMARK}` is missing or damaged")
        self.torn_bytes = 0
        self._tail: tuple[str, int] | None = None
        self.live_offset = 0

    def _begin_epoch(self, event: str, cause: str, **more: object) -> None:
        """Rows that readers have seen may be lost: the new epoch makes them notice."""
        if self.news is None:
            self.identity.epoch += 1
            self.position.epoch = self.identity.epoch
        meta = msgspec.json.encode({"epoch": self.identity.epoch, **more}).decode()
        self.news = Entry("server", event, "", reason=cause, meta=meta, fresh=False)

    def live_rows(self) -> Iterator[Row]:
        """The rows of the newest sound live file: state, not history."""
        for name in reversed(named(self.disk, LIVE_PREFIX)):
            data = self.disk.read(name)
            try:
                scan, batches = read_live(data, name)
            except DamageError:
                if name == named(self.disk, LIVE_PREFIX)[0] and self._needs_live():
                    raise
                continue  # an older live file and more of the log give the same state
            self.live_offset = self.position.offset = scan.header.first_offset
            for batch in batches:
                for row in decode_rows(batch, scan.header.journal, scan.header.shard, scan.header.epoch):
                    self.position.recorded_us = max(self.position.recorded_us, row.recorded_at)
                    yield row
            return
        if self._needs_live():
            raise DamageError(live_name(0), 0, "no live file is left for the log that remains")

    def _needs_live(self) -> bool:
        first = segments(self.disk)[:1]
        return bool(first) and first[0].first > 0

    def tail_rows(self, progress: Progress | None = None) -> Iterator[Row]:
        """The rows after the live file, in order; cuts a torn tail at the end."""
        try:
            yield from self._tail_rows(progress)
        except DamageError as error:
            if self._loss_floor is None:
                raise
            if self.position.offset < self._loss_floor:
                what = f"{error.what}; the table has rows up to {self._loss_floor - 1}, so only a backup helps"
                raise DamageError(error.name, error.position, what) from error
            self._accept_loss(error)

    def _accept_loss(self, error: DamageError) -> None:
        """End the journal before the damage. What is taken out stays in files, and a row says what it was."""
        offset = self.position.offset
        name, end = self._tail or ("", 0)
        later = [segment for segment in segments(self.disk) if segment.first >= offset and segment.name != name]
        known = [segment.first for segment in later if segment.first > offset]
        if self._mark is not None and self._mark[1] == self.identity.epoch:
            known.append(max(self._mark[0], offset + 1))
        to = max(known) - 1 if known else None
        rest = bytes(self.disk.read(name)[end:]) if name else b""
        size = len(rest) + sum(self.disk.size(segment.name) for segment in later)
        self._begin_epoch("repair", str(error), **{"from": offset, "to": to, "bytes": size})
        prefix = f"{LOST_PREFIX}{self.identity.epoch}-"
        if rest:
            replace_file(self.disk, prefix + name, [rest])
            self._cut(name, end, end + len(rest))
        for segment in later:
            self.disk.replace(segment.name, prefix + segment.name)
        self.disk.sync_names()

    def _tail_rows(self, progress: Progress | None) -> Iterator[Row]:
        found = segments(self.disk)
        sizes = {segment.name: self.disk.size(segment.name) for segment in found}
        total, done = sum(sizes.values()), 0
        expected: int | None = None
        for segment in found:
            if segment.limit is not None and segment.limit <= self.live_offset:
                done += sizes[segment.name]
                continue
            if expected is None and segment.first > self.live_offset:
                raise DamageError(segment.name, 0, f"rows {self.live_offset} to {segment.first - 1} are missing")
            if expected is not None and segment.first != expected:
                raise DamageError(segment.name, 0, f"rows {expected} to {segment.first - 1} are missing")
            for row in self._segment_rows(segment):
                if row.offset >= self.live_offset:
                    yield row
            expected = self.position.offset
            done += sizes[segment.name]
            if progress is not None:
                progress(done, total)
        if expected is None:
            self._check_watermark(WATERMARK, 0)  # there is no segment behind the live file, and perhaps there was

    def _segment_rows(self, segment: Segment) -> Iterator[Row]:
        data = self.disk.read(segment.name)
        is_last = segment.limit is None
        try:
            scan = Scan(data, segment.name, is_last=is_last, has_holes=self._may_have_lost)
        except DamageError:
            if not is_last or not _is_unbegun(data):
                raise
            # The segment was being created: nothing in it was ever acknowledged.
            self.position.offset = segment.first
            self._check_watermark(segment.name, 0, len(data))
            self._tail = None
            self.torn_bytes += len(data)
            self.disk.remove(segment.name)
            self.disk.sync_names()
            return
        header: Header = scan.header
        if header.journal != self.identity.id or header.first_offset != segment.first:
            raise DamageError(segment.name, 0, "the header is of another journal or another place")
        self.position.offset = max(self.position.offset, segment.first)
        end = scan.start
        self._tail = (segment.name, end)
        for frame in scan.frames():
            first = frame.first_offset
            if first != self.position.offset and first >= self.live_offset:
                raise DamageError(segment.name, frame.position, f"row {first} where {self.position.offset} belongs")
            for row in frame.rows():
                self.position.offset = row.offset + 1
                self.position.recorded_us = max(self.position.recorded_us, row.recorded_at)
                yield row
            end = frame.end
            self._tail = (segment.name, end)
            if segment.limit is not None and self.position.offset >= segment.limit:
                # Rows after this were refused. Cut them off, because the next segment, which proves it, may be removed later.
                self._cut(segment.name, end, len(data))
                return
        if is_last:
            self._check_watermark(segment.name, end, len(data) - end)
            self._cut(segment.name, end, len(data))
        elif self.position.offset < (segment.limit or 0):
            raise DamageError(
                segment.name, end, f"rows {self.position.offset} to {(segment.limit or 0) - 1} are missing"
            )

    def _check_watermark(self, name: str, end: int, torn: int = 0) -> None:
        """Committed rows that cannot be read are damage, never cut off. The watermark is never ahead of what is durable."""
        if self.identity.sync != "commit" or self._may_have_lost:
            return
        offset = self.position.offset
        if self._mark is None:
            if torn:
                what = f"without the file `{WATERMARK}` it is unknown whether the {torn} bytes from here were committed"
                raise DamageError(name, end, what)
            return
        committed, epoch = self._mark
        if epoch == self.identity.epoch and committed > offset:
            raise DamageError(name, end, f"rows {offset} to {committed - 1} were committed and cannot be read")

    def _cut(self, name: str, end: int, size: int) -> None:
        if size == end:
            return
        self.torn_bytes += size - end
        file = self.disk.open(name)
        try:
            file.truncate(end)
            file.sync()
        finally:
            file.close()

    def log(self) -> Log:
        """The log, ready for the next row. Call it when all rows have been read."""
        self.identity.is_clean = False
        self.identity.sync = self.sync
        try:
            self._save()
        except OSError:
            # The disk is full: use the reserve of the crashed run.
            self.disk.remove(RESERVE)
            self._save()
        log = Log(self.disk, self.position, sync=self.sync)
        # A segment of another epoch or version is not continued: its header holds those of all its rows.
        if self._tail is not None:
            header, _, _ = decode_header(self.disk.read(self._tail[0]), self._tail[0])
            if (header.epoch, header.version) == (self.identity.epoch, PACKED):
                log.resume(*self._tail)
        log.make_reserve()
        return log

    def _save(self) -> None:
        replace_file(self.disk, IDENTITY, [msgspec.json.encode(self.identity)])
        # Durable once: a crash then leaves the whole watermark of some commit.
        replace_file(self.disk, WATERMARK, [encode_watermark(self.position.offset, self.position.epoch)])

    def publish(self) -> None:
        """Publish the end of the committed rows to readers in other processes."""
        self.disk.overwrite(WATERMARK, encode_watermark(self.position.offset, self.position.epoch))

    def end(self) -> None:
        """The run ended cleanly: nothing can have been lost."""
        self.identity.is_clean = True
        replace_file(self.disk, IDENTITY, [msgspec.json.encode(self.identity)])
