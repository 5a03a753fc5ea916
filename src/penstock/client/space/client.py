"""A participant of a MEW space: everything it can do there as a method.

It owns no state: the connection keeps the transport, the roster the state of the space, feeds the unread arrivals, and pending envelopes
those that wait for an echo. Invariants: an envelope is sent once. When the transport is lost, an envelope without an echo fails as
`Unreachable`, because it is unknown whether the gateway accepted it; an envelope that was not sent waits for the next transport, or for
its deadline.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import msgspec

from penstock.client import address
from penstock.client.space.connection import ParticipantConnection, PendingEnvelopes, Wanted, join, socket_url
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
from penstock.client.space.roster import Capability, Roster
from penstock.client.space.stream import SpaceStream, closed_error, opened_id
from penstock.core.errors import PenstockError, Refusal


class Invitation(msgspec.Struct, frozen=True):
    """What an invited participant needs to join."""

    participant: str
    token: str = msgspec.field(default="")
    url: str = ""

    def __repr__(self) -> str:
        return f"<Invitation of {self.participant}>"  # tokens must not appear in logs


class Space:
    """A participant of a space: `async with Space(url, space="demo", participant="sensor-1", token=…) as space`.

    After the connection is lost, the participant joins again under the same name with a back-off. A rejected join is final, and so is
    a join of another connection under the same name. Every error is a `PenstockError`; the gateway's own are `SpaceError`.

    Example:
        async with penstock.Space("http://localhost:8787", space="demo", participant="sam", token=token) as space:
            chat = space.envelopes(kind="chat")
            await space.chat("hello")
            async for envelope in chat:
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
        """Default URL: the server on `./penstock-data`. Default token: the operator's, if that server runs here."""
        door = address.discover_http(url)
        self.url = socket_url(door)
        self.space = space
        """The name of the space; None for the only space of a gateway."""
        self.last_error: SpaceError | None = None
        """The last error that was not about one of our envelopes."""
        self._participant = participant
        self._timeout_s = timeout
        self._roster = Roster()
        self._exchanges = PendingEnvelopes()
        self._feeds = Feeds()
        self._streams: weakref.WeakValueDictionary[str, SpaceStream] = weakref.WeakValueDictionary()
        token = address.given_token(token) or address.operator_token(door)
        self._connection = ParticipantConnection(
            self.url,
            lambda: join(self.url, space, participant, token, timeout_s=connect_timeout),
            self,
            reconnect=reconnect,
        )

    # -- state

    @property
    def id(self) -> str:
        """Our participant id in the space."""
        return self._roster.id or self._participant

    @property
    def welcome(self) -> dict[str, Any]:
        """The payload of the last welcome."""
        return self._roster.welcome

    @property
    def capabilities(self) -> list[Capability]:
        """What we may send, after the last grant or revoke."""
        return self._roster.capabilities

    @property
    def participants(self) -> dict[str, list[Capability]]:
        """The other participants that are present, and what they may send."""
        return self._roster.participants

    @property
    def active_streams(self) -> dict[str, dict[str, Any]]:
        """The open streams, by id."""
        return self._roster.streams

    @property
    def dropped(self) -> int:
        """Frames dropped because a feed was read too slowly, over all feeds."""
        return self._feeds.dropped

    @property
    def is_connected(self) -> bool:
        """Whether the connection is up; if not, it is being re-established."""
        return self._connection.is_up

    @property
    def reconnects(self) -> int:
        """How often the connection was lost and re-established."""
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
        """Send an envelope, wait for its echo, and return its id. The echo means that the envelope is durable.

        With `confirm=False` it returns as soon as the envelope is sent. Raises SpaceError when the gateway rejects it, and `Timeout`
        when no echo arrives in time.
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
        """Send a chat message to all participants; `to` only marks whom it is meant for."""
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
        """Send an envelope, and return the first other envelope that is correlated to it."""
        _, answer = await self._exchange(kind, payload, to, correlation_id, timeout, "answer")
        return answer

    async def ask_gateway(self, kind: str, payload: object, *, timeout: float | None = None) -> SpaceEnvelope:
        """Send an envelope that the gateway itself answers, such as `stream/request`, and return the answer."""
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
            async with asyncio.timeout(self._timeout_s if timeout is None else timeout), self._exchanges.slots:
                transport = await self._connection.ready()
                exchange = self._exchanges.begin(wants)
                try:
                    text = envelope_text(exchange.id, self.id, kind, payload, _names(to), _names(correlation_id))
                    await self._connection.write(transport, text)
                    return exchange.id, await exchange.future
                finally:
                    self._exchanges.end(exchange)
        except TimeoutError:
            raise self._late(kind) from None

    async def write_frame(self, stream_id: str, data: bytes | str) -> None:
        """Send one frame of a stream, as `SpaceStream.write` does."""
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
            return address.unreachable(f"no connection to {self.url} in time")
        message = f"the gateway did not answer `{what}` in time"
        if self.last_error is not None:
            message += f"; its last error was: {self.last_error.refusal.message}"
        return PenstockError(Refusal("Timeout", message))

    # -- receiving

    def envelopes(self, kind: str | Sequence[str] = "*") -> Feed[SpaceEnvelope]:
        """Envelopes that arrive from now on, including the echoes of our own; `kind` is `chat`, `mcp/*`, or a list of such patterns.

        A feed that is read too slowly ends with `SlowConsumer`; envelopes are never dropped silently.
        """
        wants = kinds(kind)
        return self._feeds.add(lambda item: isinstance(item, SpaceEnvelope) and wants(item.kind))

    def frames(self, stream_id: str | None = None, *, overflow: Overflow = "drop-oldest") -> Feed[Frame]:
        """Frames that arrive from now on, of one stream or of all.

        A feed that is read too slowly drops its oldest frames and counts them in `dropped`. With `overflow="wait"` it drops nothing: the
        socket is not read until there is room, so envelopes and echoes wait too.
        """
        return self._feeds.add(lambda item: isinstance(item, Frame) and stream_id in {None, item.stream_id}, overflow)

    def arrivals(self, kind: str | Sequence[str] = "*") -> Feed[Arrival]:
        """Envelopes of these kinds and all frames, in the order of arrival."""
        wants = kinds(kind)
        return self._feeds.add(lambda item: isinstance(item, Frame) or wants(item.kind))

    # -- streams and participants

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
        overflow: Literal["drop-oldest", "wait", "disconnect"] | None = None,
        timeout: float | None = None,
    ) -> SpaceStream:
        """Open a stream whose frames go to the participants in `target`, or to all.

        `overflow` is what the gateway does when a receiver is too slow: drop the oldest frames, let the writer wait (the default with
        `expected_size_bytes`), or disconnect the receiver. Raises TargetUnsupported, and closes the stream, when the gateway ignores the
        target and would send the frames to all.
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
            await stream.close("the gateway does not support targets")
            raise TargetUnsupported(names, stream.id)
        return stream

    def stream(self, stream_id: str) -> SpaceStream:
        """An existing stream, for a participant that may write to it."""
        stream = self._streams.get(stream_id)
        if stream is None:
            stream = self._streams[stream_id] = SpaceStream(self, stream_id)
        return stream

    async def invite(
        self, participant: str, capabilities: Sequence[Capability] = (), reason: str | None = None
    ) -> Invitation:
        """Invite a new participant. The invitation holds its token, which cannot be looked up later."""
        payload: dict[str, object] = {"participant_id": participant, "initial_capabilities": list(capabilities)}
        if reason:
            payload["reason"] = reason
        answer = object_of((await self.ask_gateway("space/invite", payload)).payload)
        if not text_of(answer.get("token")):
            message = text_of(answer.get("error")) or f"`{participant}` was not invited"
            raise SpaceError({"error": text_of(answer.get("status")) or "not_invited", "message": message})
        return Invitation(participant, text_of(answer["token"]), text_of(answer.get("connection_url")))

    async def kick(self, participant: str, reason: str | None = None) -> None:
        """Remove a participant from the space permanently."""
        payload = {"participant_id": participant} | ({"reason": reason} if reason else {})
        await self.send("space/kick", payload, to=participant)

    # -- the life of the connection

    async def open(self) -> Self:
        """Join the space. Raises PenstockError when that fails."""
        await self._connection.open()
        return self

    async def close(self) -> None:
        """Leave the space. Pending calls raise `Unreachable`, and feeds end."""
        self._feeds.end()
        await self._connection.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    # -- for the connection

    def _arrived(self, arrival: Arrival) -> None:
        if isinstance(arrival, SpaceEnvelope):
            self._roster.take(arrival)
            if not self._exchanges.take(arrival) and arrival.kind == "system/error" and arrival.is_from_gateway:
                self._note_error(SpaceError(object_of(arrival.payload)))
        self._feeds.put(arrival)

    async def _room(self) -> None:
        await self._feeds.room()

    def _lost(self, error: PenstockError) -> None:
        self._exchanges.fail(error)

    def _ended(self, error: PenstockError) -> None:
        self._feeds.end(error)

    def _note_error(self, error: SpaceError) -> None:
        """Keep an error that names no envelope; most are about a frame."""
        self.last_error = error
        if error.error == "unauthorized_stream_write":
            stream = self._streams.get(text_of(error.payload.get("stream_id")))
            if stream is not None:
                stream._refused(error)
        elif error.code == "RateLimited":  # the error does not name the stream
            for stream in list(self._streams.values()):
                stream._refused(error)


def _names(value: str | Sequence[str]) -> Sequence[str]:
    return (value,) if isinstance(value, str) else value
