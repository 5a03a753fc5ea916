"""The disk as a port: every byte of the journal goes through it, so that the simulator can inject faults."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Protocol


class File(Protocol):
    """A file open for appending."""

    def append(self, data: bytes) -> None:
        """Write at the end. On an error nothing is known about how much was written."""

    def sync(self) -> None:
        """Make what was appended durable. After an error nothing is known about it."""

    def truncate(self, size: int) -> None:
        """Cut the file back, durably with the next sync."""

    def close(self) -> None: ...


class Disk(Protocol):
    """A directory's worth of file operations. Names are relative to it."""

    def open(self, name: str) -> File:
        """Open for appending, making the file when it is new."""

    def read(self, name: str) -> bytes | memoryview: ...

    def size(self, name: str) -> int: ...

    def names(self) -> list[str]:
        """The files, sorted."""

    def replace(self, old: str, new: str) -> None:
        """Rename, over what is there."""

    def remove(self, name: str) -> None: ...

    def overwrite(self, name: str, data: bytes) -> None:
        """Replace the few bytes of a file in place, for readers of this machine; never synced."""

    def sync_names(self) -> None:
        """Make created, renamed and removed names durable."""

    def free(self) -> int:
        """Bytes that may still be written."""

    def reserve(self, name: str, size: int) -> None:
        """Allocate a file of `size` bytes; raises if there is no space."""


WRITE = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
"""How files are opened for writing. A symbolic link is refused: it could lead to a file of another owner."""


class RealFile:
    """A file on a real disk."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, WRITE | os.O_APPEND, 0o600)

    def append(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def close(self) -> None:
        os.close(self._fd)


class RealDisk:
    """A directory on a real disk, locked for one writer."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock: int | None = None
        self._overwritten: dict[str, int] = {}

    def lock(self, name: str = "lock", *, waits: bool = False) -> bool:
        """Take a lock file; False if another process holds it."""
        fd = os.open(self.directory / name, WRITE, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            return False
        self._lock = fd
        return True

    def unlock(self) -> None:
        for fd in self._overwritten.values():
            os.close(fd)
        self._overwritten.clear()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def open(self, name: str) -> RealFile:
        return RealFile(self.directory / name)

    def read(self, name: str, start: int = 0) -> bytes:
        with (self.directory / name).open("rb") as file:
            file.seek(start)
            return file.read()

    def size(self, name: str) -> int:
        return (self.directory / name).stat().st_size

    def names(self) -> list[str]:
        return sorted(entry.name for entry in os.scandir(self.directory) if entry.is_file())

    def replace(self, old: str, new: str) -> None:
        os.replace(self.directory / old, self.directory / new)
        if (fd := self._overwritten.pop(new, None)) is not None:
            os.close(fd)

    def remove(self, name: str) -> None:
        (self.directory / name).unlink(missing_ok=True)

    def overwrite(self, name: str, data: bytes) -> None:
        fd = self._overwritten.get(name)
        if fd is None:
            fd = os.open(self.directory / name, WRITE, 0o600)
            self._overwritten[name] = fd
        os.pwrite(fd, data, 0)

    def sync_names(self) -> None:
        sync_path(self.directory)

    def free(self) -> int:
        stats = os.statvfs(self.directory)
        return stats.f_bavail * stats.f_frsize

    def reserve(self, name: str, size: int) -> None:
        fd = os.open(self.directory / name, WRITE, 0o600)
        try:
            os.posix_fallocate(fd, 0, size)
        finally:
            os.close(fd)


def sync_path(path: Path) -> None:
    """Make a file, or the names in a directory, durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
