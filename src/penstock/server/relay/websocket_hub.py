"""Token streams for browsers: the server subscribes to its relay once per topic and shares the subscription among WebSockets.

The first message of a socket names its topic and optionally a mark to resume after. After that, every message of the topic is one binary
message: a chunk as it is, a block followed by its 16-byte MAC. The name of a topic never appears in a URL. The server answers a mark
that is gone with `{"gone": "<mark>"}`. A replay reaches all sockets of the topic, as it does at the relay itself.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import zmq

from penstock.core.clock import Now
from penstock.core.errors import Refusal
from penstock.core.links import Link
from penstock.core.scopes import Principal
from penstock.dialects.courier.sessions.subscribe import error_message
from penstock.dialects.courier.wire.envelopes import to_refusal
from penstock.dialects.streamservice import encode
from penstock.dialects.streamservice.signatures import REFUSED_MARK
from penstock.dialects.streamservice.wire import BLOCK_MAC_SIZE, CHUNK_MAC_SIZE, TOPIC_SIZE, is_topic
from penstock.server.engine.connections import Connection
from penstock.server.engine.runtime import Runtime
from penstock.transports.http_replies import Upgrade
from penstock.transports.transport import TEXT, ServerWebSocketTransport, frame, frame_head
from penstock.transports.zeromq import reached

BURST = 256
"""Messages passed on before the loop runs other work."""
FIRST_MAX = 1_024
"""Bytes of the first message of a socket."""
WAITING_HWM = 100_000
"""Messages that may wait in the SUB socket."""


class ListenRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The first message of a socket."""

    topic: str
    resume: str | None = None
    """A mark in hexadecimal: replay what followed it."""


class RelaySession:
    """One WebSocket that follows a topic."""

    def __init__(self, hub: RelayHub) -> None:
        self.out: list[bytes] = []
        self.link: Link = None  # type: ignore[assignment]  # the runtime sets it
        self.closing: tuple[int, str] | None = None
        self.answers = ()
        self.topic: bytes | None = None
        self._hub = hub

    input_bytes = 0

    def receive(self, now: Now, data: bytes) -> None:
        if self.closing is not None:
            return
        if self.topic is not None:
            self.refuse(Refusal("InvalidRequest", "a socket names one topic and sends nothing else"))
            return
        found = _parse(data)
        if isinstance(found, Refusal):
            self.refuse(found)
        else:
            self.topic, mark = found
            self._hub.join(self, mark)

    def refuse(self, refusal: Refusal) -> None:
        """Send the reason and close."""
        self.out.append(frame(TEXT, error_message(refusal)))
        self.closing = (refusal.kind.close or 1008, refusal.code)

    def overdue(self) -> None:
        """Refuse a socket whose first message is late."""
        if self.topic is None and self.closing is None:
            self.refuse(Refusal("Timeout", 'say which topic: {"topic": "<64 hexadecimal digits>"}'))

    def drain(self, refusal: Refusal) -> None:
        self.refuse(refusal)

    def release(self) -> None:
        """Nothing refers back to it."""


def _parse(data: bytes) -> tuple[bytes, bytes | None] | Refusal:
    """The topic and the mark of a first message."""
    try:
        request = msgspec.json.decode(data, type=ListenRequest)
    except msgspec.ValidationError as error:
        return to_refusal(error)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Refusal("InvalidJSON", f"the first message is not JSON: {error}")
    topic = request.topic.encode()
    if not is_topic(topic):
        return Refusal("InvalidRequest", "`topic` is not made of 64 lower case hexadecimal digits", ref="topic")
    if request.resume is None:
        return topic, None
    try:
        mark = bytes.fromhex(request.resume)
    except ValueError:
        mark = b""
    if len(mark) not in (BLOCK_MAC_SIZE, CHUNK_MAC_SIZE):
        return Refusal("InvalidRequest", "`resume` is no mark: 16 or 32 bytes in hexadecimal", ref="resume")
    return topic, mark


class RelayConnection(Connection):
    """The connection of a socket that follows a topic."""

    __slots__ = ("hub",)

    session: RelaySession
    hub: RelayHub

    def gone(self, now: Now) -> None:
        self.hub.leave(self.session)

    def adopt(self, principal: Principal) -> bool:
        return True  # the topic itself is the secret that grants access


class RelayHub:
    """The subscriptions of the server at its relay."""

    def __init__(self, runtime: Runtime, endpoint: str) -> None:
        self._runtime = runtime
        self._endpoint = endpoint
        self._context: zmq.Context[Any] | None = None
        self._socket: zmq.Socket[Any]
        self._listeners: dict[bytes, dict[RelaySession, None]] = {}
        self._is_closed = False
        self.slow_cut = 0

    def join(self, session: RelaySession, mark: bytes | None) -> None:
        """Subscribe a session to its topic."""
        topic = session.topic
        assert topic is not None
        if self._is_closed:
            session.refuse(Refusal("Draining", "the server is shutting down"))
            return
        if self._context is None:
            self._open()
        others = self._listeners.setdefault(topic, {})
        is_first = not others
        others[session] = None
        if is_first:
            self._socket.set(zmq.SUBSCRIBE, topic)
        elif mark is None:  # subscribing again makes the relay replay what it holds
            self._socket.set(zmq.UNSUBSCRIBE, topic)
            self._socket.set(zmq.SUBSCRIBE, topic)
        if mark is not None:
            request = b"\x02" + encode.resume(topic, mark)
            self._socket.set(zmq.SUBSCRIBE, request)
            self._socket.set(zmq.UNSUBSCRIBE, request)
        self._read_soon()

    def leave(self, session: RelaySession) -> None:
        """Unsubscribe a session."""
        topic = session.topic
        others = self._listeners.get(topic) if topic is not None else None
        if others is None or topic is None or others.pop(session, session) is session:
            return
        if not others:
            del self._listeners[topic]
            if self._context is not None:
                self._socket.set(zmq.UNSUBSCRIBE, topic)
                self._read_soon()

    def _open(self) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.rcvhwm = WAITING_HWM
        self._socket.set(zmq.RECONNECT_IVL, 50)
        self._socket.set(zmq.RECONNECT_IVL_MAX, 1_000)
        self._socket.connect(reached(self._endpoint))
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._read)

    def _read_soon(self) -> None:
        # Any call of a ZeroMQ socket may consume the event of its descriptor, so read again.
        asyncio.get_running_loop().call_soon(self._read)

    def _read(self) -> None:
        """Pass on a burst. The descriptor is edge-triggered, so a full burst is followed by another."""
        if self._context is None:
            return
        socket, touched = self._socket, dict[RelaySession, None]()
        for _ in range(BURST):
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            self._pass_on(frames, touched)
        else:
            self._read_soon()
        for session in touched:
            connection = self._runtime.peers.find(session)
            if connection is not None:
                self._check_reader(connection, session)
                self._runtime.peers.touch(connection)

    def _pass_on(self, frames: list[bytes], touched: dict[RelaySession, None]) -> None:
        sessions = self._listeners.get(frames[0][:TOPIC_SIZE])
        if sessions is None:
            return
        if len(frames) == 2 and frames[1][:1] == REFUSED_MARK:
            return  # an answer for the publisher
        if len(frames) == 2:
            mark = frames[1][1:].hex()
            framed = frame(TEXT, msgspec.json.encode({"gone": mark}))
        else:
            payload = frames[0][TOPIC_SIZE:] if len(frames) == 1 else b"".join(frames[1:])
            framed = frame_head(len(payload)) + payload
        for session in sessions:
            if session.closing is None:
                session.out.append(framed)
                touched[session] = None

    def _check_reader(self, connection: Connection, session: RelaySession) -> None:
        """Disconnect a socket that does not read."""
        limits = self._runtime.machine.limits
        waiting = connection.wire.buffered + sum(map(len, session.out))
        if waiting > limits.space_outbox_max and session.closing is None:
            self.slow_cut += 1
            session.out.clear()
            message = f"{waiting} bytes are unread, more than `limits.space_outbox_max`"
            session.refuse(Refusal("SlowConsumer", message))

    def close(self) -> None:
        """Unsubscribe from everything. Sockets may still leave; new ones are refused."""
        self._is_closed = True
        if self._context is not None:
            context, self._context = self._context, None
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close(0)
            context.term()


class RelayPlan(Upgrade):
    """Opens the connection of a socket that follows a topic."""

    message_max = FIRST_MAX

    def __init__(self, runtime: Runtime, hub: RelayHub, principal: Principal, peer: str) -> None:
        self._runtime = runtime
        self._hub = hub
        self._principal = principal
        self._peer = peer

    def open(self, wire: ServerWebSocketTransport) -> Connection | None:
        wire.is_framed = True
        runtime = self._runtime
        session = RelaySession(self._hub)
        connection = runtime.peers.open(session, wire, self._principal, self._peer, make=RelayConnection)
        if isinstance(connection, Refusal):
            wire.send([frame(TEXT, error_message(connection))])
            wire.close(connection.kind.close or 1008, connection.code)
            return None
        assert isinstance(connection, RelayConnection)
        connection.hub = self._hub
        due_us = runtime.scheduler.now().us + runtime.machine.limits.hello_ms * 1000

        def expect() -> None:
            if not connection.closed:
                session.overdue()
                runtime.peers.touch(connection)

        runtime.scheduler.at(due_us, expect)
        return connection
