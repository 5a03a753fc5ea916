"""The thread that writes lines to a file or a stream, so that a slow disk never blocks the loop.

The loop queues items, a list at a time; the thread formats and writes them. What waits is bounded in number and bytes. Items beyond the
bound are dropped, counted, and reported as `log.dropped` in the next write.
"""

from __future__ import annotations

import os
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TextIO, TypeVar

import msgspec

from penstock.core.clock import rfc3339

LINES_MAX = 10_000
"""Lines of one write, roughly."""
BYTES_MAX = 8 * 1024 * 1024
"""Bytes of one write, roughly."""
WAITING_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of envelopes and frames that wait for a file of JSON lines."""
LINGER_S = 0.05
"""How long its thread waits for more lines, so that they share a write."""
CLOSE_S = 5.0
"""How long `close` waits for the last lines."""

Item = TypeVar("Item")


def _report_drops(count: int, total: int) -> bytes:
    return msgspec.json.encode({"event": "log.dropped", "count": count, "total": total})


class LineWriter(Generic[Item]):
    """One sink, and the thread that writes to it."""

    def __init__(
        self,
        sink: RotatingFile | TextSink,
        line: Callable[[Item], bytes],
        *,
        waiting_max: int,
        waiting_bytes_max: int,
        linger_s: float,
        thread: str,
        lines_max: int = LINES_MAX,
        close_s: float = CLOSE_S,
        report: Callable[[int, int], bytes] | None = _report_drops,
    ) -> None:
        self._sink = sink
        """Only the thread uses it."""
        self._line = line
        """Formats an item, without the line end. It runs on the thread and must not raise."""
        self._report = report
        self._waiting_max = waiting_max
        self._waiting_bytes_max = waiting_bytes_max
        self._linger_s = linger_s
        """How long the thread waits for more items after the first: they share a write."""
        self._lines_max = lines_max
        self._close_s = close_s
        self.written = 0
        self._overflowed = 0
        """Items dropped because too many waited. Only the loop changes it."""
        self._unwritten = 0
        """Items that the sink rejected. Only the thread changes it."""
        self._reported = 0
        # Each side changes only its own counters, so no lock is needed.
        self._put_items = self._put_bytes = 0
        self._taken_items = self._taken_bytes = 0
        # A SimpleQueue, unlike a lock, is safe in signal handlers and finalisers, which log too.
        self._queue: queue.SimpleQueue[tuple[list[Item], int] | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=thread, daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Items that were not written."""
        return self._overflowed + self._unwritten

    def put(self, items: list[Item], size: int = 0) -> None:
        """Queue items that hold `size` bytes, or drop them when too much waits."""
        if not items:
            return
        if (
            self._put_items - self._taken_items + len(items) > self._waiting_max
            or self._put_bytes - self._taken_bytes + size > self._waiting_bytes_max
        ):
            self._overflowed += len(items)
            return
        self._put_items += len(items)
        self._put_bytes += size
        self._queue.put((items, size))

    def close(self) -> None:
        """Write what waits, within a deadline."""
        self._closing.set()
        self._queue.put(None)
        self._thread.join(self._close_s)

    def _run(self) -> None:
        is_open = True
        while is_open:
            is_open = self._write_next()
        self._sink.close()

    def _write_next(self) -> bool:
        """Wait for items and write them in one go; False after the last."""
        is_idle = self._queue.empty()
        waiting = self._queue.get()
        if is_idle:
            self._closing.wait(self._linger_s)
        lines: list[bytes] = []
        held = 0
        while waiting is not None:
            items, size = waiting
            lines += [self._line(item) for item in items]
            held += size
            self._taken_items += len(items)
            self._taken_bytes += size
            if self._queue.empty() or len(lines) >= self._lines_max or held >= BYTES_MAX:
                break
            waiting = self._queue.get()
        if lines:
            self._append(lines)
        return waiting is not None

    def _append(self, lines: list[bytes]) -> None:
        count = len(lines)
        missing = self.dropped - self._reported
        if missing and self._report is not None:
            lines.append(self._report(missing, self.dropped))
        try:
            self._sink.write(b"\n".join(lines) + b"\n")
        except (OSError, ValueError):  # a full disk or a closed stream; the next write repeats the report
            self._unwritten += count
            return
        self._reported += missing
        self.written += count


class RotatingFile:
    """A file that is renamed to `.1` when it is full, the older ones to `.2` and so on; the oldest is deleted."""

    def __init__(self, path: Path, *, max_bytes: int | None = None, keep: int = 0) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._keep = keep
        self._file = self._open()
        self._size = os.fstat(self._file).st_size

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, data: bytes) -> None:
        if self._max_bytes is not None and self._size and self._size + len(data) > self._max_bytes:
            self._rotate()
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]
        self._size += len(data)

    def _rotate(self) -> None:
        if self._keep == 0:
            os.ftruncate(self._file, 0)
            self._size = 0
            return
        for number in range(self._keep - 1, 0, -1):
            older = Path(f"{self._path}.{number}")
            if older.exists():
                older.replace(f"{self._path}.{number + 1}")
        self._path.replace(f"{self._path}.1")
        fresh = self._open()
        os.close(self._file)
        self._file, self._size = fresh, 0

    def close(self) -> None:
        os.close(self._file)


def json_line(head: dict[str, Any], fields: dict[str, Any]) -> bytes:
    """A line of JSON; a value without a JSON form must not end the thread."""
    try:
        return msgspec.json.encode(head | fields)
    except (TypeError, ValueError, OverflowError) as error:
        return msgspec.json.encode({**head, "unprintable": str(error)})


class JsonLines(LineWriter[Item], ABC):
    """Lines of JSON in a file that is rotated."""

    _moment = (-1, "")
    """The latest millisecond as text: many lines share it."""

    def __init__(self, path: Path, *, max_bytes: int, keep: int, waiting_max: int, thread: str | None = None) -> None:
        super().__init__(
            RotatingFile(path, max_bytes=max_bytes, keep=keep),
            self._format,
            waiting_max=waiting_max,
            waiting_bytes_max=WAITING_BYTES_MAX,
            linger_s=LINGER_S,
            thread=thread or f"penstock-{path.stem}",
        )

    @abstractmethod
    def _format(self, item: Item) -> bytes: ...

    def _stamp(self, at_us: int) -> str:
        if at_us // 1000 != self._moment[0]:
            self._moment = (at_us // 1000, rfc3339(at_us))
        return self._moment[1]


class TextSink:
    """A stream of text such as stderr."""

    def __init__(self, stream: TextIO, *, owned: bool) -> None:
        self._stream = stream
        self._owned = owned

    def write(self, data: bytes) -> None:
        self._stream.write(data.decode())
        self._stream.flush()

    def close(self) -> None:
        if self._owned:
            self._stream.close()
