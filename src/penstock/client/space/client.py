"""A participant of a MEW space: everything it can do there as a method.

Owns no state itself: the connection keeps the transport, the roster what the gateway told, feeds what was not read, exchanges what waits for an
echo. Invariants: an envelope is sent once. What was sent and not echoed when the transport is lost fails as `Unreachable`, because nobody can
know whether it was taken; what was not sent yet waits for the transport, or for its deadline.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self

import msgspec

from penstock.client import address
from penstock.client.space.connection import ParticipantConnection, unreachable
from penstock.client.space.feed import Feed, Feeds, Overflow, kinds
from penstock.client.space.messages import (
    Arrival,
    Frame,
    SpaceEnvelope,
    SpaceError,
    TargetUnsupported,
    envelope_text,
    frame_bytes,
    object_of,
    text_of,
)
from penstock.client.space.pending import PendingEnvelopes, Wanted
from penstock.client.space.roster import Capability, Roster
from penstock.client.space.stream import SpaceStream, closed_error, opened_id
from penstock.client.space.transport import join, socket_url
from penstock.core.errors import PenstockError, Refusal


class Invitation(msgspec.Struct, frozen=True):
    """How an invited participant gets in."""

    participant: str
    token: str = msgspec.field(default="")
    url: str = ""

    def __repr__(self) -> str:
        return f"<Invitation of {self.participant}>"  # a token has no business in a log


class Space:
    """A place in a space: `async with Space(url, space="demo", participant="sensor-1", token=…) as space`.

    Example:
        async with penstock.Space("http://localhost:8787", space="demo", participant="sam", token=token) as space:
            heard = space.envelopes(kind="chat")
            await space.chat("hello")
            async for envelope in heard:
                print(envelope.sender, envelope.payload["text"])
    """

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
        door = address.discover_http(url)
        self.url = socket_url(door)
        self.space = space
        """The name of the space; None is the only one of a gateway."""
        self.last_error: SpaceError | None = None
        """The last refusal that named no envelope of ours."""
        self._participant = participant
        self._timeout_s = timeout
        self._roster = Roster()
        self._exchanges = PendingEnvelopes()
        self._feeds = Feeds()
        self._streams: weakref.WeakValueDictionary[str, SpaceStream] = weakref.WeakValueDictionary()
        token = token or address.operator_token(door)
        self._connection = ParticipantConnection(
            self.url,
            lambda: join(self.url, space, participant, token, timeout_s=connect_timeout),
            self,
            reconnect=reconnect,
        )

    # -- what is there

    @property
    def id(self) -> str:
        """Our name in the space."""
        return self._roster.id or self._participant

    @property
    def welcome(self) -> dict[str, Any]:
        """What the gateway said when we joined last."""
        return self._roster.welcome

    @property
    def capabilities(self) -> list[Capability]:
        """What we may send, as of the last grant or revoke."""
        return self._roster.capabilities

    @property
    def participants(self) -> dict[str, list[Capability]]:
        """The others who are there now, and what they may send."""
        return self._roster.participants

    @property
    def active_streams(self) -> dict[str, dict[str, Any]]:
        """The streams that are open now, by id."""
        return self._roster.streams

    @property
    def dropped(self) -> int:
        """Frames that feeds were too slow for, all together."""
        return self._feeds.dropped

    @property
    def is_connected(self) -> bool:
        """Whether we are there now; if not, we are on our way back."""
        return self._connection.is_up

    @property
    def reconnects(self) -> int:
        """How often the connection was lost and found again."""
        return self._connection.reconnects

    # -- sending

    async def send(
        self,
        kind: str,
        payload: object = None,
        *,
        to: str | Sequence[str] = (),
        correlation_id: str | Sequence[str] = (),
        confirm: bool = True,
        timeout: float | None = None,
    ) -> str:
        """Send an envelope and return its id, once its echo came back: it is durable then.

        With `confirm=False` it returns when the envelope is on its way. Raises SpaceError when the gateway refuses it.
        """
        if confirm:
            envelope_id, _ = await self._exchange(kind, payload, to, correlation_id, timeout, "echo")
            return envelope_id
        envelope_id = self._exchanges.next_id()
        try:
            async with asyncio.timeout(self._timeout_s if timeout is None else timeout):
                text = envelope_text(envelope_id, self.id, kind, payload, _names(to), _names(correlation_id))
                await self._connection.write(await self._connection.ready(), text)
        except TimeoutError:
            raise self._late(kind) from None
        return envelope_id

    async def chat(self, text: str, *, to: str | Sequence[str] = ()) -> str:
        """Say something to everybody; `to` only says whom it is meant for."""
        return await self.send("chat", {"text": text}, to=to)

    async def request(
        self,
        kind: str,
        payload: object = None,
        *,
        to: str | Sequence[str] = (),
        correlation_id: str | Sequence[str] = (),
        timeout: float | None = None,
    ) -> SpaceEnvelope:
        """Send an envelope, and wait for the first other one that is correlated to it."""
        _, answer = await self._exchange(kind, payload, to, correlation_id, timeout, "answer")
        return answer

    async def ask_gateway(self, kind: str, payload: object, *, timeout: float | None = None) -> SpaceEnvelope:
        """Send what the gateway itself answers, such as `stream/request`, and wait for its answer."""
        _, answer = await self._exchange(kind, payload, "gateway", (), timeout, "gateway")
        return answer

    async def _exchange(
        self,
        kind: str,
        payload: object,
        to: str | Sequence[str],
        correlation_id: str | Sequence[str],
        timeout: float | None,
        wants: Wanted,
    ) -> tuple[str, SpaceEnvelope]:
        try:
            async with (
                asyncio.timeout(self._timeout_s if timeout is None else timeout),
                self._exchanges.slot(),
            ):
                transport = await self._connection.ready()
                exchange = self._exchanges.begin(wants)
                try:
                    text = envelope_text(
                        exchange.id, self.id, kind, payload, _names(to), _names(correlation_id)
                    )
                    await self._connection.write(transport, text)
                    return exchange.id, await exchange.future
                finally:
                    self._exchanges.end(exchange)
        except TimeoutError:
            raise self._late(kind) from None

    async def write_frame(self, stream_id: str, data: bytes | str) -> None:
        """Send one frame of a stream; `SpaceStream.write` is the same."""
        try:
            async with asyncio.timeout(self._timeout_s):
                transport = await self._connection.ready()
                if stream_id not in self.active_streams:
                    raise closed_error(stream_id)
                await self._connection.write(transport, frame_bytes(stream_id, data))
        except TimeoutError:
            raise self._late("a frame") from None

    def _late(self, what: str) -> PenstockError:
        if not self._connection.is_up:
            return unreachable(f"no connection to {self.url} in time")
        message = f"the gateway did not answer `{what}` in time"
        if self.last_error is not None:
            message += f"; it complained about something else: {self.last_error.refusal.message}"
        return PenstockError(Refusal("Timeout", message))

    # -- listening

    def envelopes(self, kind: str | Sequence[str] = "*") -> Feed[SpaceEnvelope]:
        """Envelopes as they come, from now on, our own echoes among them; `chat`, `mcp/*`, or several of these.

        A reader that is too far behind gets `SlowConsumer`: no envelope is dropped silently.
        """
        wants = kinds(kind)
        return self._feeds.add(lambda item: isinstance(item, SpaceEnvelope) and wants(item.kind))

    def frames(self, stream_id: str | None = None, *, overflow: Overflow = "drop-oldest") -> Feed[Frame]:
        """Frames that reach us, from now on, of one stream or of all.

        A reader that is too far behind loses the oldest ones, which `dropped` counts. With `overflow="wait"` nothing is lost here: the
        socket is not read until there is room, so nothing else arrives either, echoes of what we send included.
        """
        return self._feeds.add(
            lambda item: isinstance(item, Frame) and stream_id in {None, item.stream_id}, overflow
        )

    def arrivals(self, kind: str | Sequence[str] = "*") -> Feed[Arrival]:
        """Envelopes, of these kinds, and all frames, in the order in which they come."""
        wants = kinds(kind)
        return self._feeds.add(lambda item: isinstance(item, Frame) or wants(item.kind))

    # -- streams and people

    async def open_stream(
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
    ) -> SpaceStream:
        """Open a stream whose frames go to the participants in `target`, or to everybody.

        `overflow` says what happens to somebody who does not read: the oldest frames go, or the reader does. Raises TargetUnsupported, and
        closes the stream, when the gateway would send the frames to everybody although a target was named.
        """
        names = _names(target or ())
        asked: dict[str, object] = {
            "direction": direction,
            "target": list(dict.fromkeys(names)) or None,
            "content_type": content_type,
            "format": format,
            "description": description,
            "expected_size_bytes": expected_size_bytes,
            "metadata": metadata,
            "overflow": overflow,
        }
        payload = {name: value for name, value in asked.items() if value is not None}
        opened = await self.ask_gateway("stream/request", payload, timeout=timeout)
        stream = self.stream(opened_id(opened))
        if names and not stream.target:
            await stream.close("the gateway does not know targeted delivery")
            raise TargetUnsupported(names, stream.id)
        return stream

    def stream(self, stream_id: str) -> SpaceStream:
        """A stream that is there already, for somebody who was allowed to write to it."""
        stream = self._streams.get(stream_id)
        if stream is None:
            stream = self._streams[stream_id] = SpaceStream(self, stream_id)
        return stream

    async def invite(
        self,
        participant: str,
        capabilities: Sequence[Capability] = (),
        reason: str | None = None,
    ) -> Invitation:
        """Let somebody new into the space; the answer holds its token, which nobody can look up later."""
        payload: dict[str, object] = {
            "participant_id": participant,
            "initial_capabilities": list(capabilities),
        }
        if reason:
            payload["reason"] = reason
        answer = object_of((await self.ask_gateway("space/invite", payload)).payload)
        if not text_of(answer.get("token")):
            message = text_of(answer.get("error")) or f"`{participant}` was not invited"
            raise SpaceError({"error": text_of(answer.get("status")) or "not_invited", "message": message})
        return Invitation(participant, text_of(answer["token"]), text_of(answer.get("connection_url")))

    async def kick(self, participant: str, reason: str | None = None) -> None:
        """Put somebody out of the space for good."""
        payload = {"participant_id": participant} | ({"reason": reason} if reason else {})
        await self.send("space/kick", payload, to=participant)

    # -- the life of the connection

    async def open(self) -> Self:
        """Join; raises PenstockError when that fails."""
        await self._connection.open()
        return self

    async def close(self) -> None:
        """Leave; whoever still waits gets `Unreachable`, and feeds end."""
        self._feeds.end()
        await self._connection.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # -- for the connection

    def arrived(self, arrival: Arrival) -> None:
        if isinstance(arrival, SpaceEnvelope):
            self._roster.take(arrival)
            if (
                not self._exchanges.take(arrival)
                and arrival.kind == "system/error"
                and arrival.is_from_gateway
            ):
                self._complaint(SpaceError(object_of(arrival.payload)))
        self._feeds.put(arrival)

    async def room(self) -> None:
        await self._feeds.room()

    def lost(self, error: PenstockError) -> None:
        self._exchanges.fail(error)

    def ended(self, error: PenstockError) -> None:
        self._feeds.end(error)

    def _complaint(self, error: SpaceError) -> None:
        """A refusal of something without an id: of a frame, as far as we can tell."""
        self.last_error = error
        if error.error == "unauthorized_stream_write":
            stream = self._streams.get(text_of(error.payload.get("stream_id")))
            if stream is not None:
                stream.refused(error)
        elif error.code == "RateLimited":  # nobody says of which stream
            for stream in list(self._streams.values()):
                stream.refused(error)


def _names(value: str | Sequence[str]) -> Sequence[str]:
    return (value,) if isinstance(value, str) else value
