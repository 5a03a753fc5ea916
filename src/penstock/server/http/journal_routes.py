"""The HTTP answers about the journal: how far it reaches, its rows as an Arrow stream, who reads it, and sealing now.

Files are read on threads of their own: the loop only starts a read and carries the answer. An answer is bounded in rows and
bytes, and says in a header where the next one begins, so a client asks again instead of holding a thread for hours.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import msgspec
import pyarrow as pa

from penstock.core.errors import Refusal
from penstock.core.scopes import Principal
from penstock.journal import named_readers
from penstock.journal.disk import RealDisk
from penstock.journal.parquet_table import FILE_SCHEMA
from penstock.journal.reader import Bounds, JournalError, JournalReader
from penstock.journal.segments import DamageError
from penstock.server.http.routes import JournalQuery, ReaderRequest
from penstock.server.logging import logs

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.journal.seal import SealReport
    from penstock.server.journal.lifecycle import JournalLifecycle

ROWS_MAX = 100_000
"""Rows of one answer."""
BYTES_MAX = 64 * 1024 * 1024
"""Bytes of one answer; a single row that is larger still gets through."""
THREADS = 2
"""Reads at a time: history must not take the machine from the messages."""
WAITING_MAX = 32
"""Reads that may wait for a thread."""
CONTENT_TYPE = "application/vnd.apache.arrow.stream"
NEXT, END, EPOCH = "X-Penstock-Next", "X-Penstock-End", "X-Penstock-Epoch"


class Rows(msgspec.Struct):
    """A bounded part of a range: an Arrow stream, and where to go on."""

    stream: bytes
    next: int
    end: int
    """How far the journal reached when this was read."""
    epoch: int

    @property
    def headers(self) -> dict[str, str]:
        return {NEXT: str(self.next), END: str(self.end), EPOCH: str(self.epoch)}


T = TypeVar("T")
Answer = dict[str, object] | Rows | Refusal
Done = Callable[[Answer], None]
Cancel = Callable[[], None]


def permit(principal: Principal) -> Refusal | None:
    """The journal holds every message of everybody, so only an administrator reads it."""
    if principal.is_admin:
        return None
    if principal.anonymous:
        hint = "send the token of `DIR/run/operator.token`, or one with the scope `admin:*`"
        return Refusal("Unauthorized", "the journal needs the operator's token", hint=hint)
    return Refusal("Forbidden", "the journal needs the scope `admin:*`")


class History:
    """Answers about one data directory's journal; without one, says so."""

    def __init__(self, archive: JournalLifecycle | None) -> None:
        self._archive = archive
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="history")
        self._kept = threading.local()
        self._reads = 0
        self._seals: dict[asyncio.Task[None], None] = {}

    def answer(self, name: str, principal: Principal, asked: msgspec.Struct, done: Done) -> Cancel | None:
        """Answer a route by its name and its query or body, through `done`, later. Returns how to give up."""
        refusal = permit(principal)
        if refusal is None and self._archive is None:
            hint = "start the server with `--data DIR` to have one"
            refusal = Refusal("UnknownRoute", "this server keeps no journal", hint=hint)
        if refusal is not None:
            done(refusal)
            return None
        assert self._archive is not None
        if name == "journal_seal":
            task = asyncio.get_running_loop().create_task(self._seal(self._archive, done))
            self._seals[task] = None
            task.add_done_callback(self._seals.pop)
            return None  # a seal that has begun goes on, whoever hangs up
        data = self._archive.data
        match asked:
            case JournalQuery():
                return self._read(lambda: read_rows(self._reader(data), asked), done)
            case ReaderRequest():
                return self._read(lambda: hold(self._reader(data), data, asked), done)
            case _:
                return self._read(lambda: describe(self._reader(data)), done)

    def _reader(self, data: Path) -> JournalReader:
        """The reader of this thread: a kept one need not look for what it has found before."""
        if not hasattr(self._kept, "reader"):
            self._kept.reader = JournalReader(data)
        reader: JournalReader = self._kept.reader
        return reader

    def _read(self, work: Callable[[], Answer], done: Done) -> Cancel | None:
        if self._reads >= THREADS + WAITING_MAX:
            done(Refusal("RateLimited", f"{self._reads} reads of the journal are under way"))
            return None
        self._reads += 1
        future = asyncio.get_running_loop().run_in_executor(self._threads, guarded, work)

        def finish(read: asyncio.Future[Answer]) -> None:
            self._reads -= 1
            if not read.cancelled():
                done(read.result())

        def cancel() -> None:
            future.cancel()

        future.add_done_callback(finish)
        return cancel

    async def _seal(self, archive: JournalLifecycle, done: Done) -> None:
        try:
            done(report_json(await archive.seal(wants_live=True)))
        except Exception as error:
            logs.error("journal.seal_failed", exc=error)
            done(Refusal("JournalUnavailable", "sealing failed; the log says why"))


def report_json(report: SealReport) -> dict[str, object]:
    """What a seal did, as the API spells it."""
    return {
        "sealedRows": report.sealed_rows,
        "sealedEnd": report.sealed_end,
        "liveOffset": report.live_offset,
        "removedSegments": report.removed_segments,
        "removedFiles": report.removed_files,
        "removedBytes": report.removed_bytes,
        "endedReaders": report.ended_readers,
    }


def guarded(work: Callable[[], T]) -> T | Refusal:
    """Failures of a read as refusals, so that nothing is raised across the threads."""
    try:
        return work()
    except DamageError as error:
        logs.error("journal.damaged", exc=error)
        return Refusal("JournalDamaged", str(error))
    except JournalError as error:  # the range moved away while it was read
        return Refusal("RangeGone", str(error))
    except Exception as error:
        logs.error("journal.read_failed", exc=error)
        return Refusal("Internal", "the journal could not be read; the log says why")


def describe(reader: JournalReader) -> dict[str, object]:
    """The bounds of the journal and the columns of its rows."""
    bounds = reader.bounds()
    return {
        "journal": bounds.journal,
        "shard": bounds.shard,
        "epoch": bounds.epoch,
        "first": bounds.first,
        "sealedEnd": bounds.sealed_end,
        "end": bounds.end,
        "schema": [{"name": field.name, "type": str(field.type)} for field in FILE_SCHEMA],
    }


def hold(reader: JournalReader, data: Path, asked: ReaderRequest) -> dict[str, object] | Refusal:
    """A named reader has come so far."""
    end = reader.mark().end
    if asked.offset > end:
        message = f"row {asked.offset} is not written yet; the journal reaches to {end}"
        return Refusal("InvalidRequest", message, ref="offset")
    known = named_readers.advance(
        RealDisk(data / "journal"), asked.name, asked.offset, time.time_ns() // 1000
    )
    return {"name": known.name, "offset": known.offset}


def read_rows(reader: JournalReader, query: JournalQuery) -> Rows | Refusal:
    """The rows of a range, up to the bounds of one answer."""
    columns = query.columns.split(",") if query.columns else None
    refusal = _misfit(query, columns)
    if refusal is not None:
        return refusal
    bounds = reader.bounds()
    first = bounds.first if query.first is None else query.first
    refusal = _outside(bounds, first, query.end)
    if refusal is not None:
        return refusal
    limit = min(query.limit or ROWS_MAX, ROWS_MAX)
    end = min(bounds.end if query.end is None else query.end, bounds.end, first + limit)
    schema = FILE_SCHEMA if columns is None else pa.schema([FILE_SCHEMA.field(name) for name in columns])
    stream, count = encode_stream(reader.batches(first, end, columns), schema, BYTES_MAX)
    return Rows(stream, first + count, bounds.end, bounds.epoch)


def _misfit(query: JournalQuery, columns: Sequence[str] | None) -> Refusal | None:
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
    """An Arrow IPC stream of at least one row and about `bytes_max` bytes, and how many rows it holds."""
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
    """How many rows from the front of a batch fit; the very first always does, or nobody would ever get on."""
    if batch.nbytes <= room:
        return int(batch.num_rows)
    low, high = int(is_first), batch.num_rows
    while low < high:
        middle = (low + high + 1) // 2
        if batch.slice(0, middle).nbytes <= room:
            low = middle
        else:
            high = middle - 1
    return low
