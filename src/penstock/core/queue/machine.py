"""The queue machine: Courier's discipline over channels, in one object.

Calls take `now`, change state at once and never wait; what must happen outside is left in `take_effects()` and
`take_batch()`, and `next_deadline()` says when to call `wake`. It runs to completion and never raises for what a
peer did: a refusal is a value. Cost of the main calls: O(1) a record.
"""

from __future__ import annotations

from typing import Any

from penstock.core.clock import Now
from penstock.core.errors import Refusal
from penstock.core.links import Consumer, Link
from penstock.core.queue import dead_letters as moving
from penstock.core.queue import deliver as delivery
from penstock.core.queue import enqueue as intake
from penstock.core.queue import inspect as inspection
from penstock.core.queue import rebuild as recovery
from penstock.core.queue import reconfigure as settings
from penstock.core.queue import settle as settling
from penstock.core.queue import stage as staging
from penstock.core.queue import taps as tapping
from penstock.core.queue.channel import Channel
from penstock.core.queue.state import Book, Dormant
from penstock.core.records import DELAYED, LEASED, Record
from penstock.core.rules import firing as triggers
from penstock.core.rules.firing import Cooling
from penstock.core.scopes import Principal


class QueueMachine(Book):
    """Channels, links and time, as calls and effects."""

    enqueue = intake.enqueue
    committed = intake.committed
    refused = intake.refused

    take = staging.take
    last_batch = staging.last_batch

    subscribe = delivery.subscribe
    pull = delivery.pull
    tap = tapping.tap
    grant = delivery.grant
    writable = delivery.writable

    ack = settling.ack
    nack = settling.nack
    release = settling.release
    term = settling.term
    extend = settling.extend
    held = settling.held
    holder_for = settling.holder_for
    unsubscribe = settling.abandon

    accept = moving.accept
    sent = moving.sent
    redrive = moving.redrive
    purge = moving.purge

    stats = inspection.stats
    metrics = inspection.metrics
    peek = inspection.peek
    where = inspection.where
    explain = inspection.explain

    change_rule = triggers.change

    snapshot = recovery.snapshot
    resume = recovery.resume
    restore = recovery.restore
    beat = recovery.beat
    close_minute = recovery.close_minute
    is_gauged = recovery.is_gauged
    note = recovery.note
    recovered = recovery.recovered

    reconfigure = settings.reconfigure
    limit_rates = settings.limit_rates

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
        tapping.forget(self, link)
        consumers = list(link.consumers)
        for consumer in consumers:  # all of them first, or one would be given what another gives back
            delivery.detach(self, now, consumer)
        for consumer in consumers:
            if not consumer.pull:
                settling.abandon(self, now, consumer)

    def next_deadline(self) -> int | None:
        return self.timers.next_deadline()

    def wake(self, now: Now) -> None:
        """Do what is due: expire leases, end delays and waits, unload idle channels."""
        while (subject := self.timers.pop_due(now.us)) is not None:
            if type(subject) is Record:
                self._wake_record(now, subject)
            elif type(subject) is Consumer:
                delivery.end_pull(self, now, subject)
            elif type(subject) is Channel:
                self.unload(subject, now)
            elif type(subject) is Cooling:
                triggers.cooled(self, now, subject)
            else:
                assert type(subject) is Dormant
                self.forget_window(subject)

    def _wake_record(self, now: Now, record: Record) -> None:
        if record.state == LEASED:
            settling.expire(self, now, record)
            return
        record.ticket = 0
        if record.state == DELAYED:
            channel = record.channel
            channel.undelay(record)
            record.due_wall_us = 0
            channel.make_ready(record, now.us)
            delivery.dispatch(self, now, channel)
        else:  # held: its dead-letter channel had no room
            moving.offer(self, record)

    def drain(self, now: Now) -> None:
        """Take nothing new and deliver nothing more; leases may still settle."""
        self.draining = True
        for consumer in list(self.consumers.values()):
            if consumer.pull and consumer.no in consumer.channel.consumers:
                delivery.end_pull(self, now, consumer)

    @property
    def live(self) -> int:
        """Records that are not settled."""
        return sum(len(channel.live) for channel in self.channels.values())

    @property
    def leased(self) -> int:
        return sum(channel.leased for channel in self.channels.values())
