"""Penstock behind a kernel pipe: write Control v1 requests to it, read answers and deliveries from it.

The target is a `QueueCore` of this process, which gets a session, or a connected client, which opens another connection. Credits, leases
and the order of answers are the same as over every other transport. A byte pipe carries lines in any fragments; an object pipe carries
frames as mappings. While the output is not read, no further request is accepted, and deliveries stop at the bound of the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

import msgspec

from penstock.core.errors import PenstockError, Refusal
from penstock.core.scopes import OPERATOR, Principal
from penstock.dialects.courier.sessions.control.session import ControlSession
from penstock.kernel.pipe import Pipe, PipeClosedError, duplex

TICK_S = 0.02
"""How often a queue of this process processes its timers: leases and delays end at most this late."""

_tasks: dict[asyncio.Task[None], None] = {}
"""The tasks of open pipes: an event loop holds its tasks only weakly."""


def courier_pipe(
    target: Any, *, object_mode: bool = False, high_water_mark: int | None = None, principal: Principal = OPERATOR
) -> Pipe:
    """A pipe to a `QueueCore`, or to the server of a connected client. Needs a running event loop.

    After `end()`, the pipe returns the remaining answers and then ends. `principal` is the identity for a `QueueCore`; a client has its
    own. Reading the pipe raises the error that broke it.
    """
    outer, inner = duplex(high_water_mark, object_mode=object_mode)
    if hasattr(target, "uplink"):
        work = _over_uplink(target, inner)
    elif hasattr(target, "runtime"):
        work = _CoreTransport(target, inner).run(principal)
    else:
        message = f"expected a QueueCore or an asynchronous client, not {type(target).__name__}"
        raise PenstockError(Refusal("InvalidRequest", message))
    task = asyncio.get_running_loop().create_task(_guarded(work, inner))
    _tasks[task] = None
    task.add_done_callback(_tasks.pop)
    return outer


async def _guarded(work: Any, inner: Pipe) -> None:
    try:
        await work
    except PipeClosedError:
        inner.destroy()
    except Exception as error:
        inner.destroy(error)


def _lines(chunk: Any) -> bytes:
    """The bytes of a chunk: a request, or a fragment of lines."""
    if isinstance(chunk, bytes):
        return chunk
    if isinstance(chunk, str):
        return chunk.encode()
    if isinstance(chunk, Mapping):
        return msgspec.json.encode(chunk) + b"\n"
    message = f"expected a frame or a line of Control v1, not {type(chunk).__name__}"
    raise PenstockError(Refusal("InvalidRequest", message))


def _chunks(pipe: Pipe, lines: bytes) -> list[Any]:
    if not pipe.object_mode:
        return [lines]
    return [msgspec.json.decode(line) for line in lines.splitlines()]


async def _over_uplink(client: Any, inner: Pipe) -> None:
    uplink = await client.uplink()  # carries lines to and from the server

    async def down() -> None:
        while lines := await uplink.read():
            for chunk in _chunks(inner, lines):
                await inner.write(chunk)
        inner.end()

    answers = asyncio.ensure_future(down())
    try:
        while (chunk := await _unless(answers, inner.read())) is not None:
            await _unless(answers, inner.writable.room())
            await _unless(answers, uplink.write(_lines(chunk)))
        if not answers.done():
            await uplink.finish()
        await answers
    finally:
        answers.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await answers
        await uplink.close()


async def _unless(answers: asyncio.Future[None], work: Any) -> Any:
    """The result of `work`, or None as soon as the answers have ended."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait((answers, task), return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()


class _CoreTransport:
    """The transport of a session whose peer is a pipe."""

    def __init__(self, core: Any, inner: Pipe) -> None:
        self._core = core
        self._inner = inner
        self._connection: Any = None
        self._readable = asyncio.Event()
        self._readable.set()

    async def run(self, principal: Principal) -> None:
        runtime = self._core.runtime
        session = ControlSession(runtime, token_needed=False)
        connection = runtime.peers.open(session, self, principal, "kernel")
        if isinstance(connection, Refusal):
            raise PenstockError(connection)
        self._connection = connection
        inner = self._inner
        inner.writable.on_room = self._drained
        clock = asyncio.ensure_future(self._keep_time())
        try:
            while (chunk := await inner.read()) is not None:
                await inner.writable.room()
                await self._readable.wait()
                connection.received(_lines(chunk))
                self._core.tick()
                if connection.closed:
                    break
        finally:
            clock.cancel()
            connection.lost()
            self._core.tick()
            inner.end()

    async def _keep_time(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._core.tick()

    def _drained(self) -> None:
        self._connection.congested(False)
        asyncio.get_running_loop().call_soon(self._core.tick)

    # For the runtime

    def send(self, messages: list[bytes]) -> None:
        if self._inner.writable.is_ended:
            return
        for chunk in _chunks(self._inner, b"".join(messages)):
            if not self._inner.writable.offer(chunk):
                self._connection.congested(True)

    @property
    def buffered(self) -> int:
        return self._inner.writable.size

    def hold(self, on: bool) -> None:
        if on:
            self._readable.clear()
        else:
            self._readable.set()

    def close(self, code: int, reason: str) -> None:
        self._inner.end()
        self._inner.readable.end()

    def abort(self) -> None:
        self._inner.destroy()
