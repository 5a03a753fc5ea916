"""Git repositories below a root: finds one without leaving the root, and runs git in it, confined.

A repository is a directory with its own `.git` directory, or a bare repository. A directory that would lead git outside
the root (a link, a `.git` file, alternates, a shared directory) is refused. Git runs without a shell, with a minimal
environment, in its own process group, which is killed when it exceeds its time or its output.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import msgspec

from penstock.core.errors import Refusal
from penstock.dialects.courier.operations.skills import DiffRequest, diff_command, diff_environment

CHUNK = 64 * 1024
COMPLAINT_MAX = 2_000
"""Bytes of standard error that are kept."""
CLOSE_S = 1.0
"""How long the pipes of an ended git may stay open."""
PATH_DEFAULT = "/usr/local/bin:/usr/bin:/bin"

_NOT_FOUND = ("unknown revision", "bad revision", "bad object", "Not a valid object", "ambiguous argument")
_ELSEWHERE = ("commondir", "objects/info/alternates", "objects/info/http-alternates")


class Diff(msgspec.Struct, frozen=True):
    """The output of git."""

    data: bytes
    truncated: bool = False


def git_dir_of(root: Path, repo: str) -> Path | Refusal:
    """The git directory of a repository below the root; every link on the way must end inside the root."""
    base = Path(os.path.realpath(root))
    place = Path(os.path.realpath(base / repo))
    missing = Refusal("InvalidRequest", f"there is no repository `{repo}`", ref="payload.repo")
    if not place.is_relative_to(base) or not place.is_dir():
        return missing
    dot_git = place / ".git"
    git_dir = dot_git if os.path.lexists(dot_git) else place
    parts = [git_dir, git_dir / "HEAD", git_dir / "objects", git_dir / "refs"]
    for part in parts:
        real = Path(os.path.realpath(part))
        if not part.exists() or not real.is_relative_to(base):
            return missing
    if not git_dir.is_dir() or any(os.path.lexists(git_dir / name) for name in _ELSEWHERE):
        return missing
    return Path(os.path.realpath(git_dir))


async def diff(git_dir: Path, request: DiffRequest, *, output_max: int, timeout_s: float) -> Diff | Refusal:
    """Run `git diff` with bounded time and output."""
    environment = diff_environment(os.environ.get("PATH", PATH_DEFAULT))
    try:
        process = await asyncio.create_subprocess_exec(
            *diff_command(str(git_dir), request),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
            cwd=git_dir,
            start_new_session=True,
        )
    except OSError as error:
        return Refusal("Internal", f"cannot start git: {error.strerror or error}", hint="install git")
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async with asyncio.timeout(timeout_s):
            complaint = asyncio.ensure_future(_drained(process.stderr))
            try:
                data = await _first(process.stdout, output_max + 1)
                if len(data) > output_max:
                    return Diff(data[:output_max], truncated=True)
                code = await process.wait()
                said = await complaint
            finally:
                complaint.cancel()
                await asyncio.wait([complaint])  # a pipe has one reader, and `_end` is next
    except TimeoutError:
        return Refusal("Timeout", f"git took longer than {timeout_s:g} s", hint="ask for fewer paths")
    finally:
        await _end(process)
    if code == 0:
        return Diff(data)
    if any(words.encode() in said for words in _NOT_FOUND):
        return Refusal("InvalidRequest", "no such revision", ref="payload.base")
    return Refusal("Internal", f"git ended with code {code}")


async def _first(stream: asyncio.StreamReader, size: int) -> bytes:
    """The first `size` bytes of a stream, or all of it."""
    chunks: list[bytes] = []
    left = size
    while left > 0 and (chunk := await stream.read(min(CHUNK, left))):
        chunks.append(chunk)
        left -= len(chunk)
    return b"".join(chunks)


async def _drained(stream: asyncio.StreamReader) -> bytes:
    """The beginning of a stream; reads to its end so that the writer never blocks."""
    first = await _first(stream, COMPLAINT_MAX)
    while await stream.read(CHUNK):
        pass
    return first


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill a process group and close its pipes; unread output is drained first, or `wait` would block forever."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):  # a grandchild may have left the group and hold a pipe
        async with asyncio.timeout(CLOSE_S):
            for stream in (process.stdout, process.stderr):
                assert stream is not None
                await _drained(stream)
    # Close now: the event loop may be gone before its own cleanup runs.
    transport = getattr(process, "_transport", None)
    if transport is not None:
        transport.close()
    await process.wait()
