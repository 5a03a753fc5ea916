"""`POST /v1/send` and its Control v1 twin: write an envelope around a payload and enqueue it."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from penstock.core.clock import Now, rfc3339
from penstock.core.errors import Refusal
from penstock.core.queue.machine import QueueMachine
from penstock.core.records import Record
from penstock.core.scopes import Principal
from penstock.dialects.courier.operations.enqueue import admit, due_wall_us, new_id
from penstock.dialects.courier.operations.outcomes import Outcome, Result, check_access
from penstock.dialects.courier.wire import envelopes


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
    refusal = check_access(machine, principal, "enqueue", stream)
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
