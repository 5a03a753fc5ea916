"""Child processes of the server: one way to start, feed, restart and stop them.

A child is a module run by `python -m`. It reads its task as one line of JSON from stdin and exits when stdin closes, so it never
outlives the server. The exit code says how it ended; what it writes to stderr is for people and decides nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import IO, Literal, TypeAlias

import msgspec

ERRORS_MAX = 2_000
"""Bytes of stderr that are kept for the log: the last ones."""
EXIT_S = 5.0
"""How long a child may take to exit after it closes its stdout."""
TERMINATE_S = 0.2
"""How long a child may take to react to SIGTERM before it is killed."""
LOGS_KEPT = 3
"""Logs of earlier runs that are kept, as `<log>.1` (the run before) and so on: a restart must not remove the reason of a failure."""
EXIT_NOT_STARTED = 256
"""Reported when the system cannot start the child; no process exits with it, and signals are negative."""

AfterExit: TypeAlias = Literal["end", "restart", "back_off"]
"""What follows the exit of a child; `back_off` waits before it restarts, longer each time."""


class Backoff(msgspec.Struct, frozen=True):
    """How long to wait before a failed child is started again."""

    first_s: float
    max_s: float
    stable_s: float
    """A run this long resets the wait."""


class ChildError(Exception):
    """A child exited with an error; `errors` holds the end of its stderr."""

    def __init__(self, module: str, exit_code: int, errors: str) -> None:
        super().__init__(f"`{module}` exited with code {exit_code}: {errors}")
        self.exit_code = exit_code
        self.errors = errors
        self.cause = errors.strip().rpartition("\n")[2] or f"`{module}` exited with code {exit_code}"
        """The last line that the child printed."""


class ChildSupervisor:
    """One long-lived child: started once, or again after each failure, until it is stopped."""

    def __init__(
        self,
        module: str,
        *,
        log: Path | None = None,
        stdout: Literal["inherit", "log", "reports"] = "inherit",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._module = module
        self._log = log
        """File for the stderr of the latest run; None shares the server's."""
        self._stdout = stdout
        self._environment = environment
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()
        self.restarts = 0
        self.start_error = ""
        """Why the system could not start the child, after `EXIT_NOT_STARTED`."""

    async def start(self, task: msgspec.Struct) -> asyncio.subprocess.Process:
        """Start the child and send it its task."""
        if self._log is not None:
            _rotate(self._log)
        with contextlib.nullcontext() if self._log is None else self._log.open("wb") as log:
            stdout = {"inherit": None, "log": log, "reports": asyncio.subprocess.PIPE}[self._stdout]
            self._process = await _spawn(self._module, self._environment, stdout, log)
        await _send_task(self._process, task)
        if self._stopping.is_set():  # `stop` came while the process was being started, and saw none
            assert self._process.stdin is not None
            self._process.stdin.close()
        return self._process

    async def run(
        self, task: msgspec.Struct, read: Callable[[asyncio.StreamReader], Awaitable[None]] | None = None
    ) -> int:
        """Run the child to its end and return its exit code; `read` takes its reports until stdout closes."""
        self.start_error = ""
        try:
            process = await self.start(task)
        except OSError as error:
            self.start_error = str(error)
            return EXIT_NOT_STARTED
        if read is not None:
            assert process.stdout is not None
            await read(process.stdout)
            if not self._stopping.is_set():  # `stop` has a deadline of its own
                await _end(process, EXIT_S)
        return await process.wait()

    async def keep_running(
        self, backoff: Backoff, run: Callable[[], Awaitable[int]], exited: Callable[[int, float], Awaitable[AfterExit]]
    ) -> None:
        """Run the child until it is stopped or `exited(code, pause_s)` ends it."""
        loop = asyncio.get_running_loop()
        pause_s = backoff.first_s
        while not self._stopping.is_set():
            started = loop.time()
            code = await run()
            if self._stopping.is_set():
                return
            if loop.time() - started >= backoff.stable_s:
                pause_s = backoff.first_s
            match await exited(code, pause_s):
                case "end":
                    return
                case "restart":
                    pause_s = backoff.first_s
                case "back_off":
                    self.restarts += 1
                    with contextlib.suppress(TimeoutError):  # `stop` ends the pause
                        await asyncio.wait_for(self._stopping.wait(), pause_s)
                    pause_s = min(pause_s * 2, backoff.max_s)

    async def stop(self, deadline_s: float) -> bool:
        """Close stdin, then terminate, then kill; False when the child missed the deadline."""
        self._stopping.set()
        process = self._process
        if process is None or process.returncode is not None:
            return True
        assert process.stdin is not None
        process.stdin.close()
        return await _end(process, deadline_s)


async def run_child(module: str, task: msgspec.Struct, environment: Mapping[str, str] | None = None) -> bytes:
    """Run a short-lived child to its end and return its stdout; raises ChildError. Cancelling kills the child."""
    pipe = asyncio.subprocess.PIPE
    process = await _spawn(module, environment, pipe, pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    errors = asyncio.ensure_future(_last_bytes(process.stderr))  # read meanwhile, or a full pipe blocks the child
    try:
        await _send_task(process, task)
        process.stdin.close()
        output = await process.stdout.read()
        text = (await errors).decode(errors="replace")
        code = await process.wait()
    finally:
        errors.cancel()
        if process.returncode is None:
            process.kill()
            await process.wait()
    if code != 0:
        raise ChildError(module, code, text)
    return output


def _rotate(log: Path) -> None:
    for number in range(LOGS_KEPT, 0, -1):
        newer = log.with_name(f"{log.name}.{number - 1}") if number > 1 else log
        with contextlib.suppress(FileNotFoundError):
            newer.replace(log.with_name(f"{log.name}.{number}"))


async def _spawn(
    module: str, environment: Mapping[str, str] | None, stdout: int | IO[bytes] | None, stderr: int | IO[bytes] | None
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",  # import nothing from the working directory
        "-m",
        module,
        stdin=asyncio.subprocess.PIPE,
        stdout=stdout,
        stderr=stderr,
        env=None if environment is None else {**os.environ, **environment},
        start_new_session=True,  # Ctrl-C reaches the server only, which stops its children in order
    )


async def _send_task(process: asyncio.subprocess.Process, task: msgspec.Struct) -> None:
    assert process.stdin is not None
    # It exited at once; its exit code says why. For a closed pipe uvloop raises RuntimeError.
    with contextlib.suppress(ConnectionError, RuntimeError):
        process.stdin.write(msgspec.json.encode(task) + b"\n")
        await process.stdin.drain()


async def _end(process: asyncio.subprocess.Process, deadline_s: float) -> bool:
    """Wait for a child to exit; terminate and then kill it when it misses the deadline."""
    if await _exits(process, deadline_s):
        return True
    with contextlib.suppress(ProcessLookupError):  # it may exit just now
        process.terminate()
    if not await _exits(process, TERMINATE_S):
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    return False


async def _exits(process: asyncio.subprocess.Process, within_s: float) -> bool:
    try:
        await asyncio.wait_for(process.wait(), within_s)
    except TimeoutError:
        return False
    return True


async def _last_bytes(stream: asyncio.StreamReader) -> bytes:
    last = b""
    while piece := await stream.read(65_536):
        last = (last + piece)[-ERRORS_MAX:]
    return last
