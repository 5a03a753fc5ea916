"""Disks that fail under a real server: a tmpfs that is really full, and a process whose system calls fail on request.

The second needs no rights. The server is a copy of the template as always; before it starts, the calls of `os` that change files are
replaced by ones that look at a file first: its text is an error's name and a part of the paths that it is about.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.server_process import ServerProcess
from tests.server_template import Fork

CALLS = ("write", "pwrite", "fsync", "fdatasync", "ftruncate", "open", "replace", "rename", "posix_fallocate", "close")
PROGRAM = f"""
import errno, os, sys
def faulty(call):
    def run(first, *rest, **more):
        try:
            with open(os.environ["FAULT"]) as file:
                name, part, only = file.read().split()
        except (OSError, ValueError):
            return call(first, *rest, **more)
        path = os.readlink(f"/proc/self/fd/{{first}}") if isinstance(first, int) else os.fspath(first)
        if part in os.path.basename(path) and not (call is opened and not rest[0] & os.O_CREAT) and only in ("any", call.__name__):
            if call is closed:
                call(first)  # Linux closes it and reports the error of an earlier write
            raise OSError(getattr(errno, name), os.strerror(getattr(errno, name)), path)
        return call(first, *rest, **more)
    return run
opened, closed = os.open, os.close
for name in {CALLS}:
    setattr(os, name, faulty(getattr(os, name)))
from penstock.cli import main
sys.exit(main(sys.argv[3:]))  # after `penstock -c PROGRAM`
"""


class FaultyServer(ServerProcess):
    """A server whose disk fails where `failing` says."""

    def __init__(self, folder: Path, *words: str) -> None:
        self._fault = folder / "fault"
        super().__init__(folder, *words, env={"FAULT": str(self._fault)})

    def _start(self, words: list[str], env: dict[str, str], fresh: bool) -> Fork | subprocess.Popen[bytes]:
        return super()._start(["-c", PROGRAM, *words], env, False)

    @contextmanager
    def failing(self, error: str, part: str, only: str = "any") -> Iterator[None]:
        """Calls, or only those of one name, on files whose names contain `part` fail with this error."""
        draft = self._fault.with_suffix(".new")
        draft.write_text(f"{error} {part} {only}")
        draft.replace(self._fault)
        yield
        self._fault.unlink()


@contextmanager
def small_disk(place: Path, size_mb: int) -> Iterator[None]:
    """A file system of its own at `place`. Where mounting is not allowed the test is skipped; those with `FaultyServer` run everywhere."""
    place.mkdir(parents=True)
    options = f"size={size_mb}m,mode=700"
    words = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
    mount = subprocess.run(words, check=False, capture_output=True)
    if mount.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(file: Path) -> None:
    """Take all the space that is left."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with suppress(OSError):
        for size in (1 << 20, 4096, 1):
            with suppress(OSError):
                while os.write(descriptor, bytes(size)):
                    pass
    os.close(descriptor)
