"""The state of the queue machine: channels, consumers, timers, effects.

`QueueState` is data and the small operations that the verbs share; the verbs are modules of this folder, joined by `machine.QueueMachine`.
It must never know a wire format, a clock or a journal's medium. Facts go to the shared commit log (`core/commit_log.py` explains gates).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol

import msgspec

from penstock.core.clock import Now
from penstock.core.commit_log import CommitLog
from penstock.core.deadline_heap import Timers
from penstock.core.effects import Effect, Work
from penstock.core.errors import Refusal
from penstock.core.health import Health
from penstock.core.limits import Limits
from penstock.core.links import Consumer, Link
from penstock.core.queue.channel import Channel, Seen
from penstock.core.queue.counters import Counters
from penstock.core.queue.policy import Policy
from penstock.core.queue.ready_order import NORMAL, KeyedOrder
from penstock.core.queue.taps import Tap
from penstock.core.queue.views import Views
from penstock.core.rate_limits import Meter
from penstock.core.records import Applied, Record
from penstock.core.rules.rule_set import Cooling, Source, Triggers
from penstock.core.steps import STEP_COST, Steps
from penstock.core.tenants import Tenants


class Cause(msgspec.Struct, frozen=True):
    """Why a record went to the dead letters."""

    reason: str
    stream: str
    attempts: int
    first_wall_us: int
    error: str | None


class Dormant(msgspec.Struct):
    """What remains of an unloaded channel: its numbering, its counts and its window of ids."""

    seq: int
    counters: Counters
    settled: dict[str, Seen]
    order: deque[str]
    last_wall_us: int
    gauged: Counters
    """Its counters when its last gauge was written."""
    ticket: int = 0


class HotStream(msgspec.Struct):
    """A channel with records that fail again and again (`hot.py`)."""

    ids: dict[str, None] = {}
    reported_us: int | None = None


class Totals(msgspec.Struct):
    """Counts of the whole machine that belong to no channel."""

    dormant_forgotten: int = 0
    dedup_evicted: int = 0
    settles_refused: int = 0
    records_refused: int = 0
    dead_blocked: int = 0
    copies_lost: int = 0
    cooldowns_evicted: int = 0


class Wrapping(msgspec.Struct, frozen=True):
    """What only a dialect knows of a record's bytes: how they change on a move, how they sort, what rules read in them."""

    bury: Callable[[bytes, Cause], bytes]
    revive: Callable[[bytes], bytes]
    read: Callable[[str, bytes], Source]
    """A record of this channel with these bytes, as rules see it."""
    key: Callable[[bytes], str | Refusal | None] = lambda body: None
    """The partition key that a record's bytes name."""
    level: Callable[[bytes], int] = lambda body: NORMAL
    """How urgent its bytes say that a record is."""


class Schemas(Protocol):
    """What a dialect asks before it offers a record: does its payload fit what it says it is?"""

    def refusal(self, stream: str, body: bytes) -> Refusal | None:
        """Why this stream does not take these bytes."""

    def judge(self, body: bytes) -> dict[str, Any]:
        """What is right and wrong with them, whatever the stream."""

    def catalogue(self) -> list[dict[str, Any]]:
        """What is known."""


class QueueState:
    """Everything the queue machine knows."""

    def __init__(
        self,
        *,
        limits: Limits,
        policy_for: Callable[[str], Policy],
        wrapping: Wrapping,
        entropy: Callable[[int], bytes],
        auto_create: bool = True,
    ) -> None:
        self.limits = limits
        self.policy_for = policy_for
        self.wrapping = wrapping
        self.entropy = entropy
        self.auto_create = auto_create
        self.is_here: Callable[[str], bool] | None = None
        """Whether a channel belongs to this machine; None where there is only one."""
        self.schemas: Schemas | None = None
        """Set where payloads are checked against schemas."""
        self.boot = entropy(3).hex()
        """Marks this run's leases: one from before a restart is never mistaken for a new one."""
        self.channels: dict[str, Channel] = {}
        self.dormant: dict[str, Dormant] = {}
        self.asleep = Counters()
        """Counters of all unloaded channels, including those whose numbering was evicted."""
        self.seq_floor = 0
        """Highest number of any channel whose numbering was forgotten: new ones start above it."""
        self.timers: Timers[Record | Consumer | Channel | Dormant | Cooling] = Timers()
        self.effects: list[Effect] = []
        self.backlog: deque[Work] = deque()
        """What did not fit in the turn. While there is any, the open batch stays open, so that causes and consequences are one commit."""
        self.step_cost = STEP_COST
        self.is_slicing = False
        """Whether the backlog is being worked off. What happens meanwhile fires rules in its turn, after what happened before."""
        self.cost = 0
        """What sends, rules and returned leases of this turn have cost, in the unit of `STEP_COST`."""
        self.commit_log = CommitLog(limits)
        self.cuts: dict[str, dict[str, Any]] = {}
        """By channel: the last reader that was disconnected because it did not read."""
        self.hot: dict[str, HotStream] = {}
        self.health = Health()
        """The parts of the server, where one runs; `explain` reads why it refuses envelopes."""
        self.pending_bytes = 0
        self.bytes = 0
        """Bodies held in all channels."""
        self.ids = 0
        """Settled ids remembered in all channels."""
        self.applied: dict[str, Applied] = {}
        """The newest batch of each application that stages batches, be it durable or about to be."""
        self.revived: dict[Record, Seen] = {}
        """Records that came home and the journal has not answered for, and what their channel remembered of them before."""
        self.views = Views(limits)
        self.waiting_pulls = 0
        self.consumers: dict[int, Consumer] = {}
        self.consumer_no = 0
        self.lease_no = 0
        """Number of the newest lease."""
        self.links: dict[int, Link] = {}
        self.taps: dict[str, list[Tap]] = {}
        """Who looks at a channel without taking anything, by its name."""
        self.taps_open = 0
        self.link_no = 0
        self.triggers = Triggers()
        self.meter: Meter | None = None
        self.tenants = Tenants()
        """Who may bring how much; None while no rate is set."""
        self.totals = Totals()

    @property
    def is_spent(self) -> bool:
        """Whether further work of this kind must wait for its turn."""
        return self.cost >= self.step_cost or bool(self.backlog)

    def begin(self, now: Now, work: Generator[None, Any, object]) -> None:
        """Begin work that yields when the turn is spent. While the backlog is worked off, it waits for its turn."""
        steps = Steps(work)
        if self.is_slicing or not steps.step(now):
            self.effects.append(steps)

    def known(self, name: str) -> bool:
        return name in self.channels or name in self.dormant

    def find(self, name: str) -> Channel | Refusal:
        """A channel that exists; a read never makes one."""
        if (channel := self.channels.get(name)) is not None:
            return channel
        if name in self.dormant:
            return self._fullness(name) or self.load(name)
        return Refusal("UnknownStream", f"there is no stream `{name}`", ref=name)

    def open_channel(self, name: str, *, moving: bool = False) -> Channel | Refusal:
        """A channel for an enqueue or a subscribe, which make it when it is new, or for what we move ourselves."""
        if (channel := self.channels.get(name)) is not None:
            return channel
        if self.is_here is not None and not self.is_here(name):
            return Refusal("CrossShard", f"`{name}` belongs to another shard", ref=name)
        if name not in self.dormant and not self.auto_create and not moving:
            return Refusal(
                "UnknownStream",
                f"there is no stream `{name}`",
                ref=name,
                hint="`streams.autoCreate` is off: enable it, or use an existing stream",
            )
        return self._fullness(name) or self.load(name)

    def _fullness(self, name: str) -> Refusal | None:
        """Why no further channel may be in memory, be it new or one that was unloaded."""
        if len(self.channels) < self.limits.streams_max:
            return self.tenants.streams_problem(name)
        return Refusal(
            "QuotaExceeded",
            f"{len(self.channels)} streams are in memory and `limits.streams_max` allows no more",
            ref=name,
            retry_after_ms=self.limits.idle_unload_ms,
        )

    def load(self, name: str) -> Channel:
        channel = Channel(name, self.policy_for(name))
        dormant = self.dormant.pop(name, None)
        if dormant is None:
            channel.seq = self.seq_floor
        else:
            dormant.ticket = 0
            self.asleep.add(dormant.counters, -1)
            channel.seq = dormant.seq
            channel.counters = dormant.counters
            channel.gauged = dormant.gauged
            channel.settled = dormant.settled
            channel.order = dormant.order
            channel.last_wall_us = dormant.last_wall_us
        self.channels[name] = channel
        self.tenants.loaded(channel)
        return channel

    def sort(self, channel: Channel, records: list[Record]) -> Refusal | None:
        """Set the sort key of records as their channel orders them. Returns why one has none."""
        problem: Refusal | None = None
        order = channel.ready_order
        for record in records if order is not None else ():
            sort_key = (
                self.wrapping.key(record.body) if isinstance(order, KeyedOrder) else self.wrapping.level(record.body)
            )
            if isinstance(sort_key, Refusal):
                problem = problem or sort_key
            else:
                record.sort_key = sort_key
        return problem

    def rest(self, channel: Channel, now: Now) -> None:
        """A channel may have gone idle: look again when it has been so for a while."""
        channel.touched_us = now.us
        if channel.ticket == 0 and not channel.live and not channel.consumers:
            self.timers.arm(now.us + self.limits.idle_unload_ms * 1000, channel)

    def unload(self, channel: Channel, now: Now) -> None:
        """Called by its timer: put an idle channel to sleep, or look again later."""
        channel.ticket = 0
        if not channel.is_idle:
            return
        due_us = channel.touched_us + self.limits.idle_unload_ms * 1000
        if due_us <= now.us and not channel.is_decided(self.commit_log.decided):
            # A settle may yet be refused, and would bring its record back here.
            due_us = now.us + self.limits.idle_unload_ms * 1000
        if due_us > now.us:
            self.timers.arm(due_us, channel)
            return
        self.ids -= channel.trim(now.us, self.commit_log.decided)
        self.drop_channel(channel)
        if channel.seq <= self.seq_floor and channel.counters.changes == 0:
            return  # nothing was ever enqueued: names that were only tried must not evict real ones
        dormant = Dormant(
            channel.seq, channel.counters, channel.settled, channel.order, channel.last_wall_us, channel.gauged
        )
        self.dormant[channel.name] = dormant
        self.asleep.add(dormant.counters)
        if dormant.order:
            self.timers.arm(now.us + channel.policy.dedup_us, dormant)
        while len(self.dormant) > self.limits.dormant_max:
            oldest = next(iter(self.dormant))
            gone = self.dormant.pop(oldest)
            gone.ticket = 0
            self.ids -= len(gone.order)
            self.seq_floor = max(self.seq_floor, gone.seq)
            self.totals.dormant_forgotten += 1

    def drop_channel(self, channel: Channel) -> None:
        """A channel is no longer in memory."""
        del self.channels[channel.name]
        self.tenants.unloaded(channel)

    def forget_window(self, dormant: Dormant) -> None:
        """Called by its timer: the ids of an unloaded channel have all grown too old."""
        dormant.ticket = 0
        self.ids -= len(dormant.order)
        dormant.order.clear()
        dormant.settled.clear()

    def settle(self, record: Record, outcome: str, now: Now, *, durable: bool = False) -> None:
        """A record leaves its channel for good; its id stays in the window."""
        self.settle_all(record.channel, (record,), outcome, now, durable=durable)

    def settle_all(
        self, channel: Channel, records: Sequence[Record], outcome: str, now: Now, *, durable: bool = False
    ) -> None:
        """Records of one channel leave it for good. Keeps the ids that all channels remember within their bound."""
        self.bytes -= channel.remember(records, outcome, now.us, 0 if durable else self.commit_log.gate)
        self.ids += len(records) - channel.trim(now.us, self.commit_log.decided)
        if self.ids > self.limits.dedup_max:
            gone = channel.trim(now.us, self.commit_log.decided, keep=len(channel.order) // 2)
            self.ids -= gone
            self.totals.dedup_evicted += gone
        if not channel.live:
            self.rest(channel, now)

    def forget_applied(self, applied: Applied) -> None:
        """The commit of a staged batch was refused: it never came in."""
        if applied.before is None:
            del self.applied[applied.app]
        else:
            self.applied[applied.app] = Applied(applied.app, applied.before)

    def take_effects(self) -> list[Effect]:
        effects = self.effects
        self.effects = []
        return effects

    def lease_id(self, record: Record) -> str:
        """The opaque name of a record's current lease."""
        holder = record.holder
        return f"{record.lease:x}.{holder.no if holder else 0:x}.{self.boot}"

    def lease_of(self, lease_id: str) -> Record | None:
        """The record a lease id stands for, while that lease lasts."""
        lease, _, rest = lease_id.partition(".")
        no, _, boot = rest.partition(".")
        if boot != self.boot:
            return None
        try:
            consumer = self.consumers.get(int(no, 16))
            return None if consumer is None else consumer.leases.get(int(lease, 16))
        except ValueError:
            return None
