"""`QueueCore`: the queue inside a program, with the shipped runtime and no sockets.

Calls are synchronous and belong to one thread; every refusal is a `PenstockError`. Time moves when a call is made, or with
`tick()`: a lease that ended is noticed then. `threadsafe(loop)` gives other threads a way in.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import msgspec

from penstock.core.clock import Now
from penstock.core.errors import PenstockError, Refusal
from penstock.core.json_checks import nonfinite_problem
from penstock.core.limits import Limits
from penstock.core.links import Consumer, Link, PeerlessSession
from penstock.core.queue.policy import Policy, default_policy
from penstock.core.queue.settle import Denied
from penstock.core.records import Record
from penstock.core.scopes import OPERATOR
from penstock.dialects.courier.operations import queries, views
from penstock.dialects.courier.operations.enqueue import EnqueueRequest, enqueue
from penstock.dialects.courier.operations.outcomes import Outcome, check_access, check_lease
from penstock.dialects.courier.operations.redrive_and_purge import RedriveRequest, redrive
from penstock.dialects.courier.operations.settle import SettleRequest, settle_held
from penstock.dialects.courier.triggers import config
from penstock.dialects.courier.wire.envelopes import json_problem
from penstock.journal.port import MemoryJournal
from penstock.server.cell import Cell
from penstock.server.engine.machines import make_machine
from penstock.server.engine.schedulers import HandScheduler, real_now

T = TypeVar("T")
_VERBS = ("enqueue", "subscribe", "unsubscribe", "grant_credit", "ack", "nack", "release", "term", "extend")
_READS = ("stats", "peek", "where", "explain", "redrive", "snapshot")


def _accepted(outcome: T | Refusal) -> T:
    if isinstance(outcome, Refusal):
        raise PenstockError(outcome)
    return outcome


class Delivered(msgspec.Struct, frozen=True):
    """One delivery to a subscriber of this process."""

    subscriber: str
    stream: str
    seq: int
    attempt: int
    lease_id: str
    body: bytes

    @property
    def envelope(self) -> dict[str, Any]:
        return dict(msgspec.json.decode(self.body))


class Subscriber:
    """A subscription in this process: give it credit, take its deliveries."""

    def __init__(self, consumer: Consumer, on_deliver: Callable[[Delivered], None] | None) -> None:
        self.id = f"s{consumer.no}"
        self.stream = consumer.channel.name
        self._consumer = consumer
        self.deliveries: deque[Delivered] = deque()
        """What was delivered and not yet taken; empty when a callback takes it. Bounded by the credit."""
        self.on_deliver = on_deliver

    @property
    def credit(self) -> int:
        """Deliveries that it may still receive."""
        return self._consumer.credit

    @property
    def in_flight(self) -> list[str]:
        """Ids of what it holds, oldest delivery first."""
        return [record.id for record in self._consumer.leases.values()]


class _InProcess(PeerlessSession):
    """The session of everything in this process: deliveries become values."""

    def __init__(self, core: QueueCore) -> None:
        super().__init__()
        self._core = core

    def deliver(self, now: Now, consumer: Consumer, records: list[Record]) -> None:
        subscriber: Subscriber = consumer.tag
        for record in records:
            lease_id = self._core.runtime.machine.lease_id(record)
            delivered = Delivered(subscriber.id, record.channel.name, record.seq, record.attempt, lease_id, record.body)
            if subscriber.on_deliver is None:
                subscriber.deliveries.append(delivered)
            else:
                self._core.call_later(subscriber.on_deliver, delivered)


class QueueCore:
    """Streams, leases and credits in this process.

    Example:
        core = penstock.QueueCore()
        worker = core.subscribe("jobs", credit=1)
        core.enqueue("jobs", {"id": "a", "ts": "2026-01-01T00:00:00Z", "type": "job", "payload": 1})
        delivered = worker.deliveries.popleft()
        core.ack(worker.id, delivered.envelope["id"])
    """

    def __init__(
        self,
        *,
        policy: Policy | None = None,
        limits: Limits | None = None,
        clock: Callable[[], Now] = real_now,
        entropy: Callable[[int], bytes] = os.urandom,
        triggers: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self._scheduler = HandScheduler(clock)
        machine = make_machine(limits or Limits(), default_policy if policy is None else lambda _: policy, entropy)
        self.runtime = Cell(
            machine,
            lambda machines: MemoryJournal(self._scheduler.soon),
            self._scheduler,
            authenticate=lambda _: OPERATOR,
            version="in-process",
            triggers=[_accepted(config.parse(trigger, machine.limits)) for trigger in triggers],
        ).runtime
        self._machine = machine
        session = _InProcess(self)
        link = machine.connect(OPERATOR, session)
        assert isinstance(link, Link)
        session.link = link
        self._link = link
        self._consumers: dict[str, Consumer] = {}
        self._callbacks: deque[tuple[Callable[[Delivered], None], Delivered]] = deque()

    def enqueue(self, stream: str, env: Mapping[str, Any] | bytes, *, delay_ms: int | None = None) -> dict[str, Any]:
        """Append an envelope; the answer is there when the journal has it."""
        raw = env if isinstance(env, bytes) else msgspec.json.encode(env)
        if raw is not env and b"null" in raw:
            _accepted(nonfinite_problem(env))
        _accepted(json_problem(raw))
        request = EnqueueRequest(stream, msgspec.Raw(raw), delay_ms=delay_ms)
        return self._do(enqueue(self._machine, self._scheduler.now(), OPERATOR, request, assign=False))

    def subscribe(
        self,
        stream: str,
        on_deliver: Callable[[Delivered], None] | None = None,
        *,
        credit: int = 0,
        lease_ms: int | None = None,
    ) -> Subscriber:
        """Subscribe with no credit; deliveries go to the callback, else to `Subscriber.deliveries`."""
        now = self._scheduler.now()
        _accepted(check_access(self._machine, OPERATOR, "subscribe", stream))
        lease_us = _accepted(check_lease(self._machine, lease_ms))
        consumer = _accepted(self._machine.subscribe(now, self._link, stream, lease_us))
        subscriber = Subscriber(consumer, on_deliver)
        consumer.tag = subscriber
        consumer.label = subscriber.id
        self._consumers[subscriber.id] = consumer
        if credit:
            try:
                self.grant_credit(subscriber.id, credit)
            except PenstockError:
                self.unsubscribe(subscriber.id)
                raise
        return subscriber

    def unsubscribe(self, sub_id: str) -> None:
        """End a subscription; what it holds goes back."""
        self._machine.unsubscribe(self._scheduler.now(), self._consumer(sub_id))
        del self._consumers[sub_id]
        self.tick()

    def grant_credit(self, sub_id: str, n: int) -> None:
        """Let `n` more be delivered."""
        consumer = self._consumer(sub_id)
        if not isinstance(n, int):
            raise PenstockError(Refusal("InvalidCredit", f"credit must be a whole number, not {n!r}"))
        _accepted(self._machine.grant(self._scheduler.now(), consumer, n))
        self.tick()

    def ack(self, sub_id: str, id_: str) -> None:
        """Done: the envelope leaves the stream."""
        self._settle(sub_id, SettleRequest(id_, "ack"))

    def nack(self, sub_id: str, id_: str, *, delay_ms: int | None = None, reason: str | None = None) -> None:
        """Failed: deliver it again, after `delay_ms` if given; counts as a failed attempt."""
        self._settle(sub_id, SettleRequest(id_, "nack", delay_ms=delay_ms, reason=reason))

    def release(self, sub_id: str, id_: str) -> None:
        """Give it back untouched; does not count as a failed attempt."""
        self._settle(sub_id, SettleRequest(id_, "release"))

    def term(self, sub_id: str, id_: str, *, reason: str | None = None) -> None:
        """Reject for good: move it to the dead letters."""
        self._settle(sub_id, SettleRequest(id_, "term", reason=reason))

    def extend(self, sub_id: str, id_: str, *, ms: int | None = None) -> None:
        """More time, counted from now."""
        self._settle(sub_id, SettleRequest(id_, "extend", ms=ms))

    def stats(self, stream: str) -> dict[str, Any]:
        """Depth, rates, latencies and counters of one stream."""
        self.tick()
        return self._do(queries.stats(self._machine, self._scheduler.now(), OPERATOR, stream))

    def peek(self, stream: str, *, state: str = "ready", limit: int = 10) -> list[dict[str, Any]]:
        """Look at envelopes without taking them."""
        self.tick()
        now = self._scheduler.now()
        asked = queries.PeekRequest(stream, state, limit)
        rows = self._do(queries.peek(self._machine, now, OPERATOR, asked))["rows"]
        return [{**row, "env": msgspec.json.decode(row["env"])} for row in rows]

    def where(self, id_: str) -> list[dict[str, Any]]:
        """Every place where an id is, or was last seen."""
        self.tick()
        places = self._do(queries.where(self._machine, self._scheduler.now(), OPERATOR, id_))["places"]
        return list(places)

    def explain(self, stream: str) -> dict[str, Any]:
        """Why a stream flows, or does not."""
        self.tick()
        return self._do(queries.explain(self._machine, self._scheduler.now(), OPERATOR, stream))

    def snapshot(self, view: str, *, addr: str | None = None) -> dict[str, Any]:
        """The rows of a view: `{rows: [{addr, env | row}], watermark, asOf}`."""
        self.tick()
        found = self._do(views.snapshot(self._machine, self._scheduler.now(), OPERATOR, view, addr))
        return dict(msgspec.json.decode(msgspec.json.encode(found)))

    def redrive(self, stream: str, *, limit: int = 1_000) -> dict[str, Any]:
        """Send the dead letters of a stream back to it."""
        now = self._scheduler.now()
        request = RedriveRequest(stream, limit)
        outcome = redrive(self._machine, now, OPERATOR, request)
        self.runtime.apply(now)
        return self._do(outcome)

    def tick(self) -> None:
        """Carry out everything that is due."""
        has_more = True
        while has_more:  # nothing is buffered here, so there is always room again
            now = self._scheduler.now()
            self._machine.writable(now, self._link)
            self.runtime.apply(now)
            self._scheduler.run()
            has_more = self._link.stalled
        while self._callbacks:
            callback, delivered = self._callbacks.popleft()
            callback(delivered)

    def call_later(self, callback: Callable[[Delivered], None], delivered: Delivered) -> None:
        """Call back once the machine is at rest, so that a callback may call us."""
        self._callbacks.append((callback, delivered))

    def threadsafe(self, loop: asyncio.AbstractEventLoop) -> ThreadsafeQueue:
        """The same calls from any thread, carried out on `loop`, answered with futures."""
        return ThreadsafeQueue(self, loop)

    def _consumer(self, sub_id: str) -> Consumer:
        consumer = self._consumers.get(sub_id)
        if consumer is None:
            raise PenstockError(Refusal("InvalidRequest", f"there is no subscription `{sub_id}`"))
        return consumer

    def _settle(self, sub_id: str, request: SettleRequest) -> None:
        consumer = self._consumer(sub_id)
        self.tick()
        done = settle_held(self._machine, self._scheduler.now(), consumer, request)
        self.tick()
        _accepted(done.refusal if isinstance(done, Denied) else done)

    def _do(self, outcome: Outcome) -> dict[str, Any]:
        result = _accepted(outcome.refusal if isinstance(outcome, Denied) else outcome)
        refused: list[Refusal | None] = []
        self.runtime.when(result.gate, result.fresh, refused.append)
        self.tick()
        if refused:
            _accepted(refused[0])
        return result.value()


class ThreadsafeQueue:
    """`QueueCore` for other threads: each method returns a `concurrent.futures.Future`."""

    def __init__(self, core: QueueCore, loop: asyncio.AbstractEventLoop) -> None:
        self._core = core
        self._loop = loop

    def __getattr__(self, name: str) -> Callable[..., Future[Any]]:
        if name not in _VERBS + _READS:
            raise AttributeError(name)
        method = getattr(self._core, name)

        def call(*args: Any, **kwargs: Any) -> Future[Any]:
            future: Future[Any] = Future()

            def run() -> None:
                try:
                    future.set_result(method(*args, **kwargs))
                except Exception as error:
                    future.set_exception(error)

            self._loop.call_soon_threadsafe(run)
            return future

        return call
