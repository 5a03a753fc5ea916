"""`POST /v1/enqueue`, `POST /v1/send` and their Control v1 twins: check envelopes, or write one, and admit them to a stream."""

from __future__ import annotations

from collections.abc import Generator
from datetime import datetime
from typing import Annotated, Any

import msgspec

from penstock.core.clock import Now, rfc3339
from penstock.core.errors import Refusal
from penstock.core.names import address_problem
from penstock.core.queue.enqueue import Admitted
from penstock.core.queue.machine import QueueMachine
from penstock.core.records import Record
from penstock.core.scopes import Principal
from penstock.core.steps import STEP_BYTES, Steps
from penstock.dialects.courier.operations.outcomes import Body, Outcome, Result, check_access
from penstock.dialects.courier.wire import envelopes

ENVELOPE_WEIGHT = 128
"""Bytes that an envelope counts for in addition to its own: a small one costs more than its size."""


class EnqueueRequest(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """`POST /v1/enqueue`."""

    to: str
    envelope: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    envelopes: list[msgspec.Raw] | msgspec.UnsetType = msgspec.UNSET
    delay_ms: Annotated[int, msgspec.Meta(ge=0)] | None = None
    deliver_at: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    assign_id: bool | None = None


def due_wall_us(machine: QueueMachine, now: Now, delay_ms: int | None, deliver_at: datetime | None) -> int | Refusal:
    """When a scheduled envelope becomes ready; 0 means now."""
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


def new_id(machine: QueueMachine) -> str:
    return "e-" + machine.entropy(12).hex()


def enqueue(machine: QueueMachine, now: Now, principal: Principal, request: EnqueueRequest, *, assign: bool) -> Outcome:
    """Check one envelope or an array of them, and admit them, at once."""
    return Steps(enqueue_steps(machine, now, principal, request, assign=assign)).all(now)


def enqueue_steps(
    machine: QueueMachine,
    now: Now,
    principal: Principal,
    request: EnqueueRequest,
    *,
    assign: bool,
    address: str = "",
    is_checked: bool = False,
) -> Generator[None, Now, Outcome]:
    """Check envelopes in steps, then admit all of them at once. `is_checked`: `check_request` has seen them."""
    if (refusal := check_access(machine, principal, "enqueue", request.to)) is not None:
        return refusal
    channel = principal.to_channel(request.to)
    one, many = request.envelope, request.envelopes
    single = isinstance(one, msgspec.Raw)
    if single == isinstance(many, list):
        return Refusal("InvalidRequest", "give `envelope` or `envelopes`, one of them", ref="envelope")
    raws = [one] if isinstance(one, msgspec.Raw) else many
    assert isinstance(raws, list)
    if not 0 < len(raws) <= machine.limits.batch_max:
        return Refusal("InvalidRequest", f"an array has 1 to {machine.limits.batch_max} envelopes", ref="envelopes")
    due = due_wall_us(machine, now, request.delay_ms, request.deliver_at)
    if isinstance(due, Refusal):
        return due
    wants_id = assign if request.assign_id is None else request.assign_id
    records: list[Record] = []
    weight = start = 0
    while start < len(raws):
        part = raws[start : start + envelopes.HEADS_MAX]
        if sum(map(len, part)) > STEP_BYTES:
            part = part[:1]
        start += len(part)
        parsed, refusal = parse_part(
            machine, principal, request.to, list(map(bytes, part)), wants_id=wants_id, is_checked=is_checked
        )
        records += parsed
        if refusal is not None:
            return refusal if single else at(refusal, f"envelopes[{len(records)}]")
        weight += sum(map(len, part)) + ENVELOPE_WEIGHT * len(part)
        if weight > STEP_BYTES:
            weight = 0
            now = yield
    return admit(machine, now, principal, channel, records, due, single=single, address=address)


def parse_part(
    machine: QueueMachine,
    principal: Principal,
    to: str,
    raws: list[bytes],
    *,
    wants_id: bool = False,
    is_checked: bool = False,
) -> tuple[list[Record], Refusal | None]:
    """The records of these envelopes, up to the first one that is refused, and why it is."""
    limits = machine.limits
    records = envelopes.parse_all(raws, to, principal, limits, is_checked=is_checked) if len(raws) > 1 else None
    refusal: Refusal | None = None
    if records is None:
        records = []
        for raw in raws:
            fresh_id = new_id(machine) if wants_id else None
            record = envelopes.parse(raw, to, principal, limits, fresh_id, is_checked=is_checked)
            if isinstance(record, Refusal):
                refusal = record
                break
            records.append(record)
    if machine.schemas is not None:
        channel = principal.to_channel(to)
        for number, record in enumerate(records):
            if (problem := machine.schemas.refusal(channel, record.body)) is not None:
                return records[:number], problem
    return records, refusal


def admit(
    machine: QueueMachine,
    now: Now,
    principal: Principal,
    channel: str,
    records: list[Record],
    due: int,
    *,
    single: bool,
    address: str,
) -> Outcome:
    """Admit checked records to a channel: all of them or none."""
    if due:
        for record in records:
            record.due_wall_us = record.scheduled_wall_us = due
    meter = machine.meter
    if meter is not None:
        refusal = meter.check(now.us, principal, address, channel, len(records))
        if refusal is not None:
            return refusal
    admitted = machine.enqueue(now, channel, records)
    if isinstance(admitted, Refusal):
        return admitted
    # Charged only now: a batch that the machine refuses must not use up the rate.
    if meter is not None:
        meter.charge(now.us, principal, address, channel, len(records))
    return Result(to_enqueue_body(admitted, records, single), admitted.gate, fresh=True)


def at(refusal: Refusal, where: str) -> Refusal:
    """The refusal of one of several envelopes."""
    ref = where if refusal.ref is None else f"{where}.{refusal.ref}"
    return msgspec.structs.replace(refusal, ref=ref)


def to_enqueue_body(admitted: Admitted, records: list[Record], single: bool) -> Body:
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


class SendRequest(
    msgspec.Struct, rename={"delay_ms": "delayMs", "from_": "from", "kind": "type"}, forbid_unknown_fields=True
):
    """`POST /v1/send`."""

    to: str
    kind: str
    payload: msgspec.Raw
    from_: str | None = None
    id: str | None = None
    corr: str | None = None
    refs: list[str] | None = None
    tags: list[str] | None = None
    headers: dict[str, str | int | float | bool | None] | None = None
    delay_ms: Annotated[int, msgspec.Meta(ge=0)] | None = None
    schema: str | None = None


def send(machine: QueueMachine, now: Now, principal: Principal, request: SendRequest, *, address: str = "") -> Outcome:
    """Write an envelope around a payload and enqueue it; the answer says whether its recipient is known and connected."""
    stream = envelopes.inbox(request.to)
    refusal = address_problem(request.to) or check_access(machine, principal, "enqueue", stream)
    if refusal is not None:
        return refusal
    channel = principal.to_channel(stream)
    due = due_wall_us(machine, now, request.delay_ms, None)
    if isinstance(due, Refusal):
        return due
    envelope: dict[str, Any] = {
        "id": request.id or new_id(machine),
        "ts": rfc3339(now.wall_us),
        "from": request.from_ or principal.agent or principal.name,
        "to": stream,
        "type": request.kind,
    }
    for name in ("schema", "corr", "refs", "tags", "headers"):
        if getattr(request, name) is not None:
            envelope[name] = getattr(request, name)
    envelope["payload"] = request.payload
    record = envelopes.compose(envelope, principal, machine.limits)
    if machine.schemas is not None and isinstance(record, Record):
        record = machine.schemas.refusal(channel, record.body) or record
    if isinstance(record, Refusal):
        return record
    # Asked before the envelope is admitted, which makes an unknown stream known.
    known = machine.known(channel)
    there = machine.channels.get(channel)
    recipient = {"known": known, "present": there is not None and bool(there.consumers)}
    outcome = admit(machine, now, principal, channel, [record], due, single=True, address=address)
    if isinstance(outcome, Result):
        outcome.body = {**outcome.value(), "to": stream, "recipient": recipient}
    return outcome
