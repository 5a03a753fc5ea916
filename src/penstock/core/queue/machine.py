"""The queue machine: Courier's discipline over channels, in one object.

Calls take `now`, change state at once and never wait; `take_effects()` and `take_batch()` return what must happen outside, and
`next_deadline()` when to call `wake`. It never raises for what a peer did: a refusal is a value. The main calls are O(1) a record.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.core.clock import Now
from penstock.core.errors import Refusal
from penstock.core.limits import Limits
from penstock.core.links import Consumer, Link
from penstock.core.queue import backlog, commit, dead_letters, deliver, enqueue, inspect, rebuild, settle, stage, taps
from penstock.core.queue.channel import Channel
from penstock.core.queue.policy import Policy
from penstock.core.queue.state import Dormant, QueueState
from penstock.core.rate_limits import Meter, Rates
from penstock.core.records import DELAYED, LEASED, Record
from penstock.core.rules import firing, rule_set
from penstock.core.rules.rule_set import Cooling
from penstock.core.scopes import Principal
from penstock.core.tenants import Quota

WAKE_MAX = 1_000
"""Timers that are served and leases that expire in one turn: about 10 ms, and 16 where rules wait for timeouts."""


class QueueMachine(QueueState):
    """Channels, links and time, as calls and effects."""

    enqueue = enqueue.enqueue
    committed = commit.committed
    refused = commit.refused

    take = stage.take
    last_batch = stage.last_batch

    subscribe = deliver.subscribe
    pull = deliver.pull
    tap = taps.tap
    grant = deliver.grant
    writable = deliver.writable

    ack = settle.ack
    nack = settle.nack
    release = settle.release
    term = settle.term
    extend = settle.extend
    held = settle.held
    holder_for = settle.holder_for
    unsubscribe = settle.abandon

    perform = backlog.perform
    work_off = backlog.work_off
    begin_redrive = dead_letters.begin_redrive
    send_back = dead_letters.send_back
    purge_part = dead_letters.purge_part
    drop = dead_letters.drop

    stats = inspect.stats
    metrics = inspect.metrics
    peek = inspect.peek
    where = inspect.where
    explain = inspect.explain
    note_cut = inspect.note_cut

    change_rule = rule_set.change

    snapshot = rebuild.snapshot
    resume = rebuild.resume
    restore = rebuild.restore
    tick = rebuild.tick
    close_minute = rebuild.close_minute
    is_gauged = rebuild.is_gauged
    note = rebuild.note
    recovered = rebuild.recovered

    def connect(self, principal: Principal, session: Any) -> Link | Refusal:
        """A peer is there."""
        if len(self.links) >= self.limits.links_max:
            return Refusal(
                "QuotaExceeded",
                f"{len(self.links)} connections are open and `limits.links_max` allows no more",
                retry_after_ms=1_000,
            )
        self.link_no += 1
        link = Link(self.link_no, principal, session, self.limits.outbox_max)
        self.links[link.no] = link
        return link

    def disconnect(self, now: Now, link: Link) -> None:
        """A peer is gone: its subscriptions end, and so do waiting pulls, but not what was pulled."""
        link.open = False
        self.links.pop(link.no, None)
        taps.forget(self, link)
        consumers = list(link.consumers)
        for consumer in consumers:  # all of them first, or one would be given what another gives back
            deliver.detach(self, now, consumer)
        for consumer in consumers:
            if not consumer.pull:
                settle.abandon(self, now, consumer, is_lost=True)

    def reconfigure(
        self,
        now: Now,
        *,
        limits: Limits,
        policy_for: Callable[[str], Policy],
        auto_create: bool,
        rates: Rates | None,
        quota_for: Callable[[str], Quota],
    ) -> None:
        """Adopt other settings while running. O(records) only for a channel whose order changes.

        No record is lost: a channel above a lowered bound rejects new records. Leases and subscriptions keep their lease time.
        """
        self.limits = self.commit_log.limits = limits
        self.policy_for = policy_for
        self.auto_create = auto_create
        self.limit_rates(rates)
        self.tenants.quota_for = quota_for
        self.views.adopt(limits)
        for channel in list(self.channels.values()):
            policy = policy_for(channel.name)
            if policy != channel.policy:
                channel.adopt(policy)
                deliver.dispatch(self, now, channel)  # the new policy may allow more leases

    def limit_rates(self, rates: Rates | None) -> None:
        """Limit senders by these rates, and streams by the rates of their policies. None removes all limits."""
        if rates is None:
            self.meter = None
            return
        if self.meter is None:
            self.meter = Meter(rates, lambda name: self.policy_for(name).rate)
        self.meter.rates = rates
        self.meter.buckets_max = self.limits.buckets_max

    def next_deadline(self) -> int | None:
        return self.timers.next_deadline()

    def wake(self, now: Now) -> None:
        """Do what is due, as much as one turn allows: expire leases, end delays and waits, unload idle channels."""
        left = WAKE_MAX
        while left > 0 and (subject := self.timers.pop_due(now.us)) is not None:
            left -= 1
            if type(subject) is Record:
                self._wake_record(now, subject)
            elif type(subject) is Consumer:
                if subject.pull and subject.no in subject.channel.consumers:
                    deliver.end_pull(self, now, subject)
                else:
                    left -= max(settle.expire_leases(self, now, subject, left + 1) - 1, 0)
            elif type(subject) is Channel:
                self.unload(subject, now)
            elif type(subject) is Cooling:
                firing.cooled(self, now, subject)
            else:
                assert type(subject) is Dormant
                self.forget_window(subject)

    def _wake_record(self, now: Now, record: Record) -> None:
        if record.state == LEASED:
            settle.expire(self, now, record)
            return
        record.ticket = 0
        if record.state == DELAYED:
            channel = record.channel
            channel.undelay(record)
            record.due_wall_us = 0
            channel.make_ready(record, now.us)
            deliver.dispatch(self, now, channel)
        else:  # held: its dead-letter channel had no room
            dead_letters.offer(self, record)

    def drain(self, now: Now) -> None:
        """Take nothing new and deliver nothing more; leases may still settle."""
        self.commit_log.draining = True
        for consumer in list(self.consumers.values()):
            if consumer.pull and consumer.no in consumer.channel.consumers:
                deliver.end_pull(self, now, consumer)

    @property
    def live(self) -> int:
        """Records that are not settled."""
        return sum(len(channel.live) for channel in self.channels.values())

    @property
    def leased(self) -> int:
        return sum(channel.leased for channel in self.channels.values())
