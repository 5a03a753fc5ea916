"""The subscriptions of one Control v1 connection: their labels, and which of them holds an envelope.

Owns the consumers by label. A client may leave labels out: then a settle goes to the subscription that holds the envelope, and a grant to
the newest one, or to none after a refused subscribe. Such a client cannot unsubscribe, so it has one subscription a stream, and at the
bound the idlest is evicted. Cost of `holder`, and of the search for all ids of an ack: O(subscriptions) without a label.
"""

from __future__ import annotations

from itertools import groupby

from penstock.core.clock import Now
from penstock.core.errors import Refusal
from penstock.core.links import Consumer, Link
from penstock.core.queue.settle import Denied
from penstock.dialects.courier.operations.outcomes import Body, Outcome, Result, check_access, check_lease
from penstock.dialects.courier.operations.settle import SettleRequest, settle_held
from penstock.dialects.courier.sessions.answers import RuntimePort
from penstock.dialects.courier.sessions.control.frames import SubscribeFrame
from penstock.dialects.courier.wire.delivery_frames import delivery_prefix


class Subscriptions:
    """The consumers of one connection."""

    __slots__ = ("_by_label", "_count", "_machine", "_newest", "_runtime", "_unlabelled", "only", "suffix")

    def __init__(self, runtime: RuntimePort) -> None:
        self._runtime = runtime
        self._machine = runtime.machine
        self._unlabelled: dict[str, Consumer] = {}
        """By channel, the idlest first."""
        self._by_label: dict[str, Consumer] = {}
        self._newest: Consumer | None = None
        self._count = 0
        self.suffix = ""
        """What the labels end with that are made up here."""
        self.only: Consumer | None = None
        """The subscription of a connection that has exactly one: its acks need no search."""

    def __contains__(self, label: str | None) -> bool:
        return label in self._by_label

    def open(self, now: Now, link: Link, frame: SubscribeFrame, taken: bool) -> Consumer | Refusal:
        """Subscribe. `taken` says that a follower of a view has the label."""
        machine, limits = self._machine, self._machine.limits
        refusal = check_access(machine, link.principal, "subscribe", frame.stream)
        lease_us = check_lease(machine, frame.lease_ms)
        label = frame.sub_id
        if refusal is None and isinstance(lease_us, Refusal):
            refusal = lease_us
        elif not 1 <= frame.batch <= limits.batch_max:
            refusal = Refusal("InvalidRequest", f"`batch` is 1 to {limits.batch_max}", ref="batch")
        elif not 0 <= frame.auto <= limits.credit_max or not 0 <= (frame.credit or 0) <= limits.credit_max:
            refusal = Refusal("InvalidCredit", f"credit is 0 to {limits.credit_max}", ref="credit")
        elif label is not None and (taken or label in self._by_label or len(label) > limits.id_max):
            refusal = Refusal("InvalidRequest", f"`subId` {label[:64]!r} is in use or too long", ref="subId")
        if refusal is not None:
            return refusal
        assert isinstance(lease_us, int)
        name = link.principal.to_channel(frame.stream)
        older = self._unlabelled.get(name) if label is None else None
        is_full = older is None and len(link.consumers) >= limits.subscriptions_max and bool(self._unlabelled)
        consumer = older or machine.subscribe(now, link, name, lease_us, replaces=is_full)
        if isinstance(consumer, Refusal):
            return consumer
        if is_full:
            self._evict(now)
        if older is not None:  # the same consumer without its credit: what it holds can still be settled
            label, older.credit, older.lease_us = older.label, 0, lease_us or older.channel.policy.lease_us
        elif label is None:
            self._unlabelled[name] = consumer
        while label is None or (older is None and label in self._by_label):
            self._count += 1
            label = f"s{self._count}{self.suffix}"
        consumer.label = label
        consumer.batch = frame.batch
        consumer.expiry_wanted = frame.expired
        consumer.auto = frame.auto
        consumer.tag = delivery_prefix(consumer)
        self._by_label[label] = self._newest = consumer
        self.only = consumer if len(self._by_label) == 1 else None
        return self._used(consumer)

    def refused(self) -> None:
        """A subscribe was refused. Grants that mean it must not reach an older subscription, which may be another user's."""
        self._newest = None

    def _used(self, consumer: Consumer) -> Consumer:
        """Move an unlabelled subscription behind those that are idle for longer."""
        name = consumer.channel.name
        if self._unlabelled.get(name) is consumer:
            self._unlabelled[name] = self._unlabelled.pop(name)
        return consumer

    def _evict(self, now: Now) -> None:
        """End the idlest unlabelled subscription, if possible one that holds nothing."""
        idle = [consumer for consumer in self._unlabelled.values() if not consumer.leases]
        for victim in (idle or [*self._unlabelled.values()])[:1]:
            self.forget(victim)
            self._machine.unsubscribe(now, victim)
            self._runtime.evicted(victim)

    def find(self, label: str | None) -> Consumer | Refusal:
        """A subscription by its label; the newest one without."""
        consumer = self._newest if label is None else self._by_label.get(label)
        if consumer is not None:
            return self._used(consumer)
        if label is None:
            return Refusal("InvalidRequest", "subscribe first", ref="subId")
        return Refusal("InvalidRequest", f"there is no subscription `{label[:64]}`", ref="subId")

    def forget(self, consumer: Consumer) -> None:
        """The subscription has ended."""
        self._by_label.pop(consumer.label, None)
        if self._unlabelled.get(consumer.channel.name) is consumer:
            del self._unlabelled[consumer.channel.name]
        if self._newest is consumer:
            self._newest = next(reversed(self._by_label.values()), None)
        self.only = self._newest if len(self._by_label) == 1 else None

    def holder(self, id_: str, label: str | None) -> Consumer | Refusal:
        """The subscription that holds an envelope, unless the client names one."""
        if label is None:
            for consumer in self._by_label.values():
                record = consumer.channel.live.get(id_)
                if record is not None and record.holder is consumer:
                    return self._used(consumer)
            # No lease: the refusal should come from a stream that knows the envelope.
            for consumer in self._by_label.values():
                if id_ in consumer.channel.live or id_ in consumer.channel.settled:
                    return consumer
        return self.find(label)

    def _search(self, ids: set[str]) -> tuple[dict[str, list[Consumer]], dict[str, Consumer]]:
        """Search once for many ids: the subscriptions that hold each, the newest first, and the oldest whose stream knows it."""
        held: dict[str, list[Consumer]] = {}
        known: dict[str, Consumer] = {}
        for consumer in reversed(self._by_label.values()):
            live = consumer.channel.live
            known.update(dict.fromkeys(consumer.channel.settled.keys() & ids, consumer))
            for id_ in live.keys() & ids:  # costs as much as the smaller one has members
                known[id_] = consumer
                if live[id_].holder is consumer:
                    held.setdefault(id_, []).append(consumer)
        return held, known

    def ack(self, now: Now, ids: list[str], label: str | None) -> list[Denied]:
        """Ack envelopes, each at the subscription that holds it; returns the refusals."""
        is_one = label is not None or (self.only is not None and self.only is self._newest)
        if is_one and not isinstance(named := self.find(label), Refusal):
            return self._machine.ack(now, named, ids)
        denied: list[Denied] = []
        is_search = label is None and len(ids) > 1
        held, known = self._search(set(ids)) if is_search else ({}, {})

        def place(id_: str) -> Consumer | Refusal:
            found = self._used(held[id_].pop()) if held.get(id_) else known.get(id_)
            return found or (self.find(label) if is_search else self.holder(id_, label))

        for consumer, together in groupby(ids, place):
            if isinstance(consumer, Refusal):
                denied += [Denied(0, consumer) for _ in together]
            else:
                denied += self._machine.ack(now, consumer, list(together))
        return denied

    def settle(self, now: Now, request: SettleRequest, label: str | None) -> Outcome:
        """Settle one envelope at the subscription that holds it."""
        consumer = self.holder(request.id, label)
        if isinstance(consumer, Refusal):
            return consumer
        done = settle_held(self._machine, now, consumer, request)
        if isinstance(done, Refusal | Denied):
            return done
        body: Body = {"id": request.id}
        if request.op == "extend":
            body["leaseExpiresAt"] = (now.wall_us + done.deadline_us - now.us) // 1000
        return Result(body, done.gate)
