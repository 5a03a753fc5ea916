"""A space without `async`: its client, its feeds and its streams."""

from __future__ import annotations

from typing import Any, Generic, Self, TypeVar

from penstock.client.space.client import Space
from penstock.client.space.feed import Feed
from penstock.client.space.messages import Arrival, Frame, SpaceEnvelope, SpaceError
from penstock.client.space.roster import Capability
from penstock.client.space.stream import SpaceStream
from penstock.client.sync.twin import (
    Closing,
    IteratedTwin,
    LoopThread,
    Opening,
    Twin,
    blocking,
    called,
    made_like,
    mirrored,
)

__all__ = ["SyncFeed", "SyncSpace", "SyncSpaceStream"]

T = TypeVar("T", bound=Arrival)


class SyncFeed(Closing, IteratedTwin[Feed[T], T], Generic[T]):
    """Items as they arrive: `for item in feed`."""

    dropped = mirrored[Feed[Any], int](lambda feed: feed.dropped)

    def next(self) -> T | None:
        """The next item; None at the end. Raises the error that ended the connection, if one did."""
        return self._thread.wait(self._source.next())

    def close(self) -> None:
        """Stop reading."""
        self._thread.call(self._source.close)


class SyncSpaceStream(Closing, Twin[SpaceStream]):
    """A stream of a space, for a participant that may write to it."""

    write = blocking(SpaceStream.write)
    close = blocking(SpaceStream.close)
    grant_write = blocking(SpaceStream.grant_write)
    revoke_write = blocking(SpaceStream.revoke_write)
    transfer = blocking(SpaceStream.transfer)

    id = mirrored[SpaceStream, str](lambda stream: stream.id)
    is_open = mirrored[SpaceStream, bool](lambda stream: stream.is_open)
    info = mirrored[SpaceStream, dict[str, Any]](lambda stream: stream.info)
    owner = mirrored[SpaceStream, str](lambda stream: stream.owner)
    target = mirrored[SpaceStream, tuple[str, ...]](lambda stream: stream.target)
    writers = mirrored[SpaceStream, tuple[str, ...]](lambda stream: stream.writers)

    def __repr__(self) -> str:
        return repr(self._source)


class SyncSpace(Opening, Twin[Space]):
    """A participant of a space, for code without `async`; the arguments are those of `Space`. Threads may share it.

    Example:
        with penstock.SyncSpace("http://localhost:8787", space="demo", participant="sam", token=token) as space:
            space.chat("hello")
    """

    send = blocking(Space.send)
    chat = blocking(Space.chat)
    request = blocking(Space.request)
    ask_gateway = blocking(Space.ask_gateway)
    write_frame = blocking(Space.write_frame)
    envelopes = called(Space.envelopes, SyncFeed[SpaceEnvelope])
    frames = called(Space.frames, SyncFeed[Frame])
    arrivals = called(Space.arrivals, SyncFeed[Arrival])
    open_stream = blocking(Space.open_stream, SyncSpaceStream)
    stream = called(Space.stream, SyncSpaceStream)
    invite = blocking(Space.invite)
    kick = blocking(Space.kick)

    id = mirrored[Space, str](lambda space: space.id)
    url = mirrored[Space, str](lambda space: space.url)
    space = mirrored[Space, str | None](lambda space: space.space)
    welcome = mirrored[Space, dict[str, Any]](lambda space: space.welcome)
    capabilities = mirrored[Space, list[Capability]](lambda space: list(space.capabilities))
    participants = mirrored[Space, dict[str, list[Capability]]](lambda space: dict(space.participants))
    active_streams = mirrored[Space, dict[str, dict[str, Any]]](lambda space: dict(space.active_streams))
    is_connected = mirrored[Space, bool](lambda space: space.is_connected)
    reconnects = mirrored[Space, int](lambda space: space.reconnects)
    dropped = mirrored[Space, int](lambda space: space.dropped)
    last_error = mirrored[Space, SpaceError | None](lambda space: space.last_error)

    @made_like(Space)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        thread = LoopThread()
        try:
            source = thread.call(Space, *args, **kwargs)
        except BaseException:
            thread.close()
            raise
        super().__init__(source, thread)

    def open(self) -> Self:
        """Join the space. Raises PenstockError when that fails."""
        try:
            self._thread.wait(self._source.open())
        except BaseException:
            self._thread.close()
            raise
        return self

    def close(self) -> None:
        """Leave the space and stop the thread."""
        self._thread.wait(self._source.close())
        self._thread.close()
