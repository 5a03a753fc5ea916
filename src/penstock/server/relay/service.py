"""StreamService: a relay between PULL and XPUB that cannot read the messages, as an object that programs can embed.

One plain loop takes bursts from its sockets. It runs in a thread or a process of its own, because a busy relay inside an event loop
delays that loop by milliseconds. It reports topics by their hashes. The control socket `inproc://stream-ctrl-<name>` accepts the
word `TERMINATE`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any, assert_never

import zmq

from penstock.core.clock import Now
from penstock.core.errors import Refusal
from penstock.core.relay.bounds import MIB
from penstock.core.relay.machine import Relay
from penstock.core.relay.topic import Message, Remembered, Topic
from penstock.dialects.streamservice.signatures import ENVELOPE_MAX, Registrar, answer_refused
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
    link_of,
    mark_of,
    peek,
)
from penstock.server.engine.process_memory import return_free_memory
from penstock.server.relay.guards import FREE_MAX, ConnectionGuard, MemoryGuard
from penstock.server.relay.reports import RelayReady, RelayStopped, Report, TopicRegistered, TopicStats
from penstock.server.relay.subscriptions import BURST, SPARE, RelaySettings, SubscriberSocket
from penstock.transports.zeromq import LINGER_MS, EndpointError, KeyGate, bind

BURSTS = 4
"""Bursts taken from the publishers before the other sockets get their turn: about two milliseconds."""
LARGE = 65_536
"""A message of this size costs more to copy than to look at, so the hot path leaves it to the general one, which counts bytes."""
BURST_BYTES = 8 * MIB
"""Bytes of large messages that end a burst: about ten milliseconds."""
DRAIN_BURSTS = 512
"""Bursts of incoming messages that are still relayed at the end."""
REPORT_US = 250_000
"""How often the relay reports."""
ANSWERS_MAX = 25
"""Refused registrations that are answered between two reports: each costs about 50 us, also those of strangers."""
COUNT_US = 1_000_000
"""How often each active topic is counted."""
REOPEN_STEPS, REOPEN_STEP_S = 2_500, 0.002
"""libzmq releases an address a moment after its socket closed."""
TERMINATE = b"TERMINATE"


class StreamService:
    """A running relay."""

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
        self.stats = TopicStats(self.relay, report)
        self.endpoints: dict[str, str] = {}
        self._registrar = registrar
        self._newest: dict[bytes, bytes] = {}
        """The newest mark of each topic, for `check_links`."""
        self._heads = Heads()
        self._is_close = settings.check_links or (settings.journal == "full" and report is not None)
        self._publish = self._publish_closely if self._is_close else self.relay.publish
        self._poller = zmq.Poller()
        self._watched: dict[int, Callable[[], None]] = {}
        self._connections = ConnectionGuard(settings.limits.connections_max, self._poller)
        self._subscribers: SubscriberSocket
        self._xpub: zmq.Socket[Any]
        """The socket of the subscribers; the hot path saves a lookup."""
        self._pull: zmq.Socket[Any]
        self._is_stopping = False
        self._large_bytes = 0
        """Bytes of large messages in the current burst."""
        self._answers = 0
        """Refused registrations that were answered since the last report."""
        self.guard = MemoryGuard()
        """Unbounded by default: the memory of a program that embeds the relay is its own."""
        self.is_exhausted = False
        """Whether the loop ended because the process holds too much memory."""

    def registrations(self) -> list[tuple[str, str]]:
        """The addresses for clients, by the kind of socket that they need."""
        found = self.endpoints or {"pub": self.settings.pub, "pull": self.settings.pull}
        return [("sub", found["pub"]), ("push", found["pull"])]

    @property
    def control(self) -> str:
        return f"inproc://stream-ctrl-{self.name}"

    def remember(self, registrations: Iterable[Remembered]) -> None:
        """Restore the registrations of an earlier run."""
        self.relay.remember(registrations)

    def watch(self, descriptor: int, call: Callable[[], None], events: int = zmq.POLLIN) -> None:
        """Call a function whenever a descriptor is ready; with no events, stop calling it."""
        if events:
            self._watched[descriptor] = call
            self._poller.register(descriptor, events)
        elif self._watched.pop(descriptor, None) is not None:
            self._poller.unregister(descriptor)

    def stop(self) -> None:
        """End the loop after this turn. Call it from the loop only."""
        self._is_stopping = True

    def run(self, on_ready: Callable[[], None] | None = None) -> RelayStopped:
        """Relay until stopped; returns what was not delivered."""
        gate = None if self.settings.curve is None else KeyGate(self.context, self.settings.curve)
        control: zmq.Socket[Any] = self.context.socket(zmq.PAIR)
        try:
            control.bind(self.control)
            self._poller.register(control, zmq.POLLIN)
            if gate is not None:
                self._poller.register(gate.socket, zmq.POLLIN)
            self._pull = self._open_pull(self.settings.pull)
            parts = self.context, self.settings, self.relay, self.stats, self._connections.watch
            subscribers = self._subscribers = SubscriberSocket(*parts)
            self._xpub = subscribers.socket
            self._poller.register(self._xpub, zmq.POLLIN)
            self.endpoints["pub"] = subscribers.endpoint
            self.stats.report(RelayReady(self.endpoints["pub"], self.endpoints["pull"]))
            self.stats.flush()
            if on_ready is not None:
                on_ready()
            self._loop(control, gate)
            return self._end()
        finally:
            for name in self.endpoints:
                each = self._xpub if name == "pub" else self._pull
                self._connections.unwatch(each)
                each.close(LINGER_MS)
            control.close(LINGER_MS)
            if gate is not None:
                gate.close()

    def _open_pull(self, endpoint: str) -> zmq.Socket[Any]:
        pull: zmq.Socket[Any] = self.context.socket(zmq.PULL)
        pull.rcvhwm = self.settings.limits.receive_hwm
        pull.set(zmq.MAXMSGSIZE, self.settings.limits.message_max + SPARE)
        self._connections.watch(pull)
        try:
            self.endpoints["pull"] = bind(pull, endpoint, self.settings.curve)
        except BaseException:
            self._connections.unwatch(pull)
            pull.close(0)
            raise
        self._poller.register(pull, zmq.POLLIN)
        return pull

    def _loop(self, control: zmq.Socket[Any], gate: KeyGate | None) -> None:
        limits, relay, subscribers = self.settings.limits, self.relay, self._subscribers
        now = _now()
        compact_us = now.us + limits.compact_us
        report_us, count_us = now.us + REPORT_US, now.us + COUNT_US
        while not self._is_stopping:
            wake_us = min(compact_us, report_us, relay.next_replay_us() or compact_us)
            ready = dict(self._poller.poll(max(wake_us - now.us, 0) // 1000 + 1))
            now = _now()
            self._connections.check(ready)
            if control in ready and control.recv() == TERMINATE:
                return
            if gate is not None and gate.socket in ready:
                gate.answer()
                self.stats.refused["key"] = gate.refused
            for descriptor in [each for each in ready if each in self._watched]:
                self._watched[descriptor]()
            if self._xpub in ready:
                subscribers.take(now)
            if self._pull in ready:
                self._take_bursts(now)
            for _, messages in relay.due_replays(now):
                subscribers.send_all(messages)
            if now.us >= compact_us:
                compact_us = now.us + limits.compact_us
                self._compact(now)
            if now.us >= report_us:
                report_us = now.us + REPORT_US
                if now.us >= count_us:
                    count_us = now.us + COUNT_US
                    self.stats.count_all()
                else:
                    self.stats.count_busy()
                self._answers = 0
                self._check_memory(now)
                cut = {**subscribers.peers.cut, "connections": self._connections.cut}
                self.stats.peers_cut, self.stats.reopened = cut, self.guard.reopened
                self.stats.flush()

    def _take_bursts(self, now: Now) -> None:
        """Take bursts of the publishers' messages. Large messages end a burst early, and the memory is checked."""
        for _ in range(BURSTS):
            is_more = self._take_messages(now)
            if self._large_bytes > BURST_BYTES:
                self._check_memory(now)
                return
            if not is_more:
                return

    def _check_memory(self, now: Now) -> None:
        step = self.guard.check(now.us)
        if step == "end":
            self.is_exhausted = self._is_stopping = True
        elif step == "reopen":
            self._subscribers.peers.disconnect_all()
            self._reopen_pull()
            return_free_memory()

    def _reopen_pull(self) -> None:
        """Disconnect all publishers, and drop what waits of theirs."""
        self._poller.unregister(self._pull)
        self._connections.unwatch(self._pull)
        self._pull.close(0)
        for left in reversed(range(REOPEN_STEPS)):
            try:
                self._pull = self._open_pull(self.endpoints["pull"])
                return
            except EndpointError:
                if not left:
                    raise
            self._connections.check()
            time.sleep(REOPEN_STEP_S)

    def _take_messages(self, now: Now) -> bool:
        """Relay a burst of the publishers' messages; False when there are no more.

        The hot path. Chunks are published together and sent at the end of the burst: libzmq's thread then wakes once and writes all of
        them, instead of once for each message.
        """
        sizes = self._heads.sizes
        names: list[bytes] = []
        messages: list[bytes] = []
        is_more = False
        self._large_bytes = 0
        try:
            for frame in map(self._pull.recv, repeat(zmq.NOBLOCK, BURST)):
                if sizes.get(frame[:HEAD]) == len(frame) and not frame[TOPIC_END]:
                    name = frame[HEAD:TOPIC_END]
                    names.append(name)
                    messages.append(name + frame)
                else:
                    self._send_chunks(now.us, names, messages)  # first, so that what follows does not overtake it
                    names, messages = [], []
                    self._take_other(now, frame)
                    if self._large_bytes > BURST_BYTES:
                        break
            is_more = True
        except zmq.Again:
            pass
        self._send_chunks(now.us, names, messages)
        return is_more

    def _send_chunks(self, now_us: int, names: list[bytes], messages: list[bytes]) -> None:
        """Publish chunks, each with the name of its topic, and send those to forward."""
        if self._is_close:
            pairs = zip(names, messages, strict=True)
            messages = [each for name, each in pairs if self._publish(now_us, name, each, len(each)) is not None]
        elif messages:
            messages = self.relay.publish_all(now_us, names, messages)
        send = super(zmq.Socket, self._xpub).send  # skips pyzmq's Python wrapper
        for _ in map(send, messages, repeat(zmq.NOBLOCK)):
            pass

    def _take_other(self, now: Now, frame: bytes) -> None:
        """Handle a message that is no chunk, or a chunk whose head is new."""
        rest = []
        while self._pull.get(zmq.RCVMORE):
            rest.append(self._pull.recv())
        if rest:
            self._large_bytes += sum(map(len, rest))
            self._take_block(now, frame, rest)
            return
        found = peek(frame)
        if isinstance(found, FrameFault):
            self._large_bytes += len(frame)
            self.stats.refuse(found.reason)
        elif isinstance(found, Chunk):
            if len(frame) > LARGE:
                self._large_bytes += len(frame)
            elif len(frame) + TOPIC_SIZE <= self.settings.limits.message_max:
                self._heads.learn(frame)
            message = found.topic + frame
            if self._publish(now.us, found.topic, message, len(message)) is not None:
                self._xpub.send(message, zmq.NOBLOCK)
        elif isinstance(found, Register):
            self._register(now, found)
        elif isinstance(found, Resume):
            self._subscribers.resume(now, found)
        else:
            assert_never(found)

    def _take_block(self, now: Now, name: bytes, rest: list[bytes]) -> None:
        if len(rest) != 2 or len(rest[1]) != BLOCK_MAC_SIZE or len(name) != TOPIC_SIZE:
            self.stats.refuse("block")
            return
        block = (name, *rest)
        topic = self._publish(now.us, name, block, sum(map(len, block)))
        if topic is not None:
            self._xpub.send_multipart(block, zmq.NOBLOCK)

    def _publish_closely(self, now_us: int, name: bytes, message: Message, size: int) -> Topic | None:
        """Publish, and check links or journal the message."""
        if self.settings.check_links:
            prev, mark = link_of(message)
            newest = self._newest.get(name)
            if newest is not None and prev != newest:
                self.stats.refuse("link")
                return None
            if name in self.relay.topics:
                self._newest[name] = mark
        topic = self.relay.publish(now_us, name, message, size)
        known = self.relay.topics.get(name)
        if self.settings.journal == "full" and known is not None:
            self.stats.passed(known, message, is_held=topic is None)
        return topic

    def _register(self, now: Now, asked: Register) -> None:
        wanted = self._registrar.admit(asked, now.wall_us // 1000)
        if isinstance(wanted, Refusal):
            self.relay.totals.refused += 1
            self._refuse(asked, wanted)
            return
        is_new = wanted.topic not in self.relay.topics
        outcome = self.relay.register(now, wanted.topic, wanted.signer_hash, wanted.exp_s)
        if isinstance(outcome, Refusal):
            self._refuse(asked, outcome)
            return
        self._subscribers.refusals.pop(wanted.topic, None)
        until_s = outcome.expires_us // 1_000_000
        used = wanted.had_milliseconds, wanted.nonce, wanted.timestamp_ms
        self.stats.report(TopicRegistered(outcome.hash, outcome.signer, until_s, *used))
        self.stats.send_waiting()  # a relay that is killed now cannot be sent the same registration again
        if is_new and outcome.subscribers:  # they subscribed before the registration
            self.stats.subscribers_changed(wanted.topic, on=True)

    def _refuse(self, asked: Register, refusal: Refusal) -> None:
        """Count a refused registration, and answer it on its topic, where its publisher may listen."""
        self.stats.refuse(refusal.ref or "registration")
        if self._answers < ANSWERS_MAX and len(asked.frame) <= ENVELOPE_MAX:
            self._answers += 1
            answer = answer_refused(asked, refusal)
            if answer is not None:
                self._subscribers.answer(*answer)

    def _compact(self, now: Now) -> None:
        if self.guard.resident > self.relay.bytes + FREE_MAX:
            return_free_memory()
        for ended in self.relay.compact(now):
            if ended.topic is not None:
                self._newest.pop(ended.topic.name, None)
            self.stats.ended(ended.topic, ended.hash, ended.reason)

    def _end(self) -> RelayStopped:
        """Relay what is still arriving, then report what was not delivered."""
        for _ in range(0 if self.is_exhausted else DRAIN_BURSTS):
            if not self._take_messages(_now()):
                break
        self.stats.count_all()
        waiting = [count for _, count in self.relay.unsent()]
        stopped = RelayStopped(len(waiting), sum(waiting))
        self.stats.report(stopped)
        self.stats.flush()
        return stopped


def _now() -> Now:
    return Now(time.monotonic_ns() // 1000, time.time_ns() // 1000)
