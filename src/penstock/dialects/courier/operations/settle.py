"""`POST /v1/settle` and its Control v1 twins: ack, nack, release, term and extend."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.core.clock import Now
from penstock.core.errors import Refusal
from penstock.core.queue.machine import QueueMachine
from penstock.core.queue.settle import Denied, Done
from penstock.core.scopes import Principal
from penstock.dialects.courier.operations.outcomes import Outcome, Result, check_access, check_lease, forbidden

ACK_STEP = 1_000
"""Ids of an array that are acked in one turn: 15 ms if each is refused."""


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
    backoff: bool = False
    """Of a nack: back off from the first failure on, as the `retry` of the stream says."""


OPS = ("ack", "nack", "release", "term", "extend")


def settle(machine: QueueMachine, now: Now, principal: Principal, request: SettleRequest) -> Outcome:
    """End or extend a lease without a subscription: by its lease id, or by its stream."""
    if request.op not in OPS:
        return Refusal("InvalidRequest", f"`op` is one of {', '.join(OPS)}, not `{request.op}`", ref="op")
    if request.lease_id is None and request.stream is None:
        return Refusal("InvalidRequest", "give the `leaseId`, or the `stream`", ref="leaseId")
    if request.stream is not None:
        refusal = check_access(machine, principal, "subscribe", request.stream)
        if refusal is not None:
            return refusal
    channel = None if request.stream is None else principal.to_channel(request.stream)
    consumer = machine.holder_for(principal, request.id, request.lease_id, channel)
    if isinstance(consumer, Denied):
        return consumer
    if (refusal := forbidden(principal, "subscribe", consumer.channel.name)) is not None:
        return refusal
    done = settle_held(machine, now, consumer, request)
    if isinstance(done, Refusal | Denied):
        return done
    if request.op == "extend":
        expires = (now.wall_us + done.deadline_us - now.us) // 1000
        return Result({"id": request.id, "op": "extend", "leaseExpiresAt": expires}, done.gate)
    return Result({"id": request.id, "op": request.op, "settled": True}, done.gate)


def settle_held(machine: QueueMachine, now: Now, consumer: Any, request: SettleRequest) -> Done | Denied | Refusal:
    """Carry out one settle for the consumer that holds the lease."""
    limits = machine.limits
    if request.delay_ms is not None and not 0 <= request.delay_ms <= limits.delay_max_ms:
        return Refusal("InvalidRequest", f"`delayMs` is 0 to {limits.delay_max_ms}", ref="delayMs")
    extension_us = check_lease(machine, request.ms)
    if isinstance(extension_us, Refusal):
        return extension_us
    if request.op == "ack" and request.lease_id is None:
        denied = machine.ack(now, consumer, [request.id])
        return denied[0] if denied else Done(machine.commit_log.gate)
    record = machine.held(consumer, request.id, request.lease_id)
    if isinstance(record, Denied):
        return record
    match request.op:
        case "ack":
            machine.ack(now, consumer, [request.id])
            return Done(machine.commit_log.gate)
        case "nack" if request.requeue:
            delay_us = None if request.delay_ms is None else request.delay_ms * 1000
            return machine.nack(now, consumer, record, delay_us, request.reason, backoff=request.backoff)
        case "nack" | "term":
            return machine.term(now, consumer, record, request.reason)
        case "release":
            return machine.release(now, consumer, record)
        case _:
            return machine.extend(now, consumer, record, extension_us)
