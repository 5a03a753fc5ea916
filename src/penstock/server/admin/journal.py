"""`/v1/journal`: the bounds of the journal, its rows as an Arrow stream, named readers, and sealing on request.

Threads of their own read the files; the event loop only waits. An answer is bounded in rows and bytes and names the next
offset in a header, so a client asks again instead of holding a thread for hours.
"""

from __future__ import annotations

import asyncio
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
import pyarrow as pa

from penstock.core.errors import PenstockError, Refusal
from penstock.core.scopes import Principal
from penstock.journal import named_readers
from penstock.journal.disk import RealDisk
from penstock.journal.parquet_table import FILE_SCHEMA
from penstock.journal.reader import Bounds, JournalError, JournalReader
from penstock.journal.segments import DamageError
from penstock.server.logging import logs
from penstock.transports.http_replies import Reply

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.journal.seal import SealReport
    from penstock.server.journal.lifecycle import JournalLifecycle

ROWS_MAX = 100_000
"""Rows of one answer."""
BYTES_MAX = 16 * 1024 * 1024
"""Bytes of one answer, which waits in memory until it is read; a single larger row still gets through."""
THREADS = 2
"""Reads at a time: history must not take the CPU from messages."""
WAITING_MAX = 32
"""Reads that may wait for a thread."""
CONTENT_TYPE = "application/vnd.apache.arrow.stream"
NO_JOURNAL = Refusal(
    "UnknownRoute", "this server keeps no journal", hint="start the server with `--data DIR` to have one"
)
TOKEN_HINT = "send the token of `DIR/run/operator.token`, or one with the scope `admin:*`"
NEXT, END, EPOCH = "X-Penstock-Next", "X-Penstock-End", "X-Penstock-Epoch"

Offset = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Time = Annotated[str, msgspec.Meta(extra_json_schema={"format": "date-time"})]


class JournalQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The query of `/v1/journal/rows`: rows `from` to `to - 1`; by default all there are."""

    shard: int = 0
    first: Offset | None = msgspec.field(default=None, name="from")
    end: Offset | None = msgspec.field(default=None, name="to")
    columns: str | None = None
    """Names separated by commas; else all of them."""
    limit: Annotated[int, msgspec.Meta(ge=1)] | None = None


class ReaderRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `/v1/journal/readers`: a named reader has every row before `offset`."""

    name: Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9._-]{1,64}$")]
    offset: Offset


class ColumnType(msgspec.Struct, frozen=True):
    """A column of a table."""

    name: str
    type: str


class JournalBoundsReply(msgspec.Struct, rename="camel"):
    """How far the journal reaches, and the columns of its rows."""

    journal: str
    shard: Count
    epoch: Count
    first: Count
    sealed_end: Count
    end: Count
    schema: list[ColumnType]


class SealedReply(msgspec.Struct, rename="camel"):
    """What a seal did."""

    sealed_rows: Count
    sealed_end: Count
    live_offset: Count
    removed_segments: Count
    removed_files: Count
    removed_bytes: Count
    ended_readers: list[str]


class JournalReaderReply(msgspec.Struct):
    """A named reader and how far it has come."""

    name: str
    offset: Count


T = TypeVar("T")


def permit(principal: Principal, what: str, hint: str | None = None) -> Refusal | None:
    """Why a principal may not use what is for administrators."""
    if principal.is_admin:
        return None
    if principal.anonymous:
        return Refusal("Unauthorized", f"{what} needs the operator's token", hint=hint)
    return Refusal("Forbidden", f"{what} needs the scope `admin:*`")


class ThreadReader(threading.local):
    """One reader a thread, kept because it remembers where rows are."""

    _reader: JournalReader | None = None

    def get(self, data: Path) -> JournalReader:
        if self._reader is None:
            self._reader = JournalReader(data)
        return self._reader


class JournalReads:
    """Reads of one data directory's journal; without a directory, refusals."""

    def __init__(self, archive: JournalLifecycle | None) -> None:
        self.archive = archive
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="history")
        self._readers = ThreadReader()
        self._seals: set[asyncio.Task[SealedReply | Refusal]] = set()
        self._reads = 0

    async def describe(self, principal: Principal) -> JournalBoundsReply | Refusal:
        return await self._ask(principal, lambda reader, data: describe(reader))

    async def rows(self, principal: Principal, query: JournalQuery) -> Reply | Refusal:
        return await self._ask(principal, lambda reader, data: read_rows(reader, query))

    async def hold(self, principal: Principal, asked: ReaderRequest) -> JournalReaderReply | Refusal:
        return await self._ask(principal, lambda reader, data: hold(reader, data, asked))

    async def seal(self, principal: Principal) -> SealedReply | Refusal:
        archive = self._open(principal)
        if isinstance(archive, Refusal):
            return archive
        # A seal that has begun goes on when the client disconnects.
        sealing = asyncio.get_running_loop().create_task(self._seal(archive))
        self._seals.add(sealing)  # the loop keeps only a weak reference
        sealing.add_done_callback(self._seals.discard)
        return await asyncio.shield(sealing)

    async def _seal(self, archive: JournalLifecycle) -> SealedReply | Refusal:
        try:
            return to_sealed(await archive.seal(wants_live=True))
        except Exception:  # logged where it happened
            hint = "`penstock doctor` and `penstock log check` say what is damaged"
            return Refusal("JournalUnavailable", f"sealing failed: {archive.lake_trouble}", hint=hint)

    def _open(self, principal: Principal) -> JournalLifecycle | Refusal:
        # It holds all messages of all tenants.
        if (refusal := permit(principal, "the journal", TOKEN_HINT)) is not None:
            return refusal
        return NO_JOURNAL if self.archive is None else self.archive

    async def _ask(self, principal: Principal, work: Callable[[JournalReader, Path], T | Refusal]) -> T | Refusal:
        archive = self._open(principal)
        if isinstance(archive, Refusal):
            return archive
        return await self._read(lambda: work(self._readers.get(archive.data), archive.data))

    async def _read(self, work: Callable[[], T]) -> T | Refusal:
        if self._reads >= THREADS + WAITING_MAX:
            return Refusal("RateLimited", f"{self._reads} reads of the journal are under way")
        self._reads += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, guarded, work)
        finally:
            self._reads -= 1


def to_sealed(report: SealReport) -> SealedReply:
    return msgspec.convert(report, SealedReply, from_attributes=True)


def guarded(work: Callable[[], T]) -> T | Refusal:
    """Turn the failures of a read into refusals: nothing is raised across threads."""
    try:
        return work()
    except DamageError as error:
        logs.error("journal.damaged", exc=error)
        return Refusal("JournalDamaged", str(error))
    except JournalError as error:  # retention removed the range while it was read
        return Refusal("RangeGone", str(error))
    except PenstockError as error:
        return error.refusal
    except OSError as error:
        logs.error("journal.read_failed", exc=error)
        return Refusal("JournalUnavailable", f"the disk refuses: {error.strerror or error}")
    except Exception as error:
        logs.error("journal.read_failed", exc=error)
        return Refusal("Internal", "the journal could not be read; the log says why")


def describe(reader: JournalReader) -> JournalBoundsReply:
    """The bounds of the journal and the columns of its rows."""
    bounds = reader.bounds()
    columns = [ColumnType(field.name, str(field.type)) for field in FILE_SCHEMA]
    return JournalBoundsReply(
        bounds.journal, bounds.shard, bounds.epoch, bounds.first, bounds.sealed_end, bounds.end, columns
    )


def hold(reader: JournalReader, data: Path, asked: ReaderRequest) -> JournalReaderReply | Refusal:
    """Note how far a named reader has come."""
    end = reader.mark().end
    if asked.offset > end:
        message = f"row {asked.offset} is not written yet; the journal reaches to {end}"
        return Refusal("InvalidRequest", message, ref="offset")
    now_us = time.time_ns() // 1000
    known = named_readers.advance(RealDisk(data / "journal"), asked.name, asked.offset, now_us)
    return JournalReaderReply(known.name, known.offset)


def read_rows(reader: JournalReader, query: JournalQuery) -> Reply | Refusal:
    """The rows of a range, up to the bounds of one answer."""
    columns = query.columns.split(",") if query.columns else None
    if (refusal := _invalid(query, columns)) is not None:
        return refusal
    bounds = reader.bounds()
    first = bounds.first if query.first is None else query.first
    if (refusal := _outside(bounds, first, query.end)) is not None:
        return refusal
    limit = min(query.limit or ROWS_MAX, ROWS_MAX)
    end = min(bounds.end if query.end is None else query.end, bounds.end, first + limit)
    schema = FILE_SCHEMA if columns is None else pa.schema([FILE_SCHEMA.field(name) for name in columns])
    stream, count = encode_stream(reader.batches(first, end, columns), schema, BYTES_MAX)
    headers = {NEXT: str(first + count), END: str(bounds.end), EPOCH: str(bounds.epoch)}
    return Reply(200, stream, CONTENT_TYPE, headers)


def _invalid(query: JournalQuery, columns: Sequence[str] | None) -> Refusal | None:
    if query.shard != 0:
        return Refusal("InvalidRequest", f"there is no shard {query.shard}", ref="shard", hint="use shard 0")
    for name in columns or ():
        if name not in FILE_SCHEMA.names:
            hint = f"columns: {', '.join(FILE_SCHEMA.names)}"
            return Refusal("InvalidRequest", f"there is no column `{name[:80]}`", ref="columns", hint=hint)
    if columns is not None and len(dict.fromkeys(columns)) != len(columns):
        return Refusal("InvalidRequest", "a column is named twice", ref="columns")
    return None


def _outside(bounds: Bounds, first: int, end: int | None) -> Refusal | None:
    if first < bounds.first:
        message = f"rows {first} to {bounds.first - 1} are no longer kept; the oldest is {bounds.first}"
        return Refusal("RangeGone", message, ref="from")
    if first > bounds.end:
        message = f"row {first} is not written yet; the journal reaches to {bounds.end}"
        return Refusal("InvalidRequest", message, ref="from", hint=f"start at {bounds.end} or before")
    if end is not None and end < first:
        return Refusal("InvalidRequest", f"`to` is {end}, before `from`, which is {first}", ref="to")
    return None


def encode_stream(batches: Iterable[pa.RecordBatch], schema: pa.Schema, bytes_max: int) -> tuple[bytes, int]:
    """An Arrow IPC stream of at least one row and about `bytes_max` bytes, and its number of rows."""
    sink = pa.BufferOutputStream()
    count = 0
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            part = batch.slice(0, _fitting(batch, bytes_max - sink.tell(), is_first=count == 0))
            if part.num_rows:
                writer.write_batch(pa.RecordBatch.from_arrays(part.columns, schema=schema))
                count += part.num_rows
            if part.num_rows < batch.num_rows or sink.tell() >= bytes_max:
                break
    return sink.getvalue().to_pybytes(), count


def _fitting(batch: pa.RecordBatch, room: int, *, is_first: bool) -> int:
    """How many rows from the front of a batch fit; the very first always does, so that each answer makes progress."""
    if batch.nbytes <= room:
        return int(batch.num_rows)
    fitting = bisect_right(range(1, batch.num_rows), room, key=lambda count: batch.slice(0, count).nbytes)
    return max(fitting, int(is_first))
