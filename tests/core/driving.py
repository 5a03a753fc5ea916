"""A queue machine driven by hand: time, commits and effects happen when a test asks for them.

The machine's own state is checked after every step, so each test also tests the invariants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from penstock.core.clock import Now
from penstock.core.effects import Deliver, Expire, Hot, Job, Send
from penstock.core.errors import Refusal
from penstock.core.limits import Limits
from penstock.core.links import Consumer, Link
from penstock.core.queue.channel import Channel
from penstock.core.queue.dead_letters import begin_purge
from penstock.core.queue.enqueue import Admitted
from penstock.core.queue.machine import QueueMachine
from penstock.core.queue.policy import Policy, default_policy
from penstock.core.queue.settle import Denied, Done
from penstock.core.records import LEASED, PENDING, Record, is_fresh
from penstock.core.scopes import OPERATOR, Principal
from penstock.core.steps import Steps
from penstock.server.engine.machines import WRAPPING

START_US = 5_000_000_000
START_WALL_US = 1_760_000_000_000_000


def body_of(id_: str, note: str = "") -> bytes:
    return b'{"id":"%b","payload":"%b"}' % (id_.encode(), note.encode())


def record_of(id_: str, note: str = "", **more: Any) -> Record:
    return Record(id_, "test", body_of(id_, note), **more)


def counting_entropy() -> Callable[[int], bytes]:
    count = 0

    def draw(size: int) -> bytes:
        nonlocal count
        count += 1
        return count.to_bytes(size, "big")

    return draw


class QueueDriver:
    """One machine, its clock, and what it asked for."""

    def __init__(
        self,
        policy: Policy | None = None,
        *,
        limits: Limits | None = None,
        policies: dict[str, Policy] | None = None,
        auto_create: bool = True,
        entropy: Callable[[int], bytes] | None = None,
    ) -> None:
        named = policies or {}
        self.machine = QueueMachine(
            limits=limits or Limits(),
            policy_for=lambda name: named.get(name, policy or default_policy(name)),
            wrapping=WRAPPING,
            entropy=entropy or counting_entropy(),
            auto_create=auto_create,
        )
        self.us = START_US
        self.offset = 0
        self.deliveries: list[tuple[str, str, int]] = []
        """(label of the consumer, id, attempt), in order."""
        self.seqs: list[int] = []
        self.hot: list[tuple[str, int]] = []
        """(id, hot records of its stream) of each report."""
        self.expired: list[tuple[str, str, str]] = []
        self.empty_pulls: list[str] = []
        self.batches: list[list[str]] = []
        """What each committed batch held: `enqueue`, or the event of a settle."""
        self.link = self.connect()

    # Time

    @property
    def now(self) -> Now:
        return Now(self.us, START_WALL_US + self.us - START_US)

    def advance(self, ms: float) -> None:
        """Let time pass, stopping at every deadline on the way, as a runtime would."""
        end = self.us + round(ms * 1000)
        while (deadline := self.machine.next_deadline()) is not None and deadline <= end:
            self.us = max(deadline, self.us)
            self.machine.wake(self.now)
            self.apply()
            self.commit()
        self.us = end

    # Effects and commits

    def apply(self) -> None:
        """Carry out effects, then what they left to later turns."""
        machine = self.machine
        self.carry_out(self.now)
        while machine.backlog:
            machine.work_off(self.now, self.carry_out)
        machine.cost = 0
        self.check()

    def carry_out(self, now: Now) -> None:
        machine = self.machine
        while machine.effects:
            leased: list[tuple[int, str, Record]] = []
            for effect in machine.take_effects():
                if isinstance(effect, Deliver):
                    leased += self._deliver(effect)
                elif isinstance(effect, Send | Steps):
                    machine.perform(now, effect)
                elif isinstance(effect, Hot):
                    self.hot.append((effect.record.id, effect.count))
                else:
                    assert isinstance(effect, Expire)
                    self.expired.append((effect.consumer.label, effect.record.id, effect.lease_id))
            # An effect gathers what one consumer gets; the numbers of the leases give the order of the turns.
            for _, label, record in sorted(leased, key=lambda entry: entry[0]):
                self.deliveries.append((label, record.id, record.attempt))
                self.seqs.append(record.seq)

    def _deliver(self, effect: Deliver) -> list[tuple[int, str, Record]]:
        label = effect.consumer.label
        if not effect.records:
            self.empty_pulls.append(label)
        for record in effect.records:
            assert record.state == LEASED
            assert record.holder is effect.consumer
        return [(record.lease, label, record) for record in effect.records]

    def commit(self, *, refused: str | None = None) -> None:
        """Make durable whatever is open, and what that brings about."""
        while (batch := self.machine.commit_log.take_batch()) is not None:
            facts = [fact for fact in batch.facts if refused is None or not is_fresh(fact)]
            self.batches.append([getattr(fact, "event", "enqueue") for fact in facts])
            self.machine.committed(self.now, self.offset, refused)
            self.offset += len(facts) + len(batch.observations)
            self.apply()

    def refuse(self) -> None:
        """The journal takes nothing of the open batch."""
        assert self.machine.commit_log.take_batch() is not None
        self.machine.refused(self.now)
        self.apply()

    def check(self) -> None:
        """What must hold at any instant."""
        machine = self.machine
        held_bytes = pending_bytes = ids = 0
        for channel in machine.channels.values():
            assert channel.balance == 0, channel.name
            pending = [record for record in channel.live.values() if record.state == PENDING]
            here = len(channel.ready) + channel.leased + channel.delayed + channel.held
            assert len(channel.live) == here + len(pending), channel.name
            leases = [
                record
                for consumer in machine.consumers.values()
                for record in consumer.leases.values()
                if record.channel is channel
            ]
            assert len(leases) == channel.leased, channel.name
            size = sum(len(record.body) for record in channel.live.values())
            assert channel.bytes == size, channel.name
            assert list(channel.settled) == list(channel.order), channel.name
            assert not set(channel.live) & set(channel.settled), channel.name
            held_bytes += size
            pending_bytes += sum(len(record.body) for record in pending)
            ids += len(channel.order)
        ids += sum(len(dormant.order) for dormant in machine.dormant.values())
        assert machine.bytes == held_bytes
        assert machine.pending_bytes == pending_bytes
        assert machine.ids == ids
        armed = {id(subject): us for us, ticket, subject in machine.timers.heap if subject.ticket == ticket}
        for consumer in machine.consumers.values():
            for record in consumer.leases.values():
                assert armed[id(record if record.ticket else consumer)] <= record.deadline_us, "a lease without a timer"
        assert all(consumer.credit >= 0 for consumer in machine.consumers.values())

    # Producers

    def offer(self, stream: str, *records: Record) -> Admitted | Refusal:
        """Enqueue without committing."""
        answer = self.machine.enqueue(self.now, stream, list(records))
        self.apply()
        return answer

    def put(self, stream: str, *ids: str) -> list[int]:
        """Enqueue one batch of plain records and commit it."""
        answer = self.offer(stream, *(record_of(id_) for id_ in ids))
        assert isinstance(answer, Admitted), answer
        self.commit()
        return answer.seqs

    def refusal(self, stream: str, *records: Record) -> Refusal:
        answer = self.offer(stream, *records)
        assert isinstance(answer, Refusal), answer
        return answer

    # Consumers

    def connect(self, principal: Principal = OPERATOR) -> Link:
        link = self.machine.connect(principal, None)
        assert isinstance(link, Link), link
        return link

    def subscribe(
        self, stream: str, credit: int = 0, *, label: str = "c", link: Link | None = None, lease_ms: int = 0,
        auto: int = 0,
    ) -> Consumer:  # fmt: skip
        consumer = self.machine.subscribe(self.now, link or self.link, stream, lease_ms * 1000)
        assert isinstance(consumer, Consumer), consumer
        consumer.label = label
        consumer.auto = auto
        if credit or auto:
            self.grant(consumer, credit or auto)
        return consumer

    def grant(self, consumer: Consumer, n: int) -> None:
        assert self.machine.grant(self.now, consumer, n) is None
        self.apply()

    def pull(self, stream: str, count: int = 1, *, wait_ms: int = 0, lease_ms: int = 0) -> Consumer:
        consumer = self.machine.pull(self.now, self.link, stream, count, wait_ms * 1000, lease_ms * 1000)
        assert isinstance(consumer, Consumer), consumer
        consumer.label = "pull"
        self.apply()
        return consumer

    def ack(self, consumer: Consumer, *ids: str) -> list[str]:
        """Acknowledge and commit; the codes of what was denied."""
        denied = self.machine.ack(self.now, consumer, list(ids))
        self.apply()
        self.commit()
        return [one.refusal.code for one in denied]

    def held(self, consumer: Consumer, id_: str, lease_id: str | None = None) -> Record:
        record = self.machine.held(consumer, id_, lease_id)
        assert isinstance(record, Record), record
        return record

    def denial(self, consumer: Consumer, id_: str, lease_id: str | None = None) -> str:
        denied = self.machine.held(consumer, id_, lease_id)
        assert isinstance(denied, Denied), denied
        return denied.refusal.code

    def nack(self, consumer: Consumer, id_: str, delay_ms: int | None = None, reason: str | None = None) -> None:
        delay_us = None if delay_ms is None else delay_ms * 1000
        self.machine.nack(self.now, consumer, self.held(consumer, id_), delay_us, reason)
        self.apply()
        self.commit()

    def release(self, consumer: Consumer, id_: str) -> None:
        self.machine.release(self.now, consumer, self.held(consumer, id_))
        self.apply()
        self.commit()

    def term(self, consumer: Consumer, id_: str, reason: str | None = None) -> None:
        self.machine.term(self.now, consumer, self.held(consumer, id_), reason)
        self.apply()
        self.commit()

    def extend(self, consumer: Consumer, id_: str, ms: int = 0) -> Done | Denied:
        return self.machine.extend(self.now, consumer, self.held(consumer, id_), ms * 1000)

    def unsubscribe(self, consumer: Consumer) -> None:
        self.machine.unsubscribe(self.now, consumer)
        self.apply()
        self.commit()

    def disconnect(self, link: Link) -> None:
        self.machine.disconnect(self.now, link)
        self.apply()
        self.commit()

    # What happened

    def channel(self, name: str) -> Channel:
        return self.machine.channels[name]

    def state(self, name: str) -> tuple[int, int, int]:
        """Ready, leased, and delayed or held."""
        channel = self.channel(name)
        return len(channel.ready), channel.leased, channel.delayed + channel.held

    def ids(self) -> list[str]:
        """The ids delivered since the last look."""
        found = [id_ for _, id_, _ in self.deliveries]
        self.deliveries = []
        return found


def redrive(machine: QueueMachine, now: Now, name: str, limit: int, ids: Iterable[str] | None = None) -> Job | Refusal:
    """Send dead letters back in one go. The job is counted when the effects are applied."""
    job = machine.begin_redrive(now, name, limit, ids)
    if isinstance(job, Job):
        while job.waiting:
            machine.send_back(job)
    return job


def purge_all(machine: QueueMachine, now: Now, channel: Channel) -> int:
    """Drop what is ready or delayed, in one turn."""
    job = Steps(begin_purge(channel, len(channel.live) + 1)).all(now)
    machine.purge_part(now, job, 0, len(job.records))
    return len(job.records)
