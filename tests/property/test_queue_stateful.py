"""The queue machine against a model, driven by hypothesis: every verb, in any order, with a journal that may reject."""

from bisect import insort
from typing import Any
from zlib import crc32

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule
from msgspec.structs import replace

from penstock.core.clock import Now
from penstock.core.commit_log import Batch
from penstock.core.effects import Deliver, Expire, Send
from penstock.core.errors import TABLE, Refusal
from penstock.core.limits import Limits
from penstock.core.links import Consumer, Link
from penstock.core.queue.enqueue import Admitted
from penstock.core.queue.machine import QueueMachine
from penstock.core.queue.policy import Policy, Retry
from penstock.core.queue.settle import Denied
from penstock.core.records import DELAYED, HELD, LEASED, READY, Record, Settle, is_fresh
from penstock.core.rows import Row, row_of
from penstock.core.scopes import ANONYMOUS
from penstock.server.engine.machines import WRAPPING
from tests.core.driving import purge_all, redrive
from tests.property.model import Model, Place
from tests.simulation.queue import checks
from tests.simulation.queue.history import TERMINAL

NAMES = ["a", "b", "dlq/a"]
LIMITS = Limits(
    idle_unload_ms=5_000, dedup_max=12, pending_max=600, memory_max=3_000, credit_max=20, waiters_max=2,
    outbox_max=700, observations_max=1,
)  # fmt: skip
WALL_US = 1_767_225_600_000_000

policies = st.builds(
    Policy,
    lease_us=st.sampled_from([1_000_000, 4_000_000]),
    max_depth=st.sampled_from([3, 8]),
    max_bytes=st.sampled_from([400, 100_000]),
    overflow=st.sampled_from(["reject", "drop-oldest"]),
    redelivery=st.sampled_from(["tail", "head"]),
    max_deliveries=st.sampled_from([0, 1, 3]),
    max_inflight=st.sampled_from([0, 1]),
    on_disconnect=st.sampled_from(["release", "hold"]),
    late_ack=st.sampled_from(["reject", "accept"]),
    dedup_count=st.sampled_from([0, 1, 5]),
    dedup_us=st.sampled_from([500_000, 60_000_000]),
    retry=st.sampled_from([None, Retry(200_000, jitter=0.5)]),
    priority_wait_us=st.sampled_from([1_000, 3_000_000]),
)
policies = st.builds(
    lambda policy, line: replace(policy, **line),
    policies,
    st.sampled_from([{}, {"partitioned": True}, {"priority": True}]),
)
LANES = (
    b"",
    b',"partitionKey":"k"',
    b',"headers":{"partitionKey":"l","priority":"high"}',
    b',"headers":{"priority":"low"}',
)
ids = st.sampled_from([f"e{n}" for n in range(8)])
names = st.sampled_from(NAMES)


def body(id_: str, name: str, payload: int) -> bytes:
    """An id has its key and its priority for good, as a producer's would."""
    return b'{"id":"%b","ts":"2026-01-01T00:00:00Z","to":"%b","type":"t","payload":%d%b}' % (
        id_.encode(),
        name.encode(),
        payload,
        LANES[int(id_[1:]) % len(LANES)],
    )


@pytest.mark.promise(
    "The document's testing strategy", "Property: at least once, every id is acked or leased in the end"
)
@pytest.mark.promise("Invariants", "the queue agrees with a model in a hypothesis state machine")
class QueueStateful(RuleBasedStateMachine):
    """Calls the machine as a runtime would: effects after each call, batches when the rules say so."""

    consumers = Bundle("consumers")
    links = Bundle("links")

    @initialize(target=consumers, a=policies, b=policies, dead=policies)
    def start(self, a: Policy, b: Policy, dead: Policy) -> Any:
        """Two peers wait with credit from the beginning, or most runs would deliver nothing."""
        self.policies = {"a": a, "b": b, "dlq/a": dead}
        self.us = 1_000_000
        self.count = 0
        self.rows: list[Row] = []
        self.proposed: list[Batch] = []
        self.model = Model()
        self.brought_back = 0
        self.unordered: set[Place] = set()
        self.in_flight_max = 0
        self.boot()
        waiting = []
        for name in ("a", "a", "dlq/a"):
            link = self.machine.connect(ANONYMOUS, None)
            assert isinstance(link, Link)
            for _ in range(2):
                consumer = self.machine.subscribe(self.now, link, name)
                assert isinstance(consumer, Consumer)
                assert self.machine.grant(self.now, consumer, 4) is None
                waiting.append((self.life, consumer))
        return multiple(*waiting)

    def boot(self) -> None:
        self.firsts: dict[object, list[tuple[int, int]]] = {}
        self.told = (0, 0)
        """How many facts of which batch the model knows of."""
        self.life = object()
        self.machine = QueueMachine(
            limits=LIMITS,
            policy_for=lambda name: self.policies.get(name, Policy()),
            wrapping=WRAPPING,
            entropy=self.entropy,
        )
        for row in self.rows:
            self.machine.restore(self.now, row)
        self.machine.recovered(self.now)
        self.apply()

    def entropy(self, n: int) -> bytes:
        self.count += 1
        return crc32(b"%d" % self.count).to_bytes(4, "big").ljust(n, b"\x2a")[:n]

    @property
    def now(self) -> Now:
        return Now(self.us, WALL_US + self.us)

    # What the runtime does

    def apply(self) -> None:
        machine = self.machine
        machine.cost = 0
        self.settles()
        while machine.effects:
            for effect in machine.take_effects():
                match effect:
                    case Deliver():
                        self.delivered(effect.consumer, effect.records)
                    case Send():
                        machine.perform(self.now, effect)
                        self.settles()
                    case Expire():
                        assert effect.consumer.expiry_wanted

    def settles(self) -> None:
        """Give the model the new facts of the open batch."""
        machine = self.machine
        gate, told = self.told
        for fact in machine.commit_log.facts[told if gate == machine.commit_log.gate else 0 :]:
            place = (self.home(fact), self.seq(fact))
            if isinstance(fact, Record):
                self.model.admit(place, fact.id, fact.body, machine.commit_log.gate)
            elif fact.event in TERMINAL:
                assert not self.model.is_settled(place), f"{fact.event} of {place}, which is settled"
                self.model.settle(place, machine.commit_log.gate)
        self.told = (machine.commit_log.gate, len(machine.commit_log.facts))

    @staticmethod
    def home(fact: Record | Settle) -> str:
        return (fact if isinstance(fact, Record) else fact.record).channel.name

    @staticmethod
    def seq(fact: Record | Settle) -> int:
        return (fact if isinstance(fact, Record) else fact.record).seq

    def delivered(self, consumer: Consumer, records: list[Record]) -> None:
        """Invariants 1, 3 and 4, at the moment of a delivery."""
        assert consumer.delivered <= consumer.granted
        assert consumer.link.open
        for record in records:
            place = (record.channel.name, record.seq)
            assert place in self.model.live, f"{place} is delivered before its commit or after its settle"
            assert not self.model.is_settled(place)
            self.model.live[place].holder = consumer.no
            assert record.holder is consumer
            self.in_turn(record)
            if record.attempt == 1 and not record.scheduled_wall_us and place not in self.unordered:
                # By the number of the lease: what is dealt round goes to each consumer in one piece.
                alone = record.channel.policy.partitioned and record.sort_key is None
                firsts = self.firsts.setdefault((place[0], place[1] if alone else record.sort_key), [])
                insort(firsts, (record.lease, record.seq))
                assert firsts == sorted(firsts, key=lambda first: first[1]), f"{place} is out of turn"

    def in_turn(self, record: Record) -> None:
        """Nothing of its key with a smaller number was passed over: such a one is being settled, or was never out."""
        if not record.channel.policy.partitioned or record.sort_key is None:
            return
        for other in record.channel.live.values():
            if other.sort_key == record.sort_key and other.seq < record.seq:
                place = (other.channel.name, other.seq)
                is_scheduled = other.state == DELAYED and not other.attempt
                assert other.state == HELD or is_scheduled or place in self.unordered, f"{place} was passed over"

    # Rules

    @rule(name=names, given=st.lists(st.tuples(ids, st.integers(0, 1)), min_size=1, max_size=4),
          delay_us=st.sampled_from([0, 0, 0, 700_000]))  # fmt: skip
    def enqueue(self, name: str, given: list[tuple[str, int]], delay_us: int) -> None:
        records = [Record(id_, "t", body(id_, name, payload)) for id_, payload in given]
        for record in records:
            record.due_wall_us = record.scheduled_wall_us = self.now.wall_us + delay_us if delay_us else 0
        before = checks.digest(self.machine)
        admitted = self.machine.enqueue(self.now, name, records)
        if isinstance(admitted, Refusal):
            self.refusal(admitted, before)
            return
        assert isinstance(admitted, Admitted)
        assert len(admitted.seqs) == len(records)
        self.apply()
        for record, seq in zip(records, admitted.seqs, strict=True):
            twin = self.model.live.get((name, seq)) or self.model.pending.get((name, seq))
            assert twin is None or twin.id == record.id

    def refusal(self, refusal: Refusal, before: object) -> None:
        """Invariant 10."""
        assert refusal.code in TABLE and refusal.message
        assert checks.digest(self.machine) == before, f"{refusal} changed something"

    @rule(how=st.sampled_from(["commit", "commit", "commit", "full", "refuse", "propose"]))
    def journal(self, how: str) -> None:
        """Close the open batch; answer for the oldest one."""
        machine = self.machine
        self.settles()
        batch = machine.commit_log.take_batch()
        if batch is not None:
            self.proposed.append(batch)
        if how == "propose" or not self.proposed:
            return
        batch = self.proposed.pop(0)
        facts = [*batch.facts, *batch.observations]
        if how == "refuse":
            self.bring_back(batch.facts)
            self.model.refuse(batch.no)
            machine.refused(self.now)
        else:
            full = how == "full" and any(map(is_fresh, facts))
            kept = [fact for fact in facts if not (full and is_fresh(fact))]
            if full:
                # A drop goes with the records it made room for.
                lost = [fact for fact in batch.facts if is_fresh(fact)]
                self.bring_back(lost)
                self.forget(batch.no, lost)
            self.model.commit(batch.no, fresh=True)
            first = len(self.rows)
            self.keep(kept)
            machine.committed(self.now, first, "full" if full else None)
        self.apply()

    def bring_back(self, facts: list[Any]) -> None:
        for fact in facts:
            if isinstance(fact, Settle) and fact.event in TERMINAL:
                self.brought_back += 1
                self.unordered.add((self.home(fact), self.seq(fact)))

    def forget(self, batch: int, facts: list[Any]) -> None:
        for fact in facts:
            place = (self.home(fact), self.seq(fact))
            if isinstance(fact, Record):
                del self.model.pending[place]
            else:
                self.model.settling[batch].remove(place)

    def keep(self, facts: list[Any]) -> None:
        for fact in facts:
            row = row_of(fact)
            # Through the same bytes as a real journal: what cannot be written cannot be kept.
            fields = {name: getattr(row, name) for name in row.__struct_fields__}
            self.rows.append(Row(**{**fields, "offset": len(self.rows), "recorded_at": self.now.wall_us}))

    @rule(target=links)
    def connect(self) -> Any:
        if len(self.machine.links) > 3:
            return multiple()
        link = self.machine.connect(ANONYMOUS, None)
        assert isinstance(link, Link)
        return (self.life, link)

    def here(self, given: tuple[object, Any]) -> bool:
        """Whether something still belongs to this life of the machine."""
        return given[0] is self.life

    @rule(target=consumers, given=links, name=names, auto=st.sampled_from([0, 0, 2]))
    def subscribe(self, given: Any, name: str, auto: int) -> Any:
        if not self.here(given) or not given[1].open:
            return multiple()
        consumer = self.machine.subscribe(self.now, given[1], name)
        assert isinstance(consumer, Consumer)
        consumer.auto = auto
        if auto:
            assert self.machine.grant(self.now, consumer, auto) is None
        self.apply()
        return (self.life, consumer)

    @rule(given=consumers, n=st.sampled_from([-1, 0, 1, 5, 100]))
    def grant(self, given: Any, n: int) -> None:
        if not self.here(given) or given[1].no not in given[1].channel.consumers:
            return
        before = checks.digest(self.machine)
        refusal = self.machine.grant(self.now, given[1], n)
        if refusal is not None:
            self.refusal(refusal, before)
        self.apply()

    @rule(given=links, name=names, count=st.integers(1, 3), wait_us=st.sampled_from([0, 300_000]))
    def pull(self, given: Any, name: str, count: int, wait_us: int) -> None:
        if self.here(given) and given[1].open:
            before = checks.digest(self.machine)
            consumer = self.machine.pull(self.now, given[1], name, count, wait_us)
            if isinstance(consumer, Refusal):
                self.refusal(consumer, before)
            self.apply()

    @staticmethod
    def held_ids(consumer: Consumer, some: list[str], own: int) -> list[str]:
        """Ids to settle: mostly held ones, found by number, and any others."""
        held = [record.id for record in consumer.leases.values()]
        return some if not held or own == 0 else [held[own % len(held)], *some[1:]]

    @rule(given=consumers, some=st.lists(ids, min_size=1, max_size=3), own=st.integers(0, 3))
    def ack(self, given: Any, some: list[str], own: int) -> None:
        """Ack anything: only a held record, or one held last and not delivered again, may be settled."""
        if not self.here(given):
            return
        consumer = given[1]
        some = self.held_ids(consumer, some, own)
        mine = {record.id for record in consumer.leases.values()}
        if consumer.channel.policy.late_ack == "accept":
            mine |= {
                kept.id
                for (name, _), kept in self.model.live.items()
                if name == consumer.channel.name and kept.holder == consumer.no
            }
        acked = consumer.channel.counters.ack
        denied = self.machine.ack(self.now, consumer, some)
        refused = {one.refusal.ref for one in denied}
        for id_ in some:
            assert id_ in refused or id_ in mine, f"{id_} was acked by a consumer that does not hold it"
        assert consumer.channel.counters.ack == acked + len(some) - len(denied)
        self.apply()

    @rule(
        given=consumers,
        id_=ids,
        own=st.integers(0, 3),
        op=st.sampled_from(["nack", "nack later", "release", "term", "extend", "bad lease"]),
    )
    def settle(self, given: Any, id_: str, own: int, op: str) -> None:
        if not self.here(given):
            return
        machine, consumer = self.machine, given[1]
        id_ = self.held_ids(consumer, [id_], own)[0]
        before = checks.digest(machine)
        record = machine.held(consumer, id_, "0.0.0" if op == "bad lease" else None)
        if isinstance(record, Denied):
            self.refusal(record.refusal, before)
            return
        assert op != "bad lease"
        kept = self.model.live[record.channel.name, record.seq]
        assert kept.holder == consumer.no
        if op != "extend":
            kept.holder = None
        match op:
            case "nack":
                machine.nack(self.now, consumer, record, None, "failed")
            case "nack later":
                machine.nack(self.now, consumer, record, 500_000, None)
            case "release":
                machine.release(self.now, consumer, record)
            case "term":
                machine.term(self.now, consumer, record, "never")
            case _:
                machine.extend(self.now, consumer, record, 2_000_000)
        self.apply()

    @rule(us=st.sampled_from([1_000, 250_000, 1_100_000, 6_000_000]))
    def advance(self, us: int) -> None:
        """Time passes, as a runtime sees it: one deadline after the other."""
        until = self.us + us
        while (due := self.machine.next_deadline()) is not None and due <= until:
            self.us = max(self.us, due)
            self.machine.wake(self.now)
            self.apply()
        self.us = until

    @rule(given=links)
    def read(self, given: Any) -> None:
        """The peer has read what was written."""
        if self.here(given) and given[1].open:
            self.machine.writable(self.now, given[1])
            self.apply()

    @rule(given=consumes(consumers))
    def disconnect(self, given: Any) -> None:
        """The peer of a consumer is gone, and every other consumer of that peer with it."""
        if self.here(given) and given[1].link.open:
            self.machine.disconnect(self.now, given[1].link)
            self.apply()

    @rule(given=consumes(consumers))
    def unsubscribe(self, given: Any) -> None:
        if self.here(given) and given[1].no in given[1].channel.consumers:
            self.machine.unsubscribe(self.now, given[1])
            self.apply()

    @rule(name=names)
    def purge(self, name: str) -> None:
        channel = self.machine.find(name)
        if not isinstance(channel, Refusal):
            waiting = len(channel.ready) + channel.delayed
            assert purge_all(self.machine, self.now, channel) == waiting
            assert len(channel.ready) == channel.delayed == 0
            self.apply()

    @rule(name=names, place=st.integers(0, 3))
    def drop(self, name: str, place: int) -> None:
        channel = self.machine.find(name)
        if not isinstance(channel, Refusal) and place < len(channel.live):
            record = list(channel.live.values())[place]
            waits = record.state in (READY, DELAYED)
            assert isinstance(self.machine.drop(self.now, channel, [record.id], "operator"), int) is waits
            self.apply()

    @rule(limit=st.integers(1, 3), place=st.none() | st.integers(0, 3))
    def redrive(self, limit: int, place: int | None) -> None:
        dead = self.machine.channels.get("dlq/a")
        ids = None if dead is None or place is None else [record.id for record in dead.ready][place : place + 1] or None
        job = redrive(self.machine, self.now, "a", limit, ids)
        self.apply()
        assert isinstance(job, Refusal) or job.moved + len(job.kept) <= limit

    @rule(kept=st.integers(0, 3))
    def crash(self, kept: int) -> None:
        """Restart from the rows; of batches without an answer, the disk may have kept the first ones."""
        is_quiet = not self.machine.commit_log.facts and not self.proposed
        before = self.machine
        for batch in self.proposed[:kept]:
            self.model.commit(batch.no, fresh=True)
            self.keep([*batch.facts, *batch.observations])
        self.proposed.clear()
        self.model.restart()
        self.boot()
        there = {
            (name, record.seq): record.id
            for name, channel in self.machine.channels.items()
            for record in channel.live.values()
        }
        assert there == {place: kept.id for place, kept in self.model.live.items()}
        if is_quiet:
            self.same_as(before)

    def same_as(self, before: QueueMachine) -> None:
        """Nothing was uncommitted, so the rebuilt state is the state before, without leases."""
        for name, channel in self.machine.channels.items():
            old = before.channels.get(name)
            counters = before.dormant[name].counters if old is None else old.counters
            for count in ("in_", "ack", "dead", "drop", "purged", "moved"):
                assert getattr(channel.counters, count) == getattr(counters, count), (name, count)
            for id_, record in channel.live.items():
                assert old is not None
                was = old.live[id_]
                assert (was.seq, was.body, was.kind, was.corr) == (
                    record.seq,
                    record.body,
                    record.kind,
                    record.corr,
                )
                assert record.holder is None
                assert record.attempt <= was.attempt
                if was.state in (READY, LEASED):
                    assert record.state == READY
                elif was.state == HELD:
                    assert record.state == HELD
                elif was.due_wall_us == was.scheduled_wall_us > self.now.wall_us:
                    assert (record.state, record.due_wall_us) == (DELAYED, was.due_wall_us)

    # Invariants

    @invariant()
    def holds(self) -> None:
        machine = self.machine
        checks.credit_is_never_overdrawn(machine)
        checks.channels_balance(machine)
        checks.leases_have_one_holder(machine)
        checks.keys_are_out_once(machine)
        checks.keyed_lines_agree(machine)
        checks.counts_agree(machine)
        for name, channel in machine.channels.items():
            checks.metrics_balance(machine.metrics(self.now, channel), name)

    @invariant()
    def bounded(self) -> None:
        machine = self.machine
        in_flight = len(machine.commit_log.facts) + sum(len(batch.facts) for batch in machine.commit_log.proposed)
        self.in_flight_max = max(self.in_flight_max, in_flight)
        for channel in machine.channels.values():
            assert len(channel.live) <= channel.policy.max_depth + self.brought_back
            assert len(channel.order) <= channel.policy.dedup_count + self.in_flight_max
        assert machine.ids <= LIMITS.dedup_max + self.in_flight_max
        assert len(machine.commit_log.observations) + sum(len(b.observations) for b in machine.commit_log.proposed) <= 1
        assert machine.waiting_pulls <= LIMITS.waiters_max

    @invariant()
    def agrees_with_the_model(self) -> None:
        for name, channel in self.machine.channels.items():
            for record in channel.live.values():
                place = (name, record.seq)
                known = self.model.live.get(place) or self.model.pending.get(place)
                assert known is not None and known.body == record.body
        for place in self.model.live:
            if not self.model.is_settled(place):
                channel = self.machine.channels[place[0]]
                assert any(record.seq == place[1] for record in channel.live.values()), f"{place} is lost"


TestQueue = QueueStateful.TestCase
TestQueue.settings = settings(max_examples=150, stateful_step_count=60)


@pytest.mark.more
class TestQueueLonger(QueueStateful.TestCase):  # type: ignore[misc]
    settings = settings(max_examples=2000, stateful_step_count=60)
