"""One writer for each lake table: a lock among the threads and processes of one machine.

The lock belongs to an open file, so the kernel releases it when its process ends, however it ends.
"""

# size: a lock shared by the tables and the pipeline's process

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.journal.lake_location import LakePath, side_of

FOLDER = "_locks"


class TableLock:
    """The writer's lock of one table; reentrant within a thread."""

    def __init__(self, lake: LakePath, name: str) -> None:
        self._path = side_of(lake) / FOLDER / name
        self._threads = threading.RLock()
        self._fd: int | None = None

    @contextmanager
    def held(self, *, waits: bool = True) -> Iterator[bool]:
        """Hold the lock; with `waits` off, yield False if another writer holds it."""
        # Two locks: a file lock does not exclude threads of its own process, which share the open file.
        if not self._threads.acquire(blocking=waits):
            yield False
            return
        try:
            if self._fd is not None:
                yield True
                return
            self._fd = self._lock(waits=waits)
            try:
                yield self._fd is not None
            finally:
                if self._fd is not None:
                    os.close(self._fd)
                    self._fd = None
        finally:
            self._threads.release()

    def _lock(self, *, waits: bool) -> int | None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException as error:
            os.close(fd)
            if not isinstance(error, BlockingIOError):
                raise
            return None
        return fd
