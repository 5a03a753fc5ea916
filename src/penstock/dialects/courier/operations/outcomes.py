"""What an operation returns, and the checks that come before each one.

HTTP and Control v1 share the operations of this folder: each takes a typed request, checks its shape, then the scope, calls the machine,
and returns an `Outcome`. An operation must never know the caller: routes and sessions turn outcomes into responses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from penstock.core.errors import Refusal
from penstock.core.names import stream_problem
from penstock.core.queue.machine import QueueMachine
from penstock.core.queue.settle import Denied
from penstock.core.scopes import Principal

Body = dict[str, Any]


class Result(msgspec.Struct):
    """A success, reported when commit `gate` is durable. A body that depends on that commit is a function."""

    body: Body | Callable[[], Body]
    gate: int = 0
    fresh: bool = False
    """It depends on new records, which a full disk may still reject."""

    def value(self) -> Body:
        return self.body() if callable(self.body) else self.body


Outcome = Result | Denied | Refusal
"""A denied settle is certain only when its commit is durable."""


def forbidden(principal: Principal, verb: str, channel: str) -> Refusal | None:
    """Why the principal may not do this to the channel."""
    if principal.allows(verb, channel):
        return None
    scope = f"streams:{principal.from_channel(channel)}:{verb}"
    hint = "connect with a token that has it; the operator's is in DATA/run/operator.token"
    return Refusal(
        "Forbidden", f"`{principal.name}` has no scope `{scope}`", ref=scope, hint=hint if principal.anonymous else None
    )


def as_known(principal: Principal, channel: str, refusal: Refusal) -> Refusal:
    """A refusal about a channel, in the caller's name of it."""
    stream = principal.from_channel(channel)
    ref = stream if refusal.ref == channel else refusal.ref
    return msgspec.structs.replace(refusal, message=refusal.message.replace(channel, stream), ref=ref)


def check_access(machine: QueueMachine, principal: Principal, verb: str, stream: str) -> Refusal | None:
    """Check the name of a stream, then the scope; both come before any work on it."""
    return stream_problem(stream, machine.limits.name_max) or forbidden(principal, verb, principal.to_channel(stream))


def check_lease(machine: QueueMachine, lease_ms: int | None) -> int | Refusal:
    """The length of a requested lease; 0 means the stream's default."""
    if lease_ms is None:
        return 0
    low, high = machine.limits.lease_min_ms, machine.limits.lease_max_ms
    if not low <= lease_ms <= high:
        return Refusal("InvalidRequest", f"a lease has {low} to {high} ms, not {lease_ms}", ref="lease_ms")
    return lease_ms * 1000
