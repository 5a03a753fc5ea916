"""A file of JSON lines that the loop never waits for: bounded in what waits, in its size, and in how many old ones are kept.

The loop puts values aside, a list for each turn; a thread of its own makes lines of them and writes. What waits is bounded in
number and bytes: beyond that items are dropped, counted, and reported as `log.dropped`. A file that has grown to its bound
is put aside as `.1`, those before it as `.2` and so on, and the oldest goes.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections import deque
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

LINES_MAX = 10_000
"""Lines of one write, more or less."""
BYTES_MAX = 8 * 1024 * 1024
"""Bytes of one write, more or less."""
CLOSE_S = 5.0
"""How long the end of the process waits for the last lines."""

Item = TypeVar("Item")


class LineLog(ABC, Generic[Item]):
    """One file, and the thread that writes it. Whoever inherits says what the line of an item is."""

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int,
        keep: int,
        waiting_max: int,
        waiting_bytes_max: int,
        linger_s: float,
        thread: str,
    ) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._keep = keep
        self._waiting_max = waiting_max
        self._waiting_bytes_max = waiting_bytes_max
        self._linger_s = linger_s
        """How often the thread looks for new items: that many more fit into one write."""
        self.written = 0
        self._overflowed = 0
        """Items dropped because too many waited. Only the loop adds to it."""
        self._unwritten = 0
        """Items that the file refused. Only the thread adds to it."""
        self._reported = 0
        self._turns: deque[tuple[list[Item], int]] = deque()
        """Items, and the bytes that they hold beside their own."""
        self._waiting = 0
        """Items put aside so far, less those that the thread has taken: each side only ever adds to its own count."""
        self._taken = 0
        self._waiting_bytes = 0
        """The same of their bytes."""
        self._taken_bytes = 0
        self._file = self._open()
        self._size = os.fstat(self._file).st_size
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=thread, daemon=True)
        self._thread.start()

    @abstractmethod
    def _line(self, item: Item) -> bytes:
        """The line of an item, without its end; made on the thread, and it must not raise."""

    # On the loop

    @property
    def dropped(self) -> int:
        """Items that were not written."""
        return self._overflowed + self._unwritten

    def _put(self, turn: list[Item], size: int = 0) -> None:
        if not turn:
            return
        if (
            self._waiting - self._taken + len(turn) > self._waiting_max
            or self._waiting_bytes - self._taken_bytes + size > self._waiting_bytes_max
        ):
            self._overflowed += len(turn)
            return
        self._waiting += len(turn)
        self._waiting_bytes += size
        self._turns.append((turn, size))

    def close(self) -> None:
        """Write what waits, for a moment at most."""
        self._closing.set()
        self._thread.join(CLOSE_S)

    # On the thread

    def _run(self) -> None:
        while not self._closing.wait(self._linger_s):
            self._drain()
        self._drain()
        os.close(self._file)

    def _drain(self) -> None:
        while self._turns:
            lines: list[bytes] = []
            held = 0
            while self._turns and len(lines) < LINES_MAX and held < BYTES_MAX:
                turn, size = self._turns.popleft()
                lines += [self._line(item) for item in turn]
                held += size
                self._taken += len(turn)
                self._taken_bytes += size
            self._append(lines)

    def _append(self, lines: list[bytes]) -> None:
        missing = self.dropped - self._reported
        if missing:
            report = {"event": "log.dropped", "count": missing, "total": self.dropped}
            lines.append(msgspec.json.encode(report))
        data = b"\n".join(lines) + b"\n"
        try:
            if self._size and self._size + len(data) > self._max_bytes:
                self._rotate()
            self._size += _write_all(self._file, data)
        except OSError:
            # A full disk: the next write may do better, and the report comes with it.
            self._unwritten += len(lines) - bool(missing)
            return
        self._reported += missing
        self.written += len(lines) - bool(missing)

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def _rotate(self) -> None:
        """Put the file aside as `.1`, those before it as `.2` and so on."""
        if self._keep == 0:
            os.ftruncate(self._file, 0)
            self._size = 0
            return
        for number in range(self._keep - 1, 0, -1):
            aside = Path(f"{self._path}.{number}")
            if aside.exists():
                aside.replace(f"{self._path}.{number + 1}")
        self._path.replace(f"{self._path}.1")
        fresh = self._open()
        os.close(self._file)
        self._file, self._size = fresh, 0


def _write_all(file: int, data: bytes) -> int:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
    return len(data)
