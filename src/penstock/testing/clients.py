"""Clients that speak the real protocol over the simulated network.

They are simple on purpose: they send what a test gives them, and record what they receive. A test reads `lines` and `answers`; a program
that reacts sets `on_line`. A participant of a space records envelopes as objects and frames as bytes; `KnownStreams` is the state of the
streams that it can derive from what it received.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import msgspec

from penstock.dialects.mew.gateway_messages import GATEWAY, SYSTEM
from penstock.dialects.mew.settings import ParticipantSettings, SpaceSettings
from penstock.testing.network import SimConnection
from penstock.transports.transport import BINARY, PING, TEXT, unframed

Frame = dict[str, Any]


class PipeClient(ABC):
    """One end of a simulated connection."""

    def __init__(self, pipe: SimConnection, name: str) -> None:
        self.pipe = pipe
        self.name = name
        self.closed: tuple[int, str] | None = None
        pipe.on_data = self._data
        pipe.on_close = self._close

    @abstractmethod
    def _data(self, data: bytes) -> None: ...

    def _close(self, code: int, reason: str) -> None:
        self.closed = (code, reason)


class LineClient(PipeClient):
    """A Control v1 connection.

    >>> from penstock.testing import World
    >>> world = World(seed=7)
    >>> client = world.connect()
    >>> req = client.request("ping")
    >>> world.advance(ms=50)
    >>> client.answers[req]
    {'type': 'ok', 'reqId': 1, 'result': {}}
    """

    def __init__(self, pipe: SimConnection, name: str) -> None:
        super().__init__(pipe, name)
        self.lines: list[Frame] = []
        """Everything received, in order."""
        self.answers: dict[int, Frame] = {}
        """The last answer to each `reqId` of `request`."""
        self.on_line: Callable[[Frame], None] | None = None
        self._rest = b""
        self._req_no = 0

    def send_line(self, *frames: Frame | bytes) -> None:
        """Send frames in one write; bytes are sent unchanged, with a line end."""
        lines = [frame if isinstance(frame, bytes) else msgspec.json.encode(frame) for frame in frames]
        self.pipe.write(b"".join(line + b"\n" for line in lines))

    def frame(self, kind: str, /, **fields: Any) -> Frame:
        """A frame with the next `reqId`, to send with others."""
        self._req_no += 1
        return {"type": kind, "reqId": self._req_no, **fields}

    def request(self, kind: str, /, **fields: Any) -> int:
        """Send one frame; its answer appears in `answers` under the returned `reqId`."""
        frame = self.frame(kind, **fields)
        self.send_line(frame)
        return int(frame["reqId"])

    @property
    def deliveries(self) -> list[Frame]:
        return [line for line in self.lines if line["type"] == "deliver"]

    def _data(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            frame = msgspec.json.decode(line)
            self.lines.append(frame)
            req_id = frame.get("reqId")
            if isinstance(req_id, int):
                self.answers[req_id] = frame
            if self.on_line is not None:
                self.on_line(frame)


class SocketClient(PipeClient):
    """A subscribe socket: `/v1/subscribe?stream=…`."""

    def __init__(self, pipe: SimConnection, name: str, stream: str) -> None:
        super().__init__(pipe, name)
        self.stream = stream
        self.messages: list[Frame] = []
        """Everything received, in order."""
        self.on_message: Callable[[Frame], None] | None = None

    def send(self, message: Frame | bytes) -> None:
        """Send one message, such as `{"credit": 5}` or `{"ack": id}`."""
        self.pipe.write(message if isinstance(message, bytes) else msgspec.json.encode(message))

    def _data(self, data: bytes) -> None:
        message = msgspec.json.decode(data)
        self.messages.append(message)
        if self.on_message is not None:
            self.on_message(message)


_ACKS = ("stream/write-granted", "stream/write-revoked", "stream/ownership-transferred")


def token_of(name: str) -> str:
    """The token of a participant of `make_space`."""
    return f"{name}-token"


def member(name: str, *kinds: str) -> ParticipantSettings:
    """A participant that may send envelopes of these kinds."""
    digest = sha256(token_of(name).encode()).hexdigest()
    return ParticipantSettings((digest,), tuple({"kind": kind} for kind in kinds))


def make_space(space: str, *names: str) -> SpaceSettings:
    """A space whose participants may send everything."""
    return SpaceSettings(space, space, {name: member(name, "*") for name in names})


class KnownStream(msgspec.Struct):
    """An open stream, as a participant knows it."""

    owner: str
    writers: list[str]
    target: list[str]


class KnownStreams(dict[str, KnownStream]):
    """The streams of a space as one connection knows them: from its welcome, and from the gateway's messages since."""

    def apply(self, envelope: Frame) -> None:
        kind, payload = envelope.get("kind"), envelope.get("payload")
        speaker = envelope.get("from")
        if not isinstance(payload, dict):
            return
        if kind == "system/welcome" and speaker == SYSTEM and "active_streams" in payload:
            self.clear()
            self.update((each["stream_id"], _stream(each)) for each in payload["active_streams"])
        elif kind == "stream/open" and speaker == GATEWAY:
            self[payload["stream_id"]] = _stream(payload)
        elif kind == "stream/close":
            # The gateway forwards a participant's close only if it is the owner's, or names no open stream.
            self.pop(str(payload.get("stream_id")), None)
        elif kind in _ACKS and speaker == GATEWAY:
            known = self.get(payload["stream_id"])
            if known is not None:
                known.writers = payload["authorized_writers"]
                known.owner = payload.get("new_owner", known.owner)


def _stream(stream: Frame) -> KnownStream:
    return KnownStream(stream["owner"], stream["authorized_writers"], stream.get("target", []))


class SpaceClient(PipeClient):
    """A participant's WebSocket.

    >>> from penstock.testing import World, make_space
    >>> world = World(seed=7, spaces=[make_space("demo", "ann", "bob")])
    >>> ann, bob = world.join("demo", "ann"), world.join("demo", "bob")
    >>> world.advance(ms=50)
    >>> id_ = ann.send("stream/request", {"direction": "upload", "target": ["bob"]})
    >>> world.advance(ms=50)
    >>> ann.write("stream-1", b"21.5")
    >>> world.advance(ms=50)
    >>> bob.frames, ann.frames
    ([b'#stream-1#21.5'], [])
    """

    def __init__(self, pipe: SimConnection, name: str) -> None:
        super().__init__(pipe, name)
        self.id: str | None = None
        """Its participant id, after the welcome."""
        self.received: list[Frame | bytes] = []
        """Everything received, in order: envelopes, and frames with their stream ids."""
        self.streams = KnownStreams()
        """The open streams, as far as this participant was notified."""
        self.on_envelope: Callable[[Frame], None] | None = None
        self._no = 0

    def join(self, space: str, participant: str, token: str) -> None:
        self.post({"type": "join", "space": space, "participantId": participant, "token": token})

    def post(self, message: Frame | bytes) -> None:
        """Send one message unchanged."""
        self.pipe.write(message if isinstance(message, bytes) else msgspec.json.encode(message))

    def send(self, kind: str, payload: Frame | None = None, /, **fields: Any) -> str:
        """Send an envelope; returns its id, which is unique among all clients."""
        id_ = self.new_id()
        self.post({"id": id_, "kind": kind, **({} if payload is None else {"payload": payload}), **fields})
        return id_

    def new_id(self) -> str:
        self._no += 1
        return f"{self.pipe.no}-{self._no}"

    def write(self, stream: str, data: bytes) -> None:
        """Send a frame."""
        self.pipe.write(b"#" + stream.encode() + b"#" + data)

    @property
    def envelopes(self) -> list[Frame]:
        return [each for each in self.received if isinstance(each, dict)]

    @property
    def frames(self) -> list[bytes]:
        return [each for each in self.received if isinstance(each, bytes)]

    def kinds(self) -> list[str]:
        return [each["kind"] for each in self.envelopes]

    def _data(self, data: bytes) -> None:
        for opcode, content in unframed(data):
            if opcode == TEXT:
                self._envelope(msgspec.json.decode(content))
            elif opcode == BINARY:
                self.received.append(content)
            elif opcode == PING:
                self.pipe.pong()

    def _envelope(self, envelope: Frame) -> None:
        self.received.append(envelope)
        self.streams.apply(envelope)
        if envelope["kind"] == "system/welcome":
            self.id = envelope["payload"]["you"]["id"]
        if self.on_envelope is not None:
            self.on_envelope(envelope)
