"""Courier's operations beside the hot path, once for HTTP and Control v1.

Each takes a typed request, checks scope and shape, calls the machine, and returns a `Result` or a `Refusal`. A result
may depend on the commit it waits for, so its body may be a function.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any

import msgspec

from penstock.core.clock import Now, rfc3339
from penstock.core.errors import Refusal
from penstock.core.queue.enqueue import Admitted
from penstock.core.queue.machine import QueueMachine
from penstock.core.queue.settle import Denied, Done
from penstock.core.records import Record
from penstock.core.scopes import Principal
from penstock.core.tenants import dead_name, home_name
from penstock.dialects.courier.wire import envelopes

Body = dict[str, Any]


class Result(msgspec.Struct):
    """A success, to be told when `gate` is committed."""

    body: Body | Callable[[], Body]
    gate: int = 0
    fresh: bool = False
    """The success is that of new records, which a journal short of space may still refuse."""

    def value(self) -> Body:
        return self.body() if callable(self.body) else self.body


class Late(msgspec.Struct):
    """A refusal that is only certain when `gate` is committed."""

    refusal: Refusal
    gate: int


Outcome = Result | Late | Refusal


class EnqueueRequest(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """`POST /v1/enqueue`."""

    to: str
    envelope: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    envelopes: list[msgspec.Raw] | msgspec.UnsetType = msgspec.UNSET
    delay_ms: Annotated[int, msgspec.Meta(ge=0)] | None = None
    deliver_at: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    assign_id: bool | None = None


class SendRequest(
    msgspec.Struct, rename={"delay_ms": "delayMs", "from_": "from"}, forbid_unknown_fields=True
):
    """`POST /v1/send`."""

    to: str
    type: str
    payload: msgspec.Raw
    from_: str | None = None
    id: str | None = None
    corr: str | None = None
    refs: list[str] | None = None
    tags: list[str] | None = None
    headers: dict[str, str | int | float | bool | None] | None = None
    delay_ms: Annotated[int, msgspec.Meta(ge=0)] | None = None
    schema: str | None = None


class PullRequest(msgspec.Struct, forbid_unknown_fields=True):
    """`POST /v1/pull`."""

    stream: str
    max: int = 1
    wait_ms: int = 0
    lease_ms: int | None = None


class SettleRequest(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """`POST /v1/settle`."""

    id: str
    op: str
    lease_id: str | None = None
    stream: str | None = None
    delay_ms: int | None = None
    reason: str | None = None
    requeue: bool = True
    ms: int | None = None


class RedriveRequest(msgspec.Struct, forbid_unknown_fields=True):
    """`POST /v1/redrive`."""

    stream: str
    max: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 1_000


class StreamRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A body that only names a stream."""

    stream: str


def may(principal: Principal, verb: str, channel: str) -> Refusal | None:
    """Why this principal may not do that to this channel."""
    if principal.allows(verb, channel):
        return None
    stream = principal.from_channel(channel)
    return Refusal(
        "Forbidden",
        f"`{principal.name}` has no scope `streams:{stream}:{verb}`",
        ref=f"streams:{stream}:{verb}",
    )


def allowed(machine: QueueMachine, principal: Principal, verb: str, stream: str) -> Refusal | None:
    """Shape first, then scope: the checks before any work on a stream, as the caller calls it."""
    return envelopes.stream_problem(stream, machine.limits) or may(
        principal, verb, principal.to_channel(stream)
    )


def due_wall_us(
    machine: QueueMachine, now: Now, delay_ms: int | None, deliver_at: datetime | None
) -> int | Refusal:
    """When a scheduled envelope becomes ready; 0 means at once."""
    if delay_ms is None and deliver_at is None:
        return 0
    if deliver_at is not None:
        delay_us = int(deliver_at.timestamp() * 1_000_000) - now.wall_us
    else:
        delay_us = (delay_ms or 0) * 1000
    if delay_us > machine.limits.schedule_max_ms * 1000:
        return Refusal(
            "InvalidRequest",
            f"an envelope may be scheduled at most {machine.limits.schedule_max_ms} ms ahead",
            ref="delayMs" if deliver_at is None else "deliverAt",
        )
    return now.wall_us + delay_us if delay_us > 0 else 0


def schedule(records: list[Record], due: int) -> None:
    for record in records:
        record.due_wall_us = record.scheduled_wall_us = due


def new_id(machine: QueueMachine) -> str:
    return "e-" + machine.entropy(12).hex()


def enqueue(
    machine: QueueMachine,
    now: Now,
    principal: Principal,
    request: EnqueueRequest,
    *,
    assign: bool,
    address: str = "",
) -> Outcome:
    """Check and admit one envelope, or an array of them."""
    refusal = allowed(machine, principal, "enqueue", request.to)
    if refusal is not None:
        return refusal
    channel = principal.to_channel(request.to)
    one, many = request.envelope, request.envelopes
    single = isinstance(one, msgspec.Raw)
    if single == isinstance(many, list):
        return Refusal("InvalidRequest", "give `envelope` or `envelopes`, one of them", ref="envelope")
    raws = [one] if isinstance(one, msgspec.Raw) else many
    assert isinstance(raws, list)
    if not 0 < len(raws) <= machine.limits.batch_max:
        return Refusal(
            "InvalidRequest", f"an array has 1 to {machine.limits.batch_max} envelopes", ref="envelopes"
        )
    due = due_wall_us(machine, now, request.delay_ms, request.deliver_at)
    if isinstance(due, Refusal):
        return due
    wants_id = assign if request.assign_id is None else request.assign_id
    records: list[Record] = []
    for index, raw in enumerate(raws):
        fresh_id = new_id(machine) if wants_id else None
        record = envelopes.parse(bytes(raw), request.to, principal, machine.limits, fresh_id)
        if machine.schemas is not None and isinstance(record, Record):
            record = machine.schemas.refusal(channel, record.body) or record
        if isinstance(record, Refusal):
            return record if single else _at(record, f"envelopes[{index}]")
        records.append(record)
    if due:
        schedule(records, due)
    meter = machine.meter
    if meter is not None:
        refusal = meter.check(now.us, principal, address, channel, len(records))
        if refusal is not None:
            return refusal
    admitted = machine.enqueue(now, channel, records)
    if isinstance(admitted, Refusal):
        return admitted
    if meter is not None:
        meter.charge(now.us, principal, address, channel, len(records))
    return Result(admitted_body(admitted, records, single), admitted.gate, fresh=True)


def _at(refusal: Refusal, where: str) -> Refusal:
    ref = where if refusal.ref is None else f"{where}.{refusal.ref}"
    return msgspec.structs.replace(refusal, ref=ref)


def admitted_body(admitted: Admitted, records: list[Record], single: bool) -> Body:
    body: Body
    if single:
        body = {"id": records[0].id, "seq": admitted.seqs[0]}
        if admitted.duplicates:
            body["duplicate"] = True
        return body
    body = {"ids": [record.id for record in records], "seqs": admitted.seqs}
    if admitted.duplicates:
        body["duplicates"] = admitted.duplicates
    return body


def send(
    machine: QueueMachine, now: Now, principal: Principal, request: SendRequest, *, address: str = ""
) -> Outcome:
    """Make an envelope of a message and enqueue it."""
    stream = envelopes.inbox(request.to)
    known = machine.known(principal.to_channel(stream))
    channel = machine.channels.get(principal.to_channel(stream))
    present = channel is not None and bool(channel.consumers)
    envelope: dict[str, Any] = {
        "id": request.id or new_id(machine),
        "ts": rfc3339(now.wall_us),
        "from": request.from_ or principal.agent or principal.name,
        "to": stream,
        "type": request.type,
    }
    for name in ("schema", "corr", "refs", "tags", "headers"):
        if getattr(request, name) is not None:
            envelope[name] = getattr(request, name)
    envelope["payload"] = request.payload
    raw = msgspec.Raw(msgspec.json.encode(envelope))
    asked = EnqueueRequest(stream, raw, delay_ms=request.delay_ms)
    outcome = enqueue(machine, now, principal, asked, assign=False, address=address)
    if isinstance(outcome, Result):
        recipient = {"known": known, "present": present}
        outcome.body = {**outcome.value(), "to": stream, "recipient": recipient}
    return outcome


def lease_us(machine: QueueMachine, lease_ms: int | None) -> int | Refusal:
    """A lease's length as asked for; 0 means the stream's default."""
    if lease_ms is None:
        return 0
    low, high = machine.limits.lease_min_ms, machine.limits.lease_max_ms
    if not low <= lease_ms <= high:
        return Refusal("InvalidRequest", f"a lease has {low} to {high} ms, not {lease_ms}", ref="lease_ms")
    return lease_ms * 1000


def check_pull(machine: QueueMachine, principal: Principal, request: PullRequest) -> int | Refusal:
    """The lease of a pull that may go on."""
    refusal = allowed(machine, principal, "subscribe", request.stream)
    if refusal is not None:
        return refusal
    if not 1 <= request.max <= machine.limits.pull_max:
        return Refusal("InvalidRequest", f"`max` is 1 to {machine.limits.pull_max}", ref="max")
    if not 0 <= request.wait_ms <= machine.limits.pull_wait_max_ms:
        return Refusal(
            "InvalidRequest", f"`wait_ms` is 0 to {machine.limits.pull_wait_max_ms}", ref="wait_ms"
        )
    return lease_us(machine, request.lease_ms)


def pulled(machine: QueueMachine, now: Now, records: list[Record]) -> Body:
    """The answer to a pull."""
    return {
        "deliveries": [
            {
                "deliver": msgspec.Raw(record.body),
                "stream": _shown(record),
                "seq": record.seq,
                "attempt": record.attempt,
                "leaseId": machine.lease_id(record),
                "leaseExpiresAt": (now.wall_us + record.deadline_us - now.us) // 1000,
            }
            for record in records
        ]
    }


def _shown(record: Record) -> str:
    """What the holder of a record calls its stream."""
    name = record.channel.name
    return name if record.holder is None else record.holder.link.principal.from_channel(name)


OPS = ("ack", "nack", "release", "term", "extend")


def settle(machine: QueueMachine, now: Now, principal: Principal, request: SettleRequest) -> Outcome:
    """End or extend a lease from outside a subscription."""
    if request.op not in OPS:
        return Refusal("InvalidRequest", f"`op` is one of {', '.join(OPS)}, not `{request.op}`", ref="op")
    if request.lease_id is None and request.stream is None:
        return Refusal("InvalidRequest", "give the `leaseId`, or the `stream`", ref="leaseId")
    if request.stream is not None:
        refusal = allowed(machine, principal, "subscribe", request.stream)
        if refusal is not None:
            return refusal
    channel = None if request.stream is None else principal.to_channel(request.stream)
    consumer = machine.holder_for(principal, request.id, request.lease_id, channel)
    if isinstance(consumer, Denied):
        return Late(consumer.refusal, consumer.gate)
    refusal = may(principal, "subscribe", consumer.channel.name)
    if refusal is not None:
        return refusal
    done = settle_held(machine, now, consumer, request)
    if isinstance(done, Refusal):
        return done
    if isinstance(done, Denied):
        return Late(done.refusal, done.gate)
    if request.op == "extend":
        expires = (now.wall_us + done.deadline_us - now.us) // 1000
        return Result({"id": request.id, "op": "extend", "leaseExpiresAt": expires}, done.gate)
    return Result({"id": request.id, "op": request.op, "settled": True}, done.gate)


def settle_held(
    machine: QueueMachine, now: Now, consumer: Any, request: SettleRequest
) -> Done | Denied | Refusal:
    """Carry out one settle on behalf of the consumer that holds the lease."""
    limits = machine.limits
    if request.delay_ms is not None and not 0 <= request.delay_ms <= limits.delay_max_ms:
        return Refusal("InvalidRequest", f"`delayMs` is 0 to {limits.delay_max_ms}", ref="delayMs")
    extension_us = lease_us(machine, request.ms)
    if isinstance(extension_us, Refusal):
        return extension_us
    if request.op == "ack" and request.lease_id is None:
        denied = machine.ack(now, consumer, [request.id])
        return denied[0] if denied else Done(machine.gate)
    record = machine.held(consumer, request.id, request.lease_id)
    if isinstance(record, Denied):
        return record
    match request.op:
        case "ack":
            machine.ack(now, consumer, [request.id])
            return Done(machine.gate)
        case "nack" if request.requeue:
            delay_us = None if request.delay_ms is None else request.delay_ms * 1000
            return machine.nack(now, consumer, record, delay_us, request.reason)
        case "nack" | "term":
            return machine.term(now, consumer, record, request.reason)
        case "release":
            return machine.release(now, consumer, record)
        case _:
            return machine.extend(now, consumer, record, extension_us)


def redrive(machine: QueueMachine, now: Now, principal: Principal, request: RedriveRequest) -> Outcome:
    """Send dead letters home. Needs the right to take them and the right to put them back."""
    dead = dead_name(principal.to_channel(request.stream))
    refusal = (
        envelopes.stream_problem(request.stream, machine.limits)
        or may(principal, "subscribe", dead)
        or may(principal, "enqueue", home_name(dead))
    )
    if refusal is not None:
        return refusal
    job = machine.redrive(now, dead, request.max)
    if isinstance(job, Refusal):
        return job

    def body() -> Body:
        channel = machine.channels.get(dead)
        return {"moved": job.moved, "kept": job.kept, "left": 0 if channel is None else len(channel.ready)}

    return Result(body, machine.gate)


def purge(machine: QueueMachine, now: Now, principal: Principal, request: StreamRequest) -> Outcome:
    """Drop what waits in a stream. For operators."""
    refusal = allowed(machine, principal, "admin", request.stream)
    if refusal is not None:
        return refusal
    channel = machine.find(principal.to_channel(request.stream))
    if isinstance(channel, Refusal):
        return channel
    return Result({"purged": machine.purge(now, channel)}, machine.gate)
