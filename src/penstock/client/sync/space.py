"""A space without `async`: its client, its feeds and its streams."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from penstock.client.space.client import Space
from penstock.client.space.feed import Feed
from penstock.client.space.messages import Arrival, Frame, SpaceEnvelope, SpaceError
from penstock.client.space.roster import Capability
from penstock.client.space.stream import SpaceStream
from penstock.client.sync import twin

__all__ = ["SyncFeed", "SyncSpace", "SyncSpaceStream"]

T = TypeVar("T", bound=Arrival)


class SyncFeed(twin.Closing, twin.IteratedTwin[Feed[T], T], Generic[T]):
    """Items as they arrive: `for item in feed`."""

    dropped = twin.mirrored[Feed[Any], int](lambda feed: feed.dropped)

    def next(self) -> T | None:
        """The next item; None at the end. Raises the error that ended the connection, if one did."""
        return self._thread.wait(self._source.next())

    def close(self) -> None:
        """Stop reading."""
        self._thread.call(self._source.close)


class SyncSpaceStream(twin.Closing, twin.Twin[SpaceStream]):
    """A stream of a space, for a participant that may write to it."""

    write = twin.blocking(SpaceStream.write)
    close = twin.blocking(SpaceStream.close)
    grant_write = twin.blocking(SpaceStream.grant_write)
    revoke_write = twin.blocking(SpaceStream.revoke_write)
    transfer = twin.blocking(SpaceStream.transfer)

    id = twin.mirrored[SpaceStream, str](lambda stream: stream.id)
    is_open = twin.mirrored[SpaceStream, bool](lambda stream: stream.is_open)
    info = twin.mirrored[SpaceStream, dict[str, Any]](lambda stream: stream.info)
    owner = twin.mirrored[SpaceStream, str](lambda stream: stream.owner)
    target = twin.mirrored[SpaceStream, tuple[str, ...]](lambda stream: stream.target)
    writers = twin.mirrored[SpaceStream, tuple[str, ...]](lambda stream: stream.writers)

    def __repr__(self) -> str:
        return repr(self._source)


class SyncSpace(twin.OpenedTwin[Space]):
    """A participant of a space, for code without `async`; the arguments are those of `Space`. Threads may share it.

    Example:
        with penstock.SyncSpace("http://localhost:8787", space="demo", participant="sam", token=token) as space:
            space.chat("hello")
    """

    send = twin.blocking(Space.send)
    chat = twin.blocking(Space.chat)
    request = twin.blocking(Space.request)
    ask_gateway = twin.blocking(Space.ask_gateway)
    write_frame = twin.blocking(Space.write_frame)
    envelopes = twin.called(Space.envelopes, SyncFeed[SpaceEnvelope])
    frames = twin.called(Space.frames, SyncFeed[Frame])
    arrivals = twin.called(Space.arrivals, SyncFeed[Arrival])
    open_stream = twin.blocking(Space.open_stream, SyncSpaceStream)
    stream = twin.called(Space.stream, SyncSpaceStream)
    invite = twin.blocking(Space.invite)
    kick = twin.blocking(Space.kick)

    id = twin.mirrored[Space, str](lambda space: space.id)
    url = twin.mirrored[Space, str](lambda space: space.url)
    space = twin.mirrored[Space, str | None](lambda space: space.space)
    welcome = twin.mirrored[Space, dict[str, Any]](lambda space: space.welcome)
    capabilities = twin.mirrored[Space, list[Capability]](lambda space: list(space.capabilities))
    participants = twin.mirrored[Space, dict[str, list[Capability]]](lambda space: dict(space.participants))
    active_streams = twin.mirrored[Space, dict[str, dict[str, Any]]](lambda space: dict(space.active_streams))
    is_connected = twin.mirrored[Space, bool](lambda space: space.is_connected)
    reconnects = twin.mirrored[Space, int](lambda space: space.reconnects)
    dropped = twin.mirrored[Space, int](lambda space: space.dropped)
    last_error = twin.mirrored[Space, SpaceError | None](lambda space: space.last_error)

    @twin.made_like(Space)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        thread = twin.LoopThread()
        try:
            source = thread.call(Space, *args, **kwargs)
        except BaseException:
            thread.close()
            raise
        super().__init__(source, thread)

    def _give_up(self) -> None:
        self._thread.close()

    def close(self) -> None:
        """Leave the space and stop the thread."""
        self._thread.wait(self._source.close())
        self._thread.close()
