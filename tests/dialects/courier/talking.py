"""Courier sessions on the real runtime, with a clock, a journal and connections that a test controls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from penstock.core.clock import Now
from penstock.core.limits import Limits
from penstock.core.queue.policy import Policy
from penstock.core.records import Fact
from penstock.core.rows import Row
from penstock.core.scopes import ANONYMOUS, Principal
from penstock.dialects.courier.sessions.control.session import ControlSession
from penstock.dialects.courier.sessions.subscribe import SubscribeQuery, SubscribeSession
from penstock.dialects.courier.triggers.config import Trigger
from penstock.journal.port import Committed, Journal, MemoryJournal, Outcome, Refused
from penstock.server.engine.connections import Connection
from penstock.server.engine.machines import install_rules, make_machine
from penstock.server.engine.runtime import Runtime
from penstock.server.engine.schedulers import HandScheduler
from tests.core.driving import START_US, START_WALL_US, counting_entropy

Frame = dict[str, Any]
TS = "2025-10-18T19:55:00Z"


def envelope(id_: str = "e-1", **more: Any) -> Frame:
    return {"id": id_, "ts": TS, "type": "note", "payload": {"n": 1}, **more}


def line(**frame: Any) -> bytes:
    """One Control v1 line; `type_` and `from_` stand for the words that Python keeps."""
    return msgspec.json.encode({key.rstrip("_"): value for key, value in frame.items()}) + b"\n"


class HandJournal:
    """A journal that answers when and how the test says."""

    id = "hand"

    def __init__(self) -> None:
        self.waiting: list[tuple[Sequence[Fact], Callable[[Outcome], None]]] = []
        self.appended: list[int] = []
        self._next = 0

    def append(self, shard: int, epoch: int, facts: Sequence[Fact], done: Callable[[Outcome], None]) -> None:
        self.appended.append(len(facts))
        self.waiting.append((facts, done))

    def commit(self, refused: str | None = None) -> None:
        """Answer the oldest append."""
        facts, done = self.waiting.pop(0)
        first = self._next
        self._next += len(facts)
        done(Committed(first, refused))

    def refuse(self, reason: str = "the disk is full") -> None:
        _, done = self.waiting.pop(0)
        done(Refused(reason))

    def read(self, shard: int, from_offset: int) -> Iterator[Row]:
        return iter(())

    def live(self, shard: int) -> Iterator[Row]:
        return iter(())

    def retain(self, shard: int, before_offset: int) -> None:
        return None

    def close(self) -> None:
        return None


class ListWire:
    """A wire that keeps what it is given; a test decides whether the peer has read it."""

    def __init__(self) -> None:
        self.writes: list[list[bytes]] = []
        self.buffered = 0
        self.holds: list[bool] = []
        self.closed: tuple[int, str] | None = None
        self.aborted = False

    def send(self, messages: list[bytes]) -> None:
        assert messages, "an empty write is a waste"
        self.writes.append(messages)

    def hold(self, on: bool) -> None:
        self.holds.append(on)

    def close(self, code: int, reason: str) -> None:
        self.closed = (code, reason)

    def abort(self) -> None:
        self.aborted = True


class Peer:
    """One client of a broker."""

    def __init__(self, broker: Broker, session: ControlSession | SubscribeSession, principal: Principal) -> None:
        self.broker = broker
        self.session = session
        self.wire = ListWire()
        connection = broker.runtime.peers.open(session, self.wire, principal, "test")
        assert isinstance(connection, Connection), connection
        self.connection = connection
        if isinstance(session, SubscribeSession):
            session.open(broker.now)
            broker.runtime.peers.touch(connection)
        self._read = 0
        broker.run()

    def send(self, data: bytes | Frame) -> None:
        """Bytes as one chunk, or one frame as a line or message."""
        if not isinstance(data, bytes):
            data = msgspec.json.encode(data)
            if isinstance(self.session, ControlSession):
                data += b"\n"
        self.connection.received(data)

    def say(self, **frame: Any) -> list[Frame]:
        """Send one frame, let the broker run, and return what came."""
        self.send({key.rstrip("_"): value for key, value in frame.items()})
        self.broker.run()
        return self.heard()

    def raw(self) -> bytes:
        """Every byte since the last look."""
        writes = self.wire.writes[self._read :]
        self._read = len(self.wire.writes)
        return b"".join(message for write in writes for message in write)

    def heard(self) -> list[Frame]:
        """Every frame since the last look."""
        writes = self.wire.writes[self._read :]
        self._read = len(self.wire.writes)
        messages = [message for write in writes for message in write]
        if isinstance(self.session, ControlSession):
            messages = b"".join(messages).splitlines()
        return [msgspec.json.decode(message) for message in messages]

    def gone(self) -> None:
        self.connection.lost()
        self.broker.run()


class Broker:
    """A runtime with peers."""

    def __init__(
        self,
        policy: Policy | None = None,
        *,
        limits: Limits | None = None,
        journal: Journal | None = None,
        tokens: dict[str, Principal] | None = None,
        policies: dict[str, Policy] | None = None,
        triggers: Sequence[Frame] = (),
    ) -> None:
        chosen = policy or Policy()
        named = policies or {}
        self.us = START_US
        self.scheduler = HandScheduler(lambda: self.now)
        known = tokens or {}
        self.machine = make_machine(limits or Limits(), lambda name: named.get(name, chosen), counting_entropy())
        install_rules(self.machine, [msgspec.convert(trigger, Trigger) for trigger in triggers])
        self.journal = journal or MemoryJournal(self.scheduler.soon)
        self.runtime = Runtime(
            self.machine,
            self.journal,
            self.scheduler,
            authenticate=lambda token: known.get(token or ""),
            version="0",
        )

    @property
    def now(self) -> Now:
        return Now(self.us, START_WALL_US + self.us - START_US)

    def run(self) -> None:
        self.scheduler.run()
        for channel in self.machine.channels.values():
            assert channel.balance == 0, channel.name

    def advance(self, ms: int) -> None:
        """Let time pass, a step at a time, so that every timer fires at its own moment."""
        end = self.us + ms * 1000
        self.run()
        while (deadline := self.machine.next_deadline()) is not None and deadline <= end:
            self.us = max(deadline, self.us)
            self.run()
        self.us = end
        self.run()

    def control(self, principal: Principal = ANONYMOUS, *, token_needed: bool = False) -> Peer:
        return Peer(self, ControlSession(self.runtime, token_needed=token_needed), principal)

    def subscribe(self, stream: str, principal: Principal = ANONYMOUS, **query: Any) -> Peer:
        return Peer(self, SubscribeSession(self.runtime, SubscribeQuery(stream, **query)), principal)

    def counts(self, stream: str) -> dict[str, Any]:
        return self.machine.metrics(self.now, self.machine.channels[stream])

    def picture(self) -> dict[str, Any]:
        """All state that an error must leave alone."""
        return {
            name: (
                [(record.id, record.state, record.attempt) for record in channel.live.values()],
                list(channel.settled),
                channel.seq,
                [(consumer.no, consumer.credit) for consumer in channel.consumers.values()],
            )
            for name, channel in self.machine.channels.items()
        }


def codes(frames: list[Frame]) -> list[tuple[object, object]]:
    """Which requests were refused, and how."""
    return [(frame["reqId"], frame["code"]) for frame in frames if frame["type"] == "error"]


def filled(broker: Broker, stream: str, *ids: str) -> None:
    """Enqueue envelopes and wait until they are there."""
    producer = broker.control()
    for id_ in ids:
        (answer,) = producer.say(type_="enqueue", to=stream, env=envelope(id_))
        assert answer["type"] == "ok", answer


def turns(scheduler: HandScheduler) -> int:
    """Run everything that is due, and count the calls."""
    count = 0
    while scheduler._soon:
        scheduler._soon.popleft()()
        count += 1
    return count
