"""Unread arrivals of a space for one reader: `async for` over a bounded buffer.

Owns the two queues of one reader and their common order. When full, it drops and counts the oldest frame, because old telemetry is worth
less; with the policy `wait` the socket is not read until there is room. Envelopes are never dropped silently: a reader that is too slow
gets the buffered ones and then `SlowConsumer`. Cost of an arrival: constant.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Generic, Literal, Self, TypeVar, cast

from penstock.client.space.messages import Arrival, Frame, SpaceEnvelope
from penstock.core.errors import PenstockError, Refusal

ENVELOPES_MAX = 10_000
"""The most unread envelopes of one reader."""
FRAMES_MAX = 10_000
"""The most unread frames of one reader."""
HELD_BYTES_MAX = 16 * 1024 * 1024
"""The most unread bytes of frames, and separately of envelopes; a single larger item is still accepted."""

Overflow = Literal["drop-oldest", "wait"]

T = TypeVar("T", bound=Arrival)


class Feed(Generic[T]):
    """Envelopes, frames or both in the order of arrival; `Space.envelopes`, `frames` and `arrivals` make one."""

    def __init__(
        self,
        accepts: Callable[[Arrival], bool],
        *,
        overflow: Overflow = "drop-oldest",
        room: Callable[[], None] = lambda: None,
        dropped: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.dropped = 0
        """Frames dropped because this feed was read too slowly."""
        self._accepts = accepts
        self._overflow = overflow
        self._has_room = room
        self._has_dropped = dropped
        self._envelopes: deque[tuple[int, SpaceEnvelope]] = deque()
        self._envelope_bytes = 0
        self._frames: deque[tuple[int, Frame]] = deque()
        self._frame_bytes = 0
        self._serial = 0
        self._wake = asyncio.Event()
        self._failure: PenstockError | None = None
        self._is_over = False

    async def next(self) -> T | None:
        """The next item; None at the end. Raises the error that ended the connection, if one did."""
        while not self._envelopes and not self._frames:
            if self._failure is not None:
                raise self._failure
            if self._is_over:
                return None
            self._wake.clear()
            await self._wake.wait()
        return cast("T", self._take())

    def close(self) -> None:
        """Stop reading, and drop what is buffered."""
        self._envelopes.clear()
        self._frames.clear()
        self._envelope_bytes = self._frame_bytes = 0
        self._end()
        self._has_room()

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        item = await self.next()
        if item is None:
            raise StopAsyncIteration
        return item

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.close()

    # -- for the space

    @property
    def _is_full(self) -> bool:
        """Whether the socket must not be read for now."""
        return self._overflow == "wait" and not self._is_over and self._is_over_bound()

    def _put(self, item: Arrival) -> None:
        """Buffer an arrival if this feed accepts it."""
        if self._is_over or not self._accepts(item):
            return
        self._serial += 1
        if isinstance(item, Frame):
            self._frames.append((self._serial, item))
            self._frame_bytes += len(item.data)
            if self._overflow == "drop-oldest":
                self._drop()
        elif self._envelopes and (
            len(self._envelopes) >= ENVELOPES_MAX or self._envelope_bytes + item.size > HELD_BYTES_MAX
        ):
            message = f"{len(self._envelopes)} envelopes of this feed are unread; it accepts no more"
            self._end(PenstockError(Refusal("SlowConsumer", message, hint="read faster, or subscribe to fewer kinds")))
        else:
            self._envelopes.append((self._serial, item))
            self._envelope_bytes += item.size
        self._wake.set()

    def _end(self, error: PenstockError | None = None) -> None:
        """End the feed; buffered items can still be read."""
        if not self._is_over:
            self._is_over = True
            self._failure = error
        self._wake.set()

    def _take(self) -> Arrival:
        if not self._frames or (self._envelopes and self._envelopes[0][0] < self._frames[0][0]):
            _, envelope = self._envelopes.popleft()
            self._envelope_bytes -= envelope.size
            return envelope
        was_full = self._is_full
        _, frame = self._frames.popleft()
        self._frame_bytes -= len(frame.data)
        if was_full and not self._is_full:
            self._has_room()
        return frame

    def _is_over_bound(self) -> bool:
        return len(self._frames) > 1 and (len(self._frames) > FRAMES_MAX or self._frame_bytes > HELD_BYTES_MAX)

    def _drop(self) -> None:
        count = 0
        while self._is_over_bound():
            self._frame_bytes -= len(self._frames.popleft()[1].data)
            count += 1
        if count:
            self.dropped += count
            self._has_dropped(count)


class Feeds:
    """All feeds of one participant, held weakly."""

    def __init__(self) -> None:
        self.dropped = 0
        """Frames dropped by all feeds."""
        self._feeds: weakref.WeakSet[Feed[Any]] = weakref.WeakSet()
        self._has_room = asyncio.Event()
        self._failure: PenstockError | None = None
        self._is_over = False

    def add(self, accepts: Callable[[Arrival], bool], overflow: Overflow = "drop-oldest") -> Feed[Any]:
        """Add a feed of the arrivals from now on."""
        feed: Feed[Any] = Feed(accepts, overflow=overflow, room=self._has_room.set, dropped=self._count)
        weakref.finalize(feed, self._has_room.set)  # a collected feed must not block the others
        if self._is_over:
            feed._end(self._failure)
        self._feeds.add(feed)
        return feed

    def put(self, arrival: Arrival) -> None:
        for feed in list(self._feeds):
            feed._put(arrival)

    async def room(self) -> None:
        """Wait while a feed with the policy `wait` is full."""
        while any(feed._is_full for feed in self._feeds):
            self._has_room.clear()
            await self._has_room.wait()

    def end(self, error: PenstockError | None = None) -> None:
        """End all feeds, including those added later."""
        if not self._is_over:
            self._is_over, self._failure = True, error
        for feed in list(self._feeds):
            feed._end(error)
        self._has_room.set()

    def _count(self, count: int) -> None:
        self.dropped += count


def kinds(wanted: str | Sequence[str]) -> Callable[[str], bool]:
    """A test whether a kind matches one of the patterns; `a/*` matches everything below `a/`."""
    patterns = (wanted,) if isinstance(wanted, str) else wanted
    exact = frozenset(pattern for pattern in patterns if not pattern.endswith("*"))
    prefixes = tuple(pattern[:-1] for pattern in patterns if pattern.endswith("*"))
    return lambda kind: kind in exact or kind.startswith(prefixes)
