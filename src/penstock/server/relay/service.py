"""StreamService: a blind relay between PULL and XPUB, as an object that others can embed.

One plain loop drains bursts from its sockets; it runs in a thread or a process of its own, because a busy relay beside an event loop
costs that loop milliseconds. What it learns of topics it tells by their hashes. The control socket `inproc://stream-ctrl-<name>`
takes the word `TERMINATE`.

Subscriptions are granted one by one (XPUB_MANUAL), so that an empty or short prefix hears nothing. A request to resume comes in on
PULL, or where subscriptions do: as a subscription to 0x02 and the framed request, which is never granted, or as a message
that begins with 0x02. libzmq takes such a message's reader for the next subscriber in line, so whoever subscribed behind one could
be given another's topic; in that case the socket is made anew, and everybody comes back by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import zmq

from penstock.core.clock import Now
from penstock.core.errors import Refusal
from penstock.core.relay.limits import RelayLimits
from penstock.core.relay.machine import Relay
from penstock.core.relay.topic import Message, Remembered, Topic
from penstock.dialects.streamservice.signatures import Registrar
from penstock.dialects.streamservice.wire import (
    BLOCK_MAC_SIZE,
    HEAD,
    TOPIC_END,
    TOPIC_SIZE,
    Chunk,
    FrameFault,
    Heads,
    Register,
    Resume,
    is_topic,
    peek,
    peek_block,
)
from penstock.server.config.relay_sections import JournalMode
from penstock.server.relay.reports import RelayReady, RelayStopped, ResumeRequested, TopicRegistered
from penstock.server.relay.stats import Report, TopicStats
from penstock.transports.zeromq import LINGER_MS, CurveKeys, EndpointError, KeyGate, bind

BURST = 256
"""Messages that are taken from a socket in one go."""
BURSTS = 4
"""Bursts of messages that are taken while they last, before the other sockets have their turn: about two milliseconds."""
REQUESTS = 4
"""Requests of subscribers that are looked at in one go: each may search a whole topic, about a millisecond."""
DRAIN_BURSTS = 512
"""Bursts of what is still coming in that are passed on at the end."""
REPORT_US = 250_000
"""How often what passed is told."""
COUNT_US = 1_000_000
"""How often each topic that did something is counted."""
TERMINATE = b"TERMINATE"
RESUME_MARK = 2
"""The first byte of a request to resume that comes in where subscriptions do: those begin with 0 or 1."""
GONE_MARK = b"\x03"
"""The first byte of the answer to a request whose mark is gone; it is the second of two frames."""
START_OVER_S = 5.0
"""How long a socket may take to be made anew, and how often that is tried."""
START_OVER_STEP_S = 0.002
START_OVER_EVERY_US = 1_000_000
"""Time between two such events: each of them cuts everybody off for a moment."""
SPARE = 4_096
"""Bytes above the bound that a socket takes, so that ours is the word that refuses it."""


class RelaySettings(msgspec.Struct, frozen=True):
    """Where the relay is, and how its sockets are set."""

    pub: str
    """Clients subscribe here."""
    pull: str
    """Publishers push here."""
    limits: RelayLimits = RelayLimits()
    curve: CurveKeys | None = None
    journal: JournalMode = "metadata"
    check_links: bool = False
    """Whether a message is taken only if it follows the newest one of its topic."""
    also_pub: str | None = None
    """A further place to subscribe at, for this machine alone."""


def mark_of(message: Message) -> bytes | None:
    """The MAC of a message as it was sent to subscribers."""
    if isinstance(message, tuple):
        return message[2]
    found = peek(message[TOPIC_SIZE:])
    return found.mac if isinstance(found, Chunk) else None


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
        self.relay = Relay(settings.limits, mark_of)
        self.accounts = TopicStats(self.relay, report)
        self.endpoints: dict[str, str] = {}
        self._registrar = registrar
        self._newest: dict[bytes, bytes] = {}
        """The newest mark of each topic, where links are checked."""
        self._heads = Heads()
        self._is_close = settings.check_links or (settings.journal == "full" and report is not None)
        self._publish = self._publish_closely if self._is_close else self.relay.publish
        self._poller = zmq.Poller()
        self._watched: dict[int, Callable[[], None]] = {}
        self._xpub: zmq.Socket[Any]
        self._pull: zmq.Socket[Any]
        self._is_unsure = False
        """A stranger's message was among the subscriptions that wait."""
        self._is_stopping = False
        self._is_mixed = False
        """Somebody subscribed whom we cannot tell from another: the socket has to be made anew."""
        self._over_us = 0

    def registrations(self) -> list[tuple[str, str]]:
        """Where others connect to, by the kind of socket they need."""
        found = self.endpoints or {"pub": self.settings.pub, "pull": self.settings.pull}
        return [("sub", found["pub"]), ("push", found["pull"])]

    @property
    def control(self) -> str:
        return f"inproc://stream-ctrl-{self.name}"

    def remember(self, registrations: Iterable[Remembered]) -> None:
        """Take back registrations of an earlier run."""
        self.relay.remember(registrations)

    def watch(self, descriptor: int, call: Callable[[], None], events: int = zmq.POLLIN) -> None:
        """Have something called while a file is ready; with no events, no more."""
        if events:
            self._watched[descriptor] = call
            self._poller.register(descriptor, events)
        elif self._watched.pop(descriptor, None) is not None:
            self._poller.unregister(descriptor)

    def stop(self) -> None:
        """End the loop after this turn: for what is called in it."""
        self._is_stopping = True

    def run(self, on_ready: Callable[[], None] | None = None) -> RelayStopped:
        """Relay until told to stop; returns what was not delivered."""
        curve = self.settings.curve
        gate = None if curve is None else KeyGate(self.context, curve)
        control: zmq.Socket[Any] = self.context.socket(zmq.PAIR)
        opened = [control]
        try:
            control.bind(self.control)
            self._poller.register(control, zmq.POLLIN)
            if gate is not None:
                self._poller.register(gate.socket, zmq.POLLIN)
            self._pull = self._open_pull()
            opened.append(self._pull)
            self._xpub = self._open_xpub(self.settings.pub)
            self.accounts.tell(RelayReady(self.endpoints["pub"], self.endpoints["pull"]))
            self.accounts.flush()
            if on_ready is not None:
                on_ready()
            self._loop(control, gate)
            return self._end()
        finally:
            if "pub" in self.endpoints:
                self._xpub.close(LINGER_MS)
            for socket in opened:
                socket.close(LINGER_MS)
            if gate is not None:
                gate.close()

    def _open_pull(self) -> zmq.Socket[Any]:
        pull: zmq.Socket[Any] = self.context.socket(zmq.PULL)
        pull.rcvhwm = self.settings.limits.receive_hwm
        pull.set(zmq.MAXMSGSIZE, self.settings.limits.message_max + SPARE)
        try:
            self.endpoints["pull"] = bind(pull, self.settings.pull, self.settings.curve)
        except BaseException:
            pull.close(0)
            raise
        self._poller.register(pull, zmq.POLLIN)
        return pull

    def _open_xpub(self, endpoint: str) -> zmq.Socket[Any]:
        xpub: zmq.Socket[Any] = self.context.socket(zmq.XPUB)
        xpub.sndhwm = self.settings.limits.send_hwm
        xpub.set(zmq.XPUB_VERBOSER, 1)
        xpub.set(zmq.XPUB_MANUAL, 1)
        xpub.set(zmq.MAXMSGSIZE, SPARE)
        try:
            if self.settings.also_pub is not None:  # before the keys, which are for what is bound after them
                bind(xpub, self.settings.also_pub, None)
            self.endpoints["pub"] = bind(xpub, endpoint, self.settings.curve)
        except BaseException:
            xpub.close(0)
            raise
        self._poller.register(xpub, zmq.POLLIN)
        return xpub

    # The loop

    def _loop(self, control: zmq.Socket[Any], gate: KeyGate | None) -> None:
        limits, relay, pull = self.settings.limits, self.relay, self._pull
        now = _now()
        compact_us = now.us + limits.compact_us
        report_us, count_us = now.us + REPORT_US, now.us + COUNT_US
        while not self._is_stopping:
            wake_us = min(compact_us, report_us, relay.next_replay_us() or compact_us)
            ready = dict(self._poller.poll(max(wake_us - now.us, 0) // 1000 + 1))
            now = _now()
            if control in ready and control.recv() == TERMINATE:
                return
            if gate is not None and gate.socket in ready:
                gate.answer()
                self.accounts.refused["key"] = gate.refused
            for descriptor in [each for each in ready if each in self._watched]:
                self._watched[descriptor]()
            if self._xpub in ready:
                self._take_subscriptions(now)
            if self._is_mixed and now.us >= self._over_us:
                self._start_over(now)
            if pull in ready:
                for _ in range(BURSTS):
                    if not self._take_messages(now):
                        break
            if relay.counted:
                self.accounts.count_busy()
            for _, messages in relay.due_replays(now):
                self._send_all(messages)
            if now.us >= compact_us:
                compact_us = now.us + limits.compact_us
                self._compact(now)
            if now.us >= report_us:
                report_us = now.us + REPORT_US
                if now.us >= count_us:
                    count_us = now.us + COUNT_US
                    self.accounts.count_all()
                self.accounts.flush()

    def _take_messages(self, now: Now) -> bool:
        """A burst of what publishers sent; False when there is no more.

        The hot path. Chunks of one topic are taken together, and what a burst brings goes out in one go: libzmq's own thread then wakes
        once and writes it all, and not for each message.
        """
        receive, sizes, nowait = self._pull.recv, self._heads.sizes, zmq.NOBLOCK
        out: list[bytes] = []
        run: list[bytes] = []
        of = b""
        is_more = False
        try:
            for _ in range(BURST):
                frame = receive(nowait)
                if sizes.get(frame[:HEAD]) == len(frame) and not frame[TOPIC_END]:
                    name = frame[HEAD:TOPIC_END]
                    if name != of:
                        if run:
                            self._take_run(now.us, of, run, out)
                            run = []
                        of = name
                    run.append(name + frame)
                else:
                    self._take_run(now.us, of, run, out)
                    self._send_chunks(out)  # before what may follow from it
                    run, out = [], []
                    self._take_other(now, frame)
            is_more = True
        except zmq.Again:
            pass
        self._take_run(now.us, of, run, out)
        self._send_chunks(out)
        return is_more

    def _take_run(self, now_us: int, name: bytes, run: list[bytes], out: list[bytes]) -> None:
        """Chunks of one topic, in their order; those to be forwarded are added to others."""
        if self._is_close:
            out += [each for each in run if self._publish(now_us, name, each, len(each)) is not None]
        elif len(run) == 1:
            if self._publish(now_us, name, run[0], len(run[0])) is not None:
                out += run
        elif run and self.relay.publish_run(now_us, name, run) is not None:
            out += run

    def _send_chunks(self, messages: list[bytes]) -> None:
        send, nowait = super(zmq.Socket, self._xpub).send, zmq.NOBLOCK  # pyzmq's own, without its wrapping
        for message in messages:
            send(message, nowait)

    def _take_other(self, now: Now, frame: bytes) -> None:
        """A message that is no chunk, or one whose head is new."""
        rest = []
        while self._pull.get(zmq.RCVMORE):
            rest.append(self._pull.recv())
        if rest:
            self._take_block(now, frame, rest)
            return
        found = peek(frame)
        if isinstance(found, Chunk):
            if len(frame) + TOPIC_SIZE <= self.settings.limits.message_max:
                self._heads.learn(frame)
            message = found.topic + frame
            if self._publish(now.us, found.topic, message, len(message)) is not None:
                self._xpub.send(message, zmq.NOBLOCK)
        elif isinstance(found, Register):
            self._register(now, found)
        elif isinstance(found, Resume):
            self._resume(now, found)
        else:
            self.accounts.refuse(found.reason)

    def _take_block(self, now: Now, name: bytes, rest: list[bytes]) -> None:
        if len(rest) != 2 or len(rest[1]) != BLOCK_MAC_SIZE or len(name) != TOPIC_SIZE:
            self.accounts.refuse("block")
            return
        block = (name, *rest)
        topic = self._publish(now.us, name, block, sum(map(len, block)))
        if topic is not None:
            self._xpub.send_multipart(block, zmq.NOBLOCK)

    def _publish_closely(self, now_us: int, name: bytes, message: Message, size: int) -> Topic | None:
        """Publish where links are checked, or messages journaled."""
        if self.settings.check_links:
            prev, mark = _link(message)
            newest = self._newest.get(name)
            if newest is not None and prev != newest:
                self.accounts.refuse("link")
                return None
            if name in self.relay.topics:
                self._newest[name] = mark
        topic = self.relay.publish(now_us, name, message, size)
        known = self.relay.topics.get(name)
        if self.settings.journal == "full" and known is not None:
            self.accounts.passed(known, message, is_held=topic is None)
        return topic

    def _take_subscriptions(self, now: Now) -> None:
        """A burst of what subscribers say; behind a stranger's message nobody can be told from another until all is read."""
        xpub, requests = self._xpub, 0
        for _ in range(BURST):
            try:
                frame = xpub.recv(zmq.NOBLOCK)
            except zmq.Again:
                self._is_unsure = False
                return
            is_message = frame[:1] not in (b"\x00", b"\x01")
            if is_message:
                self._is_unsure = True
                self._take_request(now, frame)
            else:
                self._take_subscription(now, frame[0] == 1, frame[1:], is_sure=not self._is_unsure)
            if is_message or frame[:2] == b"\x01\x02":
                requests += 1
                if requests == REQUESTS:
                    return

    def _take_subscription(self, now: Now, on: bool, name: bytes, *, is_sure: bool) -> None:
        """A request; where it is not sure whose it is, nothing is granted and everybody is asked to come again."""
        if name[:1] == b"\x02":
            if on:
                self._take_request(now, name)
        elif not is_topic(name):
            if on:
                self.accounts.refuse("prefix")  # an empty or short one would hear what is not meant for it
        elif on and not is_sure:
            self.accounts.refuse("mixed")
            self._is_mixed = True
        elif on:
            messages = self.relay.subscribe(now, name)
            if name in self.relay.topics or name in self.relay.early:
                self._xpub.set(zmq.SUBSCRIBE, name)
            self.accounts.listening(name, on=True)
            self._send_all(messages)
        else:
            if is_sure:
                self._xpub.set(zmq.UNSUBSCRIBE, name)
            self.relay.unsubscribe(now, name)
            self.accounts.listening(name, on=False)

    def _take_request(self, now: Now, frame: bytes) -> None:
        found = peek(frame[1:]) if frame[:1] == b"\x02" else FrameFault("unknown")
        if isinstance(found, Resume):
            self._resume(now, found)
        else:
            self.accounts.refuse("upstream")

    def _start_over(self, now: Now) -> None:
        """Make the subscribers' socket anew: everybody comes back and subscribes again."""
        self._is_mixed = False
        self._over_us = now.us + START_OVER_EVERY_US
        self._poller.unregister(self._xpub)
        self._xpub.close(0)
        self._is_unsure = False
        self.relay.forget_subscribers(now)
        deadline = time.monotonic() + START_OVER_S
        while True:
            try:
                self._xpub = self._open_xpub(self.endpoints["pub"])
                return
            except EndpointError:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(START_OVER_STEP_S)  # libzmq gives addresses back a moment after the close

    def _send_all(self, messages: list[Message]) -> None:
        for message in messages:
            if isinstance(message, bytes):
                self._xpub.send(message, zmq.NOBLOCK)
            else:
                self._xpub.send_multipart(message, zmq.NOBLOCK)

    def _register(self, now: Now, asked: Register) -> None:
        wanted = self._registrar.admit(asked, now.wall_us // 1000)
        if isinstance(wanted, Refusal):
            self.relay.totals.refused += 1
            self.accounts.refuse(wanted.ref or "registration")
            return
        is_new = wanted.topic not in self.relay.topics
        outcome = self.relay.register(now, wanted.topic, wanted.signer_hash, wanted.exp_s)
        if isinstance(outcome, Refusal):
            self.accounts.refuse(outcome.ref or "registration")
            return
        until_s = outcome.expires_us // 1_000_000
        self.accounts.tell(TopicRegistered(outcome.hash, outcome.signer, until_s, wanted.had_milliseconds))
        if is_new and outcome.subscribers:  # they were there first
            self.accounts.listening(wanted.topic, on=True)

    def _resume(self, now: Now, asked: Resume) -> None:
        outcome = self.relay.resume(now, asked.topic, asked.mac)
        topic = self.relay.topics.get(asked.topic)
        if topic is not None:
            self.accounts.tell(ResumeRequested(topic.hash, outcome.found, len(outcome.messages)))
        if outcome.should_notify:
            self._xpub.send_multipart((asked.topic, GONE_MARK + asked.mac), zmq.NOBLOCK)
        self._send_all(outcome.messages)

    def _compact(self, now: Now) -> None:
        for ended in self.relay.compact(now):
            if ended.topic is not None:
                self._newest.pop(ended.topic.name, None)
            self.accounts.ended(ended.topic, ended.hash, ended.reason)

    def _end(self) -> RelayStopped:
        """Pass on what is still coming in, then say what nobody took."""
        for _ in range(DRAIN_BURSTS):
            if not self._take_messages(_now()):
                break
        self.accounts.count_all()
        waiting = [count for _, count in self.relay.unsent()]
        stopped = RelayStopped(len(waiting), sum(waiting))
        self.accounts.tell(stopped)
        self.accounts.flush()
        return stopped


def _link(message: Message) -> tuple[bytes, bytes]:
    """The mark before a message, and its own."""
    if isinstance(message, tuple):
        prev = peek_block(message[1])
        return b"" if isinstance(prev, FrameFault) else prev, message[2]
    found = peek(message[TOPIC_SIZE:])
    return (found.prev, found.mac) if isinstance(found, Chunk) else (b"", b"")


def _now() -> Now:
    return Now(time.monotonic_ns() // 1000, time.time_ns() // 1000)
