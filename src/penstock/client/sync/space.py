"""A place in a space without `async`: the same methods, run on one background thread.

Nothing is implemented twice; a test compares both surfaces name by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, Literal, Self, TypeVar

from penstock.client.space.client import Space
from penstock.client.space.feed import Feed, Overflow
from penstock.client.space.messages import Arrival, Frame, SpaceEnvelope, SpaceError
from penstock.client.space.roster import Capability
from penstock.client.space.stream import SpaceStream
from penstock.client.sync.queue import Closing, IteratedTwin, LoopThread, Twin, blocking, mirrored

__all__ = ["SyncFeed", "SyncSpace", "SyncSpaceStream"]

T = TypeVar("T", bound=Arrival)


class SyncFeed(Closing, IteratedTwin[Feed[T], T], Generic[T]):
    """`for item in feed`."""

    dropped = mirrored[Feed[Any], int](lambda feed: feed.dropped)

    def next(self) -> T | None:
        """The next one; None at the end. Raises what ended the connection."""
        return self._thread.wait(self._source.next())

    def close(self) -> None:
        """Read no more."""
        self._thread.call(self._source.close)

    def __enter__(self) -> Self:
        return self


class SyncSpaceStream(Twin[SpaceStream]):
    """A stream of a space in the hands of somebody who may write to it."""

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


class SyncSpace(Closing, Twin[Space]):
    """A place in a space for code without `async`; the arguments are those of `Space`. Safe to share by threads.

    Example:
        with penstock.SyncSpace("http://localhost:8787", space="demo", participant="sam", token=token) as space:
            space.chat("hello")
    """

    send = blocking(Space.send)
    chat = blocking(Space.chat)
    request = blocking(Space.request)
    ask_gateway = blocking(Space.ask_gateway)
    write_frame = blocking(Space.write_frame)
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

    def __init__(
        self,
        url: str | None = None,
        *,
        space: str | None = None,
        participant: str,
        token: str | None = None,
        timeout: float = 30.0,
        connect_timeout: float = 10.0,
        reconnect: bool = True,
    ) -> None:
        """Without a URL, the server on `./penstock-data`; without a token, the operator's if that server is ours."""
        thread = LoopThread()
        try:
            source = thread.call(
                Space,
                url,
                space=space,
                participant=participant,
                token=token,
                timeout=timeout,
                connect_timeout=connect_timeout,
                reconnect=reconnect,
            )
        except BaseException:
            thread.close()
            raise
        super().__init__(source, thread)

    def envelopes(self, kind: str | Sequence[str] = "*") -> SyncFeed[SpaceEnvelope]:
        """Envelopes as they come, from now on, our own echoes among them; `chat`, `mcp/*`, or several of these."""
        return SyncFeed(self._thread.call(self._source.envelopes, kind), self._thread)

    def frames(self, stream_id: str | None = None, *, overflow: Overflow = "drop-oldest") -> SyncFeed[Frame]:
        """Frames that reach us, from now on, of one stream or of all."""
        return SyncFeed(self._thread.call(self._source.frames, stream_id, overflow=overflow), self._thread)

    def arrivals(self, kind: str | Sequence[str] = "*") -> SyncFeed[Arrival]:
        """Envelopes, of these kinds, and all frames, in the order in which they come."""
        return SyncFeed(self._thread.call(self._source.arrivals, kind), self._thread)

    def open_stream(
        self,
        target: str | Sequence[str] | None = None,
        *,
        direction: Literal["upload", "download"] = "upload",
        content_type: str | None = None,
        format: str | None = None,  # noqa: A002 - the word of the protocol
        description: str | None = None,
        expected_size_bytes: int | None = None,
        metadata: Mapping[str, Any] | None = None,
        overflow: Literal["drop-oldest", "disconnect"] | None = None,
        timeout: float | None = None,
    ) -> SyncSpaceStream:
        """Open a stream whose frames go to the participants in `target`, or to everybody."""
        source = self._thread.wait(
            self._source.open_stream(
                target,
                direction=direction,
                content_type=content_type,
                format=format,
                description=description,
                expected_size_bytes=expected_size_bytes,
                metadata=metadata,
                overflow=overflow,
                timeout=timeout,
            )
        )
        return SyncSpaceStream(source, self._thread)

    def stream(self, stream_id: str) -> SyncSpaceStream:
        """A stream that is there already, for somebody who was allowed to write to it."""
        return SyncSpaceStream(self._thread.call(self._source.stream, stream_id), self._thread)

    def open(self) -> Self:
        """Join; raises PenstockError when that fails."""
        try:
            self._thread.wait(self._source.open())
        except BaseException:
            self._thread.close()
            raise
        return self

    def close(self) -> None:
        """Leave, and end the thread."""
        self._thread.wait(self._source.close())
        self._thread.close()

    def __enter__(self) -> Self:
        return self.open()
