"""Duplex pipes for asyncio: chunks in order, two directions, and back-pressure in both.

A pipe holds `high_water_mark` of what was written and not read, plus one chunk: then `write` waits. In byte mode a chunk is bytes, its
size is its length and its boundaries mean nothing; in object mode it is any object but None, of size 1. The end of one direction
leaves the other open, as with a socket; `destroy` ends both.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

from penstock.core.errors import PenstockError, Refusal

BYTES_MARK = 64 * 1024
"""The default mark of a byte pipe."""
OBJECTS_MARK = 16
"""The default mark of an object pipe."""


class PipeClosedError(Exception):
    """A write to a pipe that was ended or destroyed."""


class Flow:
    """One direction of a pipe."""

    def __init__(self, high_water_mark: int, object_mode: bool) -> None:
        self.high_water_mark = high_water_mark
        self.object_mode = object_mode
        self.size = 0
        """The unread bytes or objects."""
        self.is_ended = False
        self.on_room: Callable[[], None] | None = None
        """Called when a full pipe has room again."""
        self._failure: BaseException | None = None
        self._chunks: deque[Any] = deque()
        self._some = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    @property
    def is_full(self) -> bool:
        return self.size >= self.high_water_mark

    async def room(self) -> None:
        """Wait while the pipe is full."""
        while self.is_full and not self.is_ended:
            self._room.clear()
            await self._room.wait()

    def offer(self, chunk: Any) -> bool:
        """Add a chunk, even to a full pipe; returns whether there is room for more."""
        if self.is_ended:
            raise PipeClosedError("the pipe has ended") from self._failure
        self._chunks.append(chunk)
        self.size += self._weight(chunk)
        self._some.set()
        return not self.is_full

    async def take(self) -> Any:
        """The next chunk; None at the end. Raises the error of a destroyed pipe."""
        while not self._chunks:
            if self._failure is not None:
                raise self._failure
            if self.is_ended:
                return None
            self._some.clear()
            await self._some.wait()
        was_full = self.is_full
        chunk = self._chunks.popleft()
        self.size -= self._weight(chunk)
        if was_full and not self.is_full:
            self._room.set()
            if self.on_room is not None:
                self.on_room()
        return chunk

    def end(self, failure: BaseException | None = None) -> None:
        """End this direction. After a failure, unread chunks are dropped."""
        if failure is not None and self._failure is None:
            self._failure = failure
            self._chunks.clear()
            self.size = 0
        self.is_ended = True
        self._some.set()
        self._room.set()

    def _weight(self, chunk: Any) -> int:
        return 1 if self.object_mode else len(chunk)


class Pipe:
    """One end of a duplex pipe: what one end writes, the other reads."""

    def __init__(self, readable: Flow, writable: Flow) -> None:
        self.readable = readable
        self.writable = writable

    @property
    def object_mode(self) -> bool:
        return self.writable.object_mode

    async def write(self, chunk: Any) -> None:
        """Write a chunk; waits while the pipe is full. Raises PipeClosedError after the end."""
        chunk = self._checked(chunk)
        await self.writable.room()
        self.writable.offer(chunk)

    async def read(self) -> Any:
        """The next chunk; None at the end."""
        return await self.readable.take()

    def end(self) -> None:
        """End the writing direction."""
        self.writable.end()

    def destroy(self, error: BaseException | None = None) -> None:
        """End both directions at once; reading the other end raises the error."""
        failure = error or PipeClosedError("the pipe was destroyed")
        self.readable.end(failure)
        self.writable.end(failure)

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (chunk := await self.read()) is not None:
            yield chunk

    def _checked(self, chunk: Any) -> Any:
        if self.object_mode:
            if chunk is None:
                raise PenstockError(Refusal("InvalidRequest", "None marks the end of a pipe and cannot be a chunk"))
            return chunk
        if isinstance(chunk, str):
            return chunk.encode()
        if not isinstance(chunk, bytes):
            hint = "encode it, or make the pipe with object_mode=True"
            message = f"a byte pipe takes bytes or text, not {type(chunk).__name__}"
            raise PenstockError(Refusal("InvalidRequest", message, hint=hint))
        return chunk


def through(high_water_mark: int | None = None, *, object_mode: bool = False) -> Pipe:
    """A pipe that returns what is written to it."""
    flow = Flow(_mark(high_water_mark, object_mode), object_mode)
    return Pipe(flow, flow)


def duplex(high_water_mark: int | None = None, *, object_mode: bool = False) -> tuple[Pipe, Pipe]:
    """Two ends: what is written to one is read from the other."""
    mark = _mark(high_water_mark, object_mode)
    there, back = Flow(mark, object_mode), Flow(mark, object_mode)
    return Pipe(back, there), Pipe(there, back)


def _mark(given: int | None, object_mode: bool) -> int:
    if given is None:
        return OBJECTS_MARK if object_mode else BYTES_MARK
    if given < 1:
        raise PenstockError(Refusal("InvalidRequest", f"a high water mark is 1 or more, not {given}"))
    return given
