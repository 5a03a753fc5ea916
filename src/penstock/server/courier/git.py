"""Git repositories below a root: finding one without leaving the root, and running git in it, confined.

A repository is a directory with a `.git` directory of its own, or a bare one. Whatever would lead git elsewhere (a link,
a `.git` file, alternates, a shared directory) makes it none. Git runs without a shell, with a minimal environment, in a
process group of its own that is ended when it takes too long or says too much.
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
"""Bytes of what git says on standard error that are kept."""
CLOSE_S = 1.0
"""How long the pipes of a git that has ended may stay open."""
PATH_DEFAULT = "/usr/local/bin:/usr/bin:/bin"

_NOT_FOUND = ("unknown revision", "bad revision", "bad object", "Not a valid object", "ambiguous argument")
_ELSEWHERE = ("commondir", "objects/info/alternates", "objects/info/http-alternates")


class Diff(msgspec.Struct, frozen=True):
    """What git said."""

    data: bytes
    truncated: bool = False


def git_dir_of(root: Path, repo: str) -> Path | Refusal:
    """The git directory of a repository below the root, with every link followed and found inside."""
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
    """Run git once, for a bounded time and a bounded answer."""
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
        return Refusal("Internal", f"git cannot be started: {error.strerror or error}", hint="install git")
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
                await asyncio.wait([complaint])  # only one may read a pipe, and `_end` will
    except TimeoutError:
        return Refusal("Timeout", f"git took longer than {timeout_s:g} s", hint="ask for fewer paths")
    finally:
        await _end(process)
    if code == 0:
        return Diff(data)
    if any(words.encode() in said for words in _NOT_FOUND):
        return Refusal("InvalidRequest", "git knows no such revision", ref="payload.base")
    return Refusal("Internal", f"git ended with code {code}")


async def _first(stream: asyncio.StreamReader, size: int) -> bytes:
    """So many bytes of a stream, or all of it."""
    chunks: list[bytes] = []
    left = size
    while left > 0 and (chunk := await stream.read(min(CHUNK, left))):
        chunks.append(chunk)
        left -= len(chunk)
    return b"".join(chunks)


async def _drained(stream: asyncio.StreamReader) -> bytes:
    """The beginning of a stream, which is read to its end so that nobody waits to write to it."""
    first = await _first(stream, COMPLAINT_MAX)
    while await stream.read(CHUNK):
        pass
    return first


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a process and all that it started, with its pipes: what is left in them is read first, or `wait` would wait for ever."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):  # something it started may have left its group and keep a pipe
        async with asyncio.timeout(CLOSE_S):
            for stream in (process.stdout, process.stderr):
                assert stream is not None
                await _drained(stream)
    # Now, and not when the loop comes to it: the loop may be gone by then.
    transport = getattr(process, "_transport", None)
    if transport is not None:
        transport.close()
    await process.wait()
