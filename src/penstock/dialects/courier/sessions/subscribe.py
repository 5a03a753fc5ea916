"""The subscribe socket: one WebSocket, one stream, small JSON messages both ways. Pure, like every session."""

from __future__ import annotations

from collections.abc import Generator

import msgspec

from penstock.core.clock import Now
from penstock.core.errors import Refusal
from penstock.core.links import Consumer
from penstock.core.queue.settle import Denied
from penstock.core.records import Record
from penstock.core.scopes import Principal
from penstock.core.steps import Steps
from penstock.dialects.courier.operations.outcomes import check_access, check_lease
from penstock.dialects.courier.operations.settle import ACK_STEP, SettleRequest, settle_held
from penstock.dialects.courier.sessions.answers import RuntimePort
from penstock.dialects.courier.sessions.message_session import REFUSED_WEIGHT, MessageSession
from penstock.dialects.courier.wire.delivery_frames import delivery_messages

_encode = msgspec.json.encode


class SubscribeQuery(msgspec.Struct, forbid_unknown_fields=True, rename={"soft_auth": "softAuth"}):
    """The query of `/v1/subscribe`."""

    stream: str
    credit: int = 0
    lease_ms: int | None = None
    batch: int = 1
    auto: int = 0
    confirm: bool = False
    expired: bool = False
    soft_auth: bool = False
    agent: str | None = None


class _Message(msgspec.Struct, rename="camel"):
    credit: int | msgspec.UnsetType = msgspec.UNSET
    ack: str | list[str] | msgspec.UnsetType = msgspec.UNSET
    nack: str | msgspec.UnsetType = msgspec.UNSET
    release: str | msgspec.UnsetType = msgspec.UNSET
    term: str | msgspec.UnsetType = msgspec.UNSET
    extend: str | msgspec.UnsetType = msgspec.UNSET
    lease_id: str | None = None
    delay_ms: int | None = None
    backoff: bool = False
    requeue: bool = True
    reason: str | None = None
    ms: int | None = None


_decode = msgspec.json.Decoder(_Message).decode
_SETTLES = ("nack", "release", "term", "extend")
_UNKNOWN = Refusal("UnknownOp", "the message has none of `credit`, `ack`, `nack`, `release`, `term`, `extend`")


def error_message(refusal: Refusal) -> bytes:
    return _encode({"error": refusal.wire()})


def _about(id_: str | None, refusal: Refusal) -> bytes:
    """A refusal of the journal as the answer to one settle. `ref` is the only way to match it to its request."""
    return error_message(msgspec.structs.replace(refusal, ref=id_))


def check(runtime: RuntimePort, principal: Principal, query: SubscribeQuery) -> Refusal | None:
    """Why this subscription is rejected. Checked before the upgrade, so that HTTP can answer with a status."""
    machine = runtime.machine
    limits = machine.limits
    if (refusal := check_access(machine, principal, "subscribe", query.stream)) is not None:
        return refusal
    if not 0 <= query.credit <= limits.credit_max or not 0 <= query.auto <= limits.credit_max:
        return Refusal("InvalidCredit", f"credit is 0 to {limits.credit_max}", ref="credit")
    if not 1 <= query.batch <= limits.batch_max:
        return Refusal("InvalidRequest", f"`batch` is 1 to {limits.batch_max}", ref="batch")
    lease_us = check_lease(machine, query.lease_ms)
    return lease_us if isinstance(lease_us, Refusal) else None


class SubscribeSession(MessageSession[_Message]):
    """One subscriber on its own socket."""

    def __init__(self, runtime: RuntimePort, query: SubscribeQuery) -> None:
        super().__init__(runtime, _decode)
        self._query = query
        self._consumer: Consumer

    def open(self, now: Now) -> None:
        """Subscribe, once the socket is open."""
        query = self._query
        lease_us = (query.lease_ms or 0) * 1000
        stream = self.link.principal.to_channel(query.stream)
        consumer = self._machine.subscribe(now, self.link, stream, lease_us)
        if isinstance(consumer, Refusal):
            self._fail(consumer, consumer.kind.close or 1008)
            return
        consumer.batch = query.batch
        consumer.auto = query.auto
        consumer.expiry_wanted = query.expired
        self._consumer = consumer
        credit = query.credit or query.auto
        if credit:
            self._machine.grant(now, consumer, credit)
        self._runtime.apply(now)

    def _write(self, refusal: Refusal) -> None:
        self.answers.add(error_message(refusal))

    def _message(self, now: Now, message: _Message) -> None:
        known = False
        if message.credit is not msgspec.UNSET:
            known = True
            refusal = self._machine.grant(now, self._consumer, message.credit)
            if refusal is not None:
                self._fail(refusal)
        if message.ack is not msgspec.UNSET:
            known = True
            self._ack(now, message)
        for op in _SETTLES:
            id_ = getattr(message, op)
            if id_ is not msgspec.UNSET:
                known = True
                self._settle(now, id_, op, message)
        if not known:
            self._strike(now, _UNKNOWN)
        if self._machine.effects:
            self._runtime.apply(now)

    def _ack(self, now: Now, message: _Message) -> None:
        ids = message.ack if isinstance(message.ack, list) else [str(message.ack)]
        limit = self._machine.limits.batch_max
        if len(ids) > limit:
            self._fail(Refusal("InvalidRequest", f"an array has at most {limit} ids", ref="ack"))
            return
        if message.lease_id is not None and len(ids) == 1:
            self._settle(now, ids[0], "ack", message)
            return
        live = self._consumer.channel.live
        notices = {id_: self._notice(id_, "ack") for id_ in ids if id_ in live} if self._query.confirm else {}
        denied = self._machine.ack(now, self._consumer, ids)  # at once: a peer may close right after its acks
        confirmed = [(id_, notice) for id_, notice in notices.items() if id_ not in live]
        work = self._answer_acks(denied, confirmed, self._machine.commit_log.gate)
        if max(len(denied), len(confirmed)) > ACK_STEP:
            self._queue.carry_out(work, lambda done: None)
        else:
            Steps(work).all(now)

    def _answer_acks(
        self, denied: list[Denied], confirmed: list[tuple[str, bytes]], gate: int
    ) -> Generator[None, Now, None]:
        for number, one in enumerate(denied, 1):
            self._deny(one)
            if number % ACK_STEP == 0:
                yield
        for number, (id_, notice) in enumerate(confirmed, 1):
            self._confirm(id_, notice, gate)
            if number % ACK_STEP == 0:
                yield

    def _settle(self, now: Now, id_: str, op: str, message: _Message) -> None:
        fields = message.delay_ms, message.reason, message.requeue, message.ms, message.backoff
        request = SettleRequest(id_, op, message.lease_id, None, *fields)
        notice = self._notice(id_, op) if self._query.confirm else b""
        done = settle_held(self._machine, now, self._consumer, request)
        if isinstance(done, Refusal):
            self._fail(done)
        elif isinstance(done, Denied):
            self._deny(done)
        elif self._query.confirm and op != "extend":
            self._confirm(id_, notice, done.gate)

    def _notice(self, id_: str, op: str) -> bytes:
        """The confirmation of a settle, made before the settle ends the lease that it names."""
        record = self._consumer.channel.live.get(id_)
        if record is None:
            return b""
        # A late ack settles a record whose lease has ended.
        lease_id = self._machine.lease_id(record) if record.holder is not None else None
        return _encode({"settled": id_, "leaseId": lease_id, "op": op, "attempt": record.attempt})

    def _confirm(self, id_: str, notice: bytes, gate: int) -> None:
        self.answers.after(gate, lambda refusal: _about(id_, refusal) if refusal else notice)

    def _deny(self, denied: Denied) -> None:
        self._weight += REFUSED_WEIGHT
        message = error_message(denied.refusal)
        # `fresh`: it may depend on a drop, which is undone if a full disk rejects the records that caused it.
        self.answers.after(
            denied.gate, lambda refusal: _about(denied.refusal.ref, refusal) if refusal else message, fresh=True
        )

    def deliver(self, now: Now, consumer: Consumer, records: list[Record]) -> None:
        self.out += delivery_messages(self._machine.boot, consumer, records)

    def expired(self, consumer: Consumer, record: Record, lease_id: str) -> None:
        self.out.append(_encode({"expired": record.id, "leaseId": lease_id}))
