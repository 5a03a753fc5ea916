"""StreamService: a blind relay between PULL and XPUB, as an object that others can embed.

One plain loop drains bursts from its sockets; it runs in a thread or a process of its own, because a busy relay beside an event loop
costs that loop milliseconds. What it learns of topics, it tells by their hashes. The control socket `inproc://stream-ctrl-<name>`
takes the word `TERMINATE`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any, Literal

import msgspec
import zmq

from penstock.core.errors import Refusal
from penstock.core.instant import Now
from penstock.core.relay import Message, Relay, RelayLimits, Topic
from penstock.dialects.streamservice.signing import Registrar
from penstock.dialects.streamservice.wire import Chunk, Envelope, Resume, peek
from penstock.transports.zeromq import LINGER_MS, CurveKeys, bind, guard

BURST = 256
"""Messages that are taken from a socket before the others are looked at."""
REPORT_US = 1_000_000
"""How often what passed is told."""
TERMINATE = b"TERMINATE"
RESUME_MARK = 2
"""The first byte of a resume that comes in where subscriptions do: those begin with 0 or 1."""
GONE_MARK = b"\x03"
"""The first byte of the answer to a resume whose mark is gone; it is the second of two frames."""
TOPIC_LENGTH = 64
_HEX = frozenset(b"0123456789abcdef")

Report = Callable[[list[dict[str, Any]]], None]
JournalMode = Literal["metadata", "full", "off"]


class RelaySettings(msgspec.Struct, frozen=True):
    """Where the relay is, and how its sockets are set."""

    pub: str
    """Clients subscribe here."""
    pull: str
    """Publishers push here."""
    limits: RelayLimits = RelayLimits()
    receive_hwm: int = 100_000
    send_hwm: int = 100_000
    curve: CurveKeys | None = None
    journal: JournalMode = "metadata"
    also_pub: tuple[str, ...] = ()
    """Further places to subscribe at, such as one for this machine alone."""


def topic_hash(name: bytes) -> str:
    """What a topic is called outside: whoever knows a topic may listen to it."""
    return sha256(name).hexdigest()


class StreamService:
    """A relay at work."""

    def __init__(
        self,
        name: str,
        context: zmq.Context[Any],
        settings: RelaySettings,
        registrar: Registrar,
        report: Report | None = None,
    ) -> None:
        self.name = name
        self.context = context
        self.settings = settings
        self.relay = Relay(settings.limits)
        self._registrar = registrar
        self._report = report
        self._rows: list[dict[str, Any]] = []
        self._counted: dict[bytes, tuple[int, int, int]] = {}
        self._xpub: zmq.Socket[Any]
        self._pull: zmq.Socket[Any]
        self.endpoints: dict[str, str] = {}

    def registrations(self) -> list[tuple[str, str]]:
        """Where others connect to, by the kind of socket they need."""
        return [("sub", self.settings.pub), ("push", self.settings.pull)]

    @property
    def control(self) -> str:
        return f"inproc://stream-ctrl-{self.name}"

    def restore(self, topics: Sequence[tuple[bytes, str, int]]) -> None:
        """Take back registrations of an earlier run: topic, signer and end."""
        now = _now()
        for topic, signer, expires_s in topics:
            self.relay.register(now, topic, signer, expires_s)

    def run(self, on_ready: Callable[[], None] | None = None) -> dict[str, int]:
        """Relay until told to stop; returns what was not delivered."""
        keeper = guard(self.context, self.settings.curve)
        sockets: list[zmq.Socket[Any]] = []
        try:
            self._xpub = self._open(zmq.XPUB, sockets)
            self._pull = self._open(zmq.PULL, sockets)
            control = self.context.socket(zmq.PAIR)
            sockets.append(control)
            control.bind(self.control)
            self._bind()
            if on_ready is not None:
                on_ready()
            self._loop(control)
            return self._drain_all()
        finally:
            for socket in sockets:
                socket.close()
            if keeper is not None:
                keeper.stop()

    def _open(self, kind: int, sockets: list[zmq.Socket[Any]]) -> zmq.Socket[Any]:
        socket = self.context.socket(kind)
        sockets.append(socket)
        socket.linger = LINGER_MS
        if kind == zmq.XPUB:
            socket.sndhwm = self.settings.send_hwm
            socket.set(zmq.XPUB_VERBOSER, 1)
            socket.set(zmq.XPUB_MANUAL, 1)
        else:
            socket.rcvhwm = self.settings.receive_hwm
        # One byte more than what is taken, so that ours is the word that refuses it.
        socket.maxmsgsize = self.settings.limits.message_max + 1_024
        return socket

    def _bind(self) -> None:
        settings = self.settings
        self.endpoints["pub"] = bind(self._xpub, settings.pub, settings.curve)
        for also in settings.also_pub:
            bind(self._xpub, also, None)
        self.endpoints["pull"] = bind(self._pull, settings.pull, settings.curve)

    # The loop

    def _loop(self, control: zmq.Socket[Any]) -> None:
        poller = zmq.Poller()
        for socket in (self._pull, self._xpub, control):
            poller.register(socket, zmq.POLLIN)
        now = _now()
        compact_us = now.us + self.settings.limits.compact_interval_ms * 1000
        report_us = now.us + REPORT_US
        while True:
            wake_us = min(compact_us, report_us, self.relay.next_replay_us() or compact_us)
            ready = dict(poller.poll(max(wake_us - now.us, 0) // 1000 + 1))
            now = _now()
            if control in ready and control.recv() == TERMINATE:
                return
            if self._xpub in ready:
                self._take_subscriptions(now)
            if self._pull in ready:
                self._take_messages(now)
            for topic, messages in self.relay.due_replays(now):
                self._send(topic, messages)
            if now.us >= compact_us:
                compact_us = now.us + self.settings.limits.compact_interval_ms * 1000
                self._compact(now)
            if now.us >= report_us:
                report_us = now.us + REPORT_US
                self.tell(now)

    def _take_messages(self, now: Now) -> None:
        """A burst of what publishers sent."""
        receive, send = self._pull.recv_multipart, self._xpub.send
        relay, nowait, now_us = self.relay, zmq.NOBLOCK, now.us
        for _ in range(BURST):
            try:
                frames = receive(nowait)
            except zmq.Again:
                return
            if len(frames) == 1:
                frame = frames[0]
                found = peek(frame)
                if type(found) is Chunk:
                    topic = relay.publish(now_us, found.topic, found.topic + frame, found.mac, len(frame))
                    if topic is not None:
                        send(found.topic + frame, nowait)
                elif type(found) is Envelope:
                    self._register(now, found)
                elif type(found) is Resume:
                    self._resume(now, found)
                else:
                    relay.totals.refused += 1
            elif len(frames) == 3 and len(frames[2]) == 16 and is_topic(frames[0]):
                block = tuple(frames)
                size = len(frames[1]) + 80
                if relay.publish(now_us, frames[0], block, frames[2], size) is not None:
                    self._xpub.send_multipart(block, nowait)
            else:
                relay.totals.refused += 1

    def _take_subscriptions(self, now: Now) -> None:
        xpub = self._xpub
        for _ in range(BURST):
            try:
                frame = xpub.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            if not frame:
                continue
            first, name = frame[0], frame[1:]
            if first == RESUME_MARK:
                found = peek(name)
                if type(found) is Resume:
                    self._resume(now, found)
            elif not is_topic(name):
                self.relay.totals.refused += 1  # an empty or short prefix would hear what is not meant for it
            elif first == 1:
                xpub.set(zmq.SUBSCRIBE, name)
                self._note("subscribe", name)
                self._send_all(name, self.relay.subscribe(now, name))
            elif first == 0:
                xpub.set(zmq.UNSUBSCRIBE, name)
                self._note("unsubscribe", name)
                self.relay.unsubscribe(now, name)

    def _send_all(self, name: bytes, messages: list[Message]) -> None:
        for message in messages:
            if isinstance(message, bytes):
                self._xpub.send(message, zmq.NOBLOCK)
            else:
                self._xpub.send_multipart(message, zmq.NOBLOCK)

    def _send(self, topic: Topic, messages: list[Message]) -> None:
        self._send_all(topic.name, messages)

    def _register(self, now: Now, envelope: Envelope) -> None:
        wanted = self._registrar.check(now, envelope)
        if isinstance(wanted, Refusal):
            self.relay.totals.refused += 1
            return
        outcome = self.relay.register(now, wanted.topic, wanted.signer, wanted.expires_s)
        if not isinstance(outcome, Refusal):
            self._note("register", wanted.topic, exp=wanted.expires_s, signer=wanted.signer)

    def _resume(self, now: Now, asked: Resume) -> None:
        messages = self.relay.resume(now, asked.topic, asked.mac)
        self._note("resume", asked.topic, found=messages is not None)
        if messages is None:
            if asked.topic in self.relay.topics:
                self._xpub.send_multipart((asked.topic, GONE_MARK + asked.mac), zmq.NOBLOCK)
        else:
            self._send_all(asked.topic, messages)

    def _compact(self, now: Now) -> None:
        for topic, reason in self.relay.compact(now):
            self._count(topic)
            self._counted.pop(topic.name, None)
            self._note("expire", topic.name, reason=reason)

    # What is told of it

    def _note(self, event: str, name: bytes, **more: Any) -> None:
        if self._report is not None and self.settings.journal != "off":
            self._rows.append({"event": event, "channel": topic_hash(name), "topic": name, **more})

    def _count(self, topic: Topic) -> None:
        """What a topic did since it was last counted."""
        seq, lost, sent = self._counted.get(topic.name, (0, 0, 0))
        if (topic.seq, topic.lost) == (seq, lost):
            return
        self._counted[topic.name] = (topic.seq, topic.lost, topic.sent)
        self._note(
            "chunk_counts",
            topic.name,
            seq=topic.seq,
            chunks=topic.seq - seq,
            lost=topic.lost - lost,
            subscribers=topic.subscribers,
            sent=topic.sent - sent,
        )

    def tell(self, now: Now) -> None:
        """Report what passed since the last time, and the counts of the whole."""
        if self._report is None:
            return
        for topic in self.relay.topics.values():
            self._count(topic)
        rows, self._rows = self._rows, []
        totals = msgspec.to_builtins(self.relay.totals)
        state = {"topics": len(self.relay.topics), "bytes": self.relay.bytes, "early": len(self.relay.early)}
        self._report([*rows, {"event": "totals", **totals, **state}])

    def _drain_all(self) -> dict[str, int]:
        """Pass on what is still coming in, then say what nobody took."""
        now = _now()
        for _ in range(16):
            self._take_messages(now)
        self.tell(now)
        return {"topics": len(self.relay.topics), "undelivered": self.relay.undelivered}


def is_topic(name: bytes) -> bool:
    """64 lower case hexadecimal digits."""
    return len(name) == TOPIC_LENGTH and _HEX.issuperset(name)


def _now() -> Now:
    return Now(time.monotonic_ns() // 1000, time.time_ns() // 1000)
