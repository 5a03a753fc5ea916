"""The invariants as functions: each inspects a running world from inside and raises `Broken` when one does not hold.

They run after every step. `witness` checks what is visible only from outside, in the order and the content of the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from penstock.core.queue.channel import Channel
from penstock.core.queue.counters import Counters
from penstock.core.queue.hot import hot_records
from penstock.core.queue.inspect import overview
from penstock.core.queue.machine import QueueMachine
from penstock.core.queue.policy import IMMEDIATE
from penstock.core.queue.ready_order import KeyedOrder
from penstock.core.records import DELAYED, LEASED, PENDING, READY, Record
from penstock.server.engine.connections import Connection
from penstock.testing.network import HIGH_WATER
from tests.simulation.queue.history import History

if TYPE_CHECKING:
    from tests.simulation.world import CheckedWorld

CREDIT = "1: no delivery at zero credit"
BALANCE = "2: in = settled + ready + leased + delayed"
ORDER = "3: first deliveries leave in sequence order"
KEYS = "3: one of a partition key is out at a time, and the smallest number is next"
HOLDER = "3: a lease has one holder, and only it settles"
DURABLE = "4: what was promised survives a crash"
BOUNDS = "8: everything that grows has a bound"
FAILURES = "only nacks and expiries fail a record, lost connections are counted apart, and both have an end"
BAD_INPUT = "10: bad input gets a typed error and changes nothing"
TRIGGERS = "an envelope and what it triggers are one commit, once and never in a circle"
ANSWERS = "answers keep the order of their requests"
VIEWS = "a view shows what is committed, and so do its followers' copies"
TIMES = "a settle has the time of the enqueue row of its record"
VISIBLE = "nothing is visible before its commit"


class Broken(AssertionError):  # noqa: N818 - it states what is broken, and reads so in a test
    """An invariant does not hold."""

    def __init__(self, invariant: str, message: str) -> None:
        super().__init__(f"[{invariant}] {message}")
        self.invariant = invariant


def credit_is_never_overdrawn(machine: QueueMachine) -> None:
    for consumer in machine.consumers.values():
        if consumer.credit < 0 or consumer.delivered > consumer.granted:
            raise Broken(
                CREDIT,
                f"consumer {consumer.no} has credit {consumer.credit}: "
                f"delivered {consumer.delivered} of {consumer.granted} granted",
            )


def channels_balance(machine: QueueMachine) -> None:
    for channel in machine.channels.values():
        if channel.balance != 0:
            raise Broken(BALANCE, f"`{channel.name}` is off by {channel.balance}: {channel.counters}")
    asleep = Counters()
    for name, dormant in machine.dormant.items():
        asleep.add(dormant.counters)
        if dormant.counters.in_ != dormant.counters.settled:
            raise Broken(BALANCE, f"`{name}` went to sleep unbalanced: {dormant.counters}")
    if not machine.totals.dormant_forgotten and asleep != machine.asleep:
        raise Broken(BALANCE, f"sleeping streams are counted as {machine.asleep} instead of {asleep}")
    metrics_balance(overview(machine, machine.channels.values(), asleep=[machine.asleep]), "all streams together")


def metrics_balance(q: dict[str, Any], name: str) -> None:
    """The same identity over the numbers a person is shown."""
    settled = sum(q[key] for key in ("q.ack", "q.dead", "q.drop", "q.purged", "q.moved"))
    here = q["q.depth"] + q["q.if"] + q["q.delayed"]
    if q["q.in"] != settled + here:
        raise Broken(BALANCE, f"the metrics of `{name}` do not add up: {q}")


def leases_have_one_holder(machine: QueueMachine) -> None:
    held: dict[Channel, int] = {}
    for consumer in machine.consumers.values():
        for lease, record in consumer.leases.items():
            if record.holder is not consumer or record.state != LEASED or record.lease != lease:
                raise Broken(HOLDER, f"`{record.id}` is in a lease of consumer {consumer.no} that is not its own")
            held[record.channel] = held.get(record.channel, 0) + 1
    for channel in machine.channels.values():
        if channel.leased != held.get(channel, 0):
            raise Broken(HOLDER, f"`{channel.name}` counts {channel.leased} leases, and {held.get(channel, 0)} exist")


def keys_are_out_once(machine: QueueMachine) -> None:
    out: dict[tuple[str, str | int], Record] = {}
    for consumer in machine.consumers.values():
        for record in consumer.leases.values():
            if not record.channel.policy.partitioned or record.sort_key is None:
                continue
            other = out.setdefault((record.channel.name, record.sort_key), record)
            if other is not record:
                why = f"`{other.id}` and `{record.id}` of key `{record.sort_key}` are both leased"
                raise Broken(KEYS, f"`{record.channel.name}`: {why}")


def keyed_lines_agree(machine: QueueMachine) -> None:
    """What may be leased next is what the states of the records say, counted by the simplest code. O(records)."""
    for channel in machine.channels.values():
        line = channel.ready_order
        if not isinstance(line, KeyedOrder):
            continue
        out: dict[str | int, int] = {}
        waiting: dict[str | int, int] = {}
        for record in channel.live.values():
            key = f"alone {record.seq}" if record.sort_key is None else record.sort_key
            if record.state == LEASED or (record.state == DELAYED and record.attempt):
                out[key] = out.get(key, 0) + 1
            elif record.state == READY:
                waiting[key] = min(waiting.get(key, record.seq), record.seq)
        free = sorted(seq for key, seq in waiting.items() if key not in out)
        turn = [record.seq for record in islice(line, len(line.leasable))]
        if sorted(turn) != free:
            raise Broken(KEYS, f"`{channel.name}` would deliver {turn}, and {free} are free")
        blocked = len(waiting) - len(free)
        if line.blocked[1] != blocked:
            raise Broken(KEYS, f"`{channel.name}` says {line.blocked[1]} keys are blocked, and {blocked} are")


def nothing_is_counted_early(machine: QueueMachine, history: History) -> None:
    for channel in machine.channels.values():
        durable = history.counts.get(channel.name, 0)
        if channel.counters.in_ != durable:
            raise Broken(VISIBLE, f"`{channel.name}` counts {channel.counters.in_} in, and {durable} are durable")


def nothing_is_there_early(machine: QueueMachine, history: History) -> None:
    """Each record that can be seen is durable and not settled. O(records)."""
    for channel in machine.channels.values():
        for record in channel.live.values():
            if record.state != PENDING and (channel.name, record.seq) not in history.live:
                raise Broken(VISIBLE, f"`{record.id}` in `{channel.name}` is visible and not durable")


def the_view_is_right(machine: QueueMachine, history: History) -> None:
    """The last arrival of every inbox, as far back as there are rows. O(rows)."""
    expected = list(history.latest.items())[-machine.limits.view_rows_max :]
    there = [(addr, entry.data) for addr, entry in machine.views.latest.rows.items()]
    if there != expected:
        raise Broken(VIEWS, f"the view shows {there}, and {expected} arrived last")


def copies_are_right(world: CheckedWorld) -> None:
    """A follower at the newest version has the newest rows."""
    view = world.machine.views.latest
    there = {addr: entry.data for addr, entry in view.rows.items()}
    for copy in world.copies:
        if copy.version == view.version and copy.rows != there:
            raise Broken(VIEWS, f"`{copy.name}` has {copy.rows} and the view {there}")


def bounds_hold(world: CheckedWorld) -> None:
    machine = world.machine
    limits = machine.limits
    # A settle that the journal refused brings its record back, into a channel that may be full by now.
    extra = world.witness.brought_back
    # A settle stays in its window while it may be refused, and then until the next one there.
    in_flight = sum(len(batch.facts) for batch in machine.commit_log.proposed) + len(machine.commit_log.facts)
    in_flight = world.in_flight_max = max(world.in_flight_max, in_flight)
    for channel in machine.channels.values():
        if len(channel.live) > channel.policy.max_depth + extra:
            raise Broken(BOUNDS, f"`{channel.name}` holds {len(channel.live)} of {channel.policy.max_depth}")
        if len(channel.order) > channel.policy.dedup_count + in_flight:
            raise Broken(BOUNDS, f"`{channel.name}` remembers {len(channel.order)} ids")
    if machine.ids > limits.dedup_max + in_flight:
        raise Broken(BOUNDS, f"{machine.ids} ids are remembered, and at most {limits.dedup_max} may be")
    observations = len(machine.commit_log.observations) + sum(
        len(batch.observations) for batch in machine.commit_log.proposed
    )
    if observations > limits.observations_max:
        raise Broken(BOUNDS, f"{observations} observations wait, and at most {limits.observations_max} may")
    # What moves is already accepted, and may use the space that is kept for settles.
    pending = sum(
        len(record.body)
        for channel in machine.channels.values()
        for record in channel.live.values()
        if record.state == PENDING and not record.reserved
    )
    if pending > limits.pending_max:
        raise Broken(BOUNDS, f"{pending} bytes wait for the journal")
    unread_max = limits.outbox_hard_max + 2 * limits.outbox_max + HIGH_WATER
    for pipe in world.pipes:
        if pipe.buffered > unread_max:
            raise Broken(BOUNDS, f"{pipe.buffered} bytes wait for the peer of pipe {pipe.no}")
    outboxes = world.runtime.peers.outboxes
    closing = {one for one in outboxes._readers if isinstance(one, Connection) and one.closed}
    noted = sum(connection.unread_bytes for connection in closing.union(world.runtime.peers.all()))
    if outboxes.total != noted or (noted > limits.outbox_total_max and not outboxes.is_due):
        raise Broken(BOUNDS, f"{noted} bytes wait for all peers, and the ledger says {outboxes.total}")
    for link in machine.links.values():
        if len(link.session.answers) > limits.answers_max + world.chunk_requests_max:
            raise Broken(BOUNDS, f"{len(link.session.answers)} answers wait on link {link.no}")


def counts_agree(machine: QueueMachine) -> None:
    """The numbers on which bounds are decided are those of what is there. O(records)."""
    ids = sum(len(c.order) for c in machine.channels.values())
    ids += sum(len(d.order) for d in machine.dormant.values())
    held = sum(len(r.body) for c in machine.channels.values() for r in c.live.values())
    pending = sum(len(r.body) for c in machine.channels.values() for r in c.live.values() if r.state == PENDING)
    pulls = sum(c.pull for channel in machine.channels.values() for c in channel.consumers.values())
    there = (ids, held, held, pending, pulls)
    in_channels = sum(channel.bytes for channel in machine.channels.values())
    counted = (machine.ids, machine.bytes, in_channels, machine.pending_bytes, machine.waiting_pulls)
    if there != counted:
        raise Broken(BOUNDS, f"(ids, bytes, bytes in channels, pending, pulls) are {there}, counted {counted}")


def failures_are_counted(machine: QueueMachine, history: History, brought_back: int) -> None:
    """A live record has failed at least as often as the rows say, and not as often as its policy allows. O(records)."""
    for channel in machine.channels.values():
        policy = channel.policy
        for record in channel.live.values():
            place = (channel.name, record.seq)
            counts = f"`{record.id}` in `{channel.name}`: {record.failures} failures, {record.abandoned} abandoned"
            counts += f" of {record.attempt} deliveries"
            least = history.nacks.get(place, 0), history.abandoned.get(place, 0)
            if record.failures < least[0] or record.abandoned < least[1]:
                raise Broken(FAILURES, f"{counts}, and the rows hold {least}")
            if record.failures + record.abandoned > record.attempt:
                raise Broken(FAILURES, counts)
            # A dead letter that the journal refused comes back, and may fail once more.
            bounds = (policy.max_deliveries, record.failures), (policy.max_abandoned, record.abandoned)
            is_over = any(0 < bound <= count - brought_back for bound, count in bounds)
            if is_over and record.state in (READY, LEASED):
                raise Broken(FAILURES, f"{counts}, and it is delivered again")
        for hot in hot_records(machine, channel):
            if max(hot.failures, hot.abandoned, hot.released_row) <= IMMEDIATE:
                raise Broken(FAILURES, f"`{hot.id}` in `{channel.name}` is called hot")


def promises_survived(world: CheckedWorld, machines: Sequence[QueueMachine] = ()) -> None:
    """After a restart: nothing promised is lost, nothing confirmed is back, and the state is that of the rows."""
    durable = History(world.journal.rows)
    witness = world.witness
    for (name, id_), seq in witness.acknowledged.items():
        if (name, seq) not in durable.ids:
            raise Broken(DURABLE, f"`{id_}` in `{name}` was acknowledged and is lost")
    for (name, seq), how in witness.confirmed.items():
        if (name, seq) not in durable.settled and (name, seq) not in durable.fated:
            raise Broken(DURABLE, f"{how} of number {seq} in `{name}` was confirmed and is lost")
    there = {
        (channel.name, record.seq): record.id
        for machine in machines or [world.machine]
        for channel in machine.channels.values()
        for record in channel.live.values()
    }
    if there != durable.live:
        lost = [place for place in durable.live if place not in there]
        back = [place for place in there if place not in durable.live]
        raise Broken(DURABLE, f"recovery lost {lost} and brought back {back}")


def digest(machine: QueueMachine) -> object:
    """What a request may change. Counts of refused requests, ids grown too old and empty channels are not part of it."""
    return [
        (
            name,
            channel.seq,
            channel.bytes,
            [(c.no, c.credit, c.granted) for c in channel.consumers.values()],
            [(r.id, r.state, r.attempt, r.lease, r.deadline_us) for r in channel.live.values()],
        )
        for name, channel in machine.channels.items()
        if channel.live or channel.consumers
    ]


def every_step(world: CheckedWorld) -> None:
    machine = world.machine
    credit_is_never_overdrawn(machine)
    channels_balance(machine)
    leases_have_one_holder(machine)
    keys_are_out_once(machine)
    nothing_is_counted_early(machine, world.history)
    the_view_is_right(machine, world.history)
    copies_are_right(world)
    bounds_hold(world)


def now_and_then(world: CheckedWorld) -> None:
    """What is too slow for every step."""
    counts_agree(world.machine)
    keyed_lines_agree(world.machine)
    failures_are_counted(world.machine, world.history, world.witness.brought_back)
    nothing_is_there_early(world.machine, world.history)
    for name, channel in world.machine.channels.items():
        metrics_balance(world.machine.metrics(world.clock.now(), channel), name)
