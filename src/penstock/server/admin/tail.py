"""`/v1/tail`: rows of the journal as JSON that pass a filter, oldest first, and a wait for the next ones.

A thread reads the files, a bounded number of rows and a bounded time per answer; the answer says where to go on. A
waiting request polls a number in memory and opens no file. A follower that cannot keep up gets the number of rows it missed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET, UnsetType

from penstock.core.errors import Refusal
from penstock.core.scopes import Principal
from penstock.journal.columns import SCHEMA
from penstock.journal.plain_values import plain_row, records
from penstock.journal.reader import Bounds, JournalReader, RangeGoneError
from penstock.journal.selection import BOUND, Selection
from penstock.server.admin.journal import NO_JOURNAL, Count, Offset, ThreadReader, Time, guarded
from penstock.server.admin.reload import REVOKED
from penstock.server.journal.lifecycle import JournalLifecycle
from penstock.transports.http_replies import Reply, json_reply

Pattern = Annotated[str, msgspec.Meta(max_length=1_024)] | None
BODY_CHARS = 2_000
"""Characters of a body in an answer."""
ANSWER_BYTES = 4 * 1024 * 1024
"""Bytes of one answer."""
SCAN_ROWS = 200_000
"""Rows that one answer scans."""
SCAN_S = 0.5
"""About how long one answer scans; it takes at least one step."""
STEP_FIRST_ROWS = 1_000
STEP_ROWS = 50_000
"""Rows between two looks at the clock: few at first, because their bodies may be long, then more each time."""
STEP_GROWTH = 16
PAUSE_ROWS = 50
"""Rows encoded before the thread yields to the event loop: well below a millisecond."""
BEHIND_ROWS = 20_000
"""A follower with `skip` that is further behind continues at the end."""
LOOK_S = 0.1
"""How often a waiting request looks for new rows; rows that arrive in between come in one answer."""
WAITING_MAX = 64
"""Requests that wait for rows or for a thread."""
THREADS = 2
"""Scans at a time: a long one must not delay a follower."""
GONE_MAX = 3
"""How often a scan starts again because retention removed its rows."""

_TEXTS = ("id", "corr", "body")
"""Columns that `text` searches."""
_BODY_BYTES = BODY_CHARS * 4 + 4
"""A character has at most four bytes, so the text never ends within one."""


class TailQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The query of `/v1/tail`: rows from `after` on; by default the last `back` rows. `*` matches any text."""

    after: Offset | None = None
    back: Annotated[int, msgspec.Meta(ge=0, le=2_000)] = 100
    door: Pattern = None
    channel: Pattern = None
    event: Pattern = None
    kind: Pattern = None
    sender: Pattern = msgspec.field(default=None, name="from")
    id: Pattern = None
    corr: Pattern = None
    text: Pattern = None
    """In the body, the id or the correlation id, ignoring case."""
    max: Annotated[int, msgspec.Meta(ge=1, le=2_000)] = 500
    wait_ms: Annotated[int, msgspec.Meta(ge=0, le=20_000)] = 0
    """How long to wait for the first row."""
    skip: Annotated[int, msgspec.Meta(ge=0, le=1)] = 0
    """1: a follower that is far behind continues near the end and gets the number of rows it missed."""


class TailRow(msgspec.Struct):
    """A row of the journal. Documentation: rows go out as the bytes that their thread encoded."""

    offset: Count
    recorded_at: Time
    door: str
    event: str
    channel: str | UnsetType = UNSET
    seq: Count | UnsetType = UNSET
    id: str | UnsetType = UNSET
    kind: str | UnsetType = UNSET
    sender: str | UnsetType = UNSET
    peer: str | UnsetType = UNSET
    corr: str | UnsetType = UNSET
    attempt: Count | UnsetType = UNSET
    bytes: Count | UnsetType = UNSET
    recipients: Count | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    ref_offset: Count | UnsetType = UNSET
    ref_at: Time | UnsetType = UNSET
    first_at: Time | UnsetType = UNSET
    meta: Any = UNSET
    body: str | UnsetType = UNSET
    body_cut: bool | UnsetType = UNSET


class TailReply(msgspec.Struct, rename="camel"):
    """Rows that pass the filter, and where to go on."""

    rows: list[TailRow]
    next: Count
    end: Count
    first: Count
    epoch: Count
    missed: Count
    is_scanned: bool


class TailPage(msgspec.Struct):
    """The result of one scan."""

    rows: list[msgspec.Raw]
    next: int
    missed: int
    bounds: Bounds

    @property
    def is_at_end(self) -> bool:
        return self.next >= self.bounds.end

    def reply(self) -> Reply:
        bounds = self.bounds
        reach = {"next": self.next, "end": bounds.end, "first": bounds.first, "epoch": bounds.epoch}
        return json_reply(200, {"rows": self.rows, **reach, "missed": self.missed, "isScanned": self.is_at_end})


@dataclass(eq=False)
class Tail:
    """Answers of `/v1/tail`."""

    _archive: JournalLifecycle | None
    _is_draining: Callable[[], bool] = lambda: False
    _renewed: Callable[[Principal], Principal | None] = lambda principal: principal
    """The rights that a principal has now; None when its token is gone."""
    waiting: int = 0
    _threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(THREADS, "tail"))
    _readers: ThreadReader = field(default_factory=ThreadReader)

    async def tail(self, principal: Principal, query: TailQuery) -> Reply | Refusal:
        """The rows of the query, or the next ones."""
        archive = self._archive
        if archive is None:
            return NO_JOURNAL
        if self.waiting >= WAITING_MAX:
            return Refusal("RateLimited", f"{self.waiting} tails are waiting already")
        self.waiting += 1
        try:
            answer = await self._follow(archive, principal, query)
        finally:
            self.waiting -= 1
        renewed = self._renewed(principal)  # the token may have been revoked during the wait
        return answer if renewed is not None and renewed.is_admin else REVOKED

    async def _follow(self, archive: JournalLifecycle, principal: Principal, query: TailQuery) -> Reply | Refusal:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + query.wait_ms / 1000
        if query.wait_ms and query.after is not None:
            await asyncio.sleep(min(LOOK_S, query.wait_ms / 1000))
        missed = 0
        while True:
            found = await loop.run_in_executor(self._threads, self._look, archive.data, query)
            if isinstance(found, Refusal):
                return found
            found.missed += missed
            missed = found.missed
            has_lost = query.after is not None and found.next < query.after  # in a crash
            if found.rows or missed or has_lost or not found.is_at_end:
                return found.reply()
            query = msgspec.structs.replace(query, after=found.next)
            is_new = False
            while not is_new:  # always one pause between two scans, even where the disk lags behind memory
                rest_s = deadline - loop.time()
                if rest_s <= 0 or self._is_draining() or self._renewed(principal) is None:
                    return found.reply()
                await asyncio.sleep(min(LOOK_S, rest_s))
                is_new = archive.journal.next_offset > found.next

    def _look(self, data: Path, query: TailQuery) -> TailPage | Refusal:
        return guarded(lambda: look(self._readers.get(data), query))


def look(reader: JournalReader, query: TailQuery) -> TailPage:
    """The rows from `after` on that pass, up to the bounds of one answer."""
    for again in range(GONE_MAX, -1, -1):
        bounds = reader.bounds()
        walk = _Walk(reader, query, bounds)
        try:
            return walk.forward(*_begin(walk, bounds, query))
        except RangeGoneError:  # the next scan counts the rows that are gone
            if not again:
                raise
    raise AssertionError("the last look returns or raises")


def _begin(walk: _Walk, bounds: Bounds, query: TailQuery) -> tuple[int, int]:
    """Where an answer begins, and how many rows it skips before that."""
    if query.after is None:
        return walk.back(query.back), 0
    if query.after > bounds.end:  # a crash lost rows
        return bounds.end, 0
    first = max(query.after, bounds.first)
    if query.skip and bounds.end - first > BEHIND_ROWS:
        first = max(first, bounds.end - query.max)
    return first, first - query.after


class _Walk:
    """One walk through a part of the journal, bounded in rows and time."""

    def __init__(self, reader: JournalReader, query: TailQuery, bounds: Bounds) -> None:
        self._reader = reader
        self._query = query
        self._bounds = bounds
        self._selection = Selection.of(**{name: getattr(query, name) for name in BOUND})
        self._ends_at = time.monotonic() + SCAN_S

    def forward(self, first: int, missed: int) -> TailPage:
        """The rows that pass from `first` on."""
        found = TailPage([], first, missed, self._bounds)
        size = 0
        is_all = not self._selection.columns and self._query.text is None
        for begin, end in self._steps(first, self._query.max if is_all else SCAN_ROWS):
            for batch in self._passed(begin, end):
                fitting = batch.slice(0, self._query.max + 1 - len(found.rows))
                for count, row in enumerate(records(_with_short_bodies(fitting))):
                    if not count % PAUSE_ROWS:
                        time.sleep(0)  # release the GIL: the event loop goes first
                    encoded = msgspec.json.encode(shown(row))
                    size += len(encoded) + 1
                    if len(found.rows) >= self._query.max or (found.rows and size > ANSWER_BYTES):
                        found.next = row["offset"]
                        return found
                    found.rows.append(msgspec.Raw(encoded))
            found.next = end
        return found

    def back(self, count: int) -> int:
        """Where the last `count` rows that pass begin; at most as far back as one answer scans."""
        first, end = self._bounds.first, self._bounds.end
        if not self._selection.columns and self._query.text is None:
            return max(first, end - count)
        low, step = end, min(STEP_FIRST_ROWS, STEP_ROWS)
        while low > first and count > 0 and end - low < SCAN_ROWS and time.monotonic() < self._ends_at:
            high, low = low, max(first, low - step)
            step = min(step * STEP_GROWTH, STEP_ROWS)
            offsets = self._offsets(low, high)
            if len(offsets) >= count:
                return offsets[-count]
            count -= len(offsets)
        self._ends_at += SCAN_S
        return low if count > 0 else end

    def _steps(self, first: int, rows: int) -> Iterator[tuple[int, int]]:
        end = min(first + rows, self._bounds.end)
        step = min(STEP_FIRST_ROWS, STEP_ROWS)
        while first < end:
            yield first, min(first + step, end)
            first += step
            if time.monotonic() >= self._ends_at:
                return
            step = min(step * STEP_GROWTH, STEP_ROWS)

    def _passed(self, first: int, end: int) -> Iterator[pa.RecordBatch]:
        """The rows of a step that pass. A filter on small columns runs first, so bodies are read only around its matches."""
        if self._selection.columns and self._query.text is None:
            offsets = self._offsets(first, end)
            if not offsets:
                return
            first, end = offsets[0], offsets[: self._query.max + 1][-1] + 1
        yield from self._chosen(first, end, SCHEMA.names)

    def _offsets(self, first: int, end: int) -> list[int]:
        """The offsets of the rows of a step that pass."""
        columns = ["offset"] if self._query.text is None else ["offset", *_TEXTS]
        return [offset for batch in self._chosen(first, end, columns) for offset in batch.column("offset").to_pylist()]

    def _chosen(self, first: int, end: int, columns: list[str]) -> Iterator[pa.RecordBatch]:
        for batch in self._reader.batches(first, end, columns, self._selection):
            chosen = batch if self._query.text is None else _holding(batch, self._query.text)
            if chosen.num_rows:
                yield chosen


def _holding(batch: pa.RecordBatch, text: str) -> pa.RecordBatch:
    """The rows whose id, correlation id or body contains a text, ignoring case."""
    mask = None
    for name in _TEXTS:
        column = batch.column(name)
        if name == "body" and not text.isascii():  # Arrow ignores case in bytes only for ASCII
            wanted = text.lower()
            bodies = column.to_pylist()
            held = pa.array([body is not None and wanted in body.decode(errors="replace").lower() for body in bodies])
        else:
            held = pc.fill_null(pc.match_substring(column, text, ignore_case=True), False)
        mask = held if mask is None else pc.or_(mask, held)
    return batch.filter(mask)


def _with_short_bodies(batch: pa.RecordBatch) -> pa.RecordBatch:
    index = batch.schema.get_field_index("body")
    return batch.set_column(index, "body", pc.binary_slice(batch.column(index), 0, _BODY_BYTES))


def shown(row: dict[str, Any]) -> dict[str, Any]:
    """A row as JSON: without nulls, and with the beginning of a long body."""
    plain, body = plain_row(row), row.get("body")
    if body is not None:
        text = body.decode(errors="replace")
        plain["body"] = text[:BODY_CHARS]
        plain["body_cut"] = len(text) > BODY_CHARS
    return plain
