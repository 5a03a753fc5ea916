"""What an operation returns, and the checks that come before each one.

Owns `Result`, `Late` and the scope check. HTTP and Control v1 share the operations of this folder: each takes a typed request,
checks the shape, then the scope, calls the machine, and returns an `Outcome`. It must never know who asks: turning an outcome into
a response is the work of the routes and sessions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from penstock.core.errors import Refusal
from penstock.core.queue.machine import QueueMachine
from penstock.core.scopes import Principal
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


def forbidden(principal: Principal, verb: str, channel: str) -> Refusal | None:
    """Why this principal may not do that to this channel."""
    if principal.allows(verb, channel):
        return None
    stream = principal.from_channel(channel)
    return Refusal(
        "Forbidden",
        f"`{principal.name}` has no scope `streams:{stream}:{verb}`",
        ref=f"streams:{stream}:{verb}",
    )


def check_access(machine: QueueMachine, principal: Principal, verb: str, stream: str) -> Refusal | None:
    """Shape first, then scope: the checks before any work on a stream, as the caller calls it."""
    return envelopes.stream_problem(stream, machine.limits) or forbidden(
        principal, verb, principal.to_channel(stream)
    )


def check_lease(machine: QueueMachine, lease_ms: int | None) -> int | Refusal:
    """A lease's length as asked for; 0 means the stream's default."""
    if lease_ms is None:
        return 0
    low, high = machine.limits.lease_min_ms, machine.limits.lease_max_ms
    if not low <= lease_ms <= high:
        return Refusal("InvalidRequest", f"a lease has {low} to {high} ms, not {lease_ms}", ref="lease_ms")
    return lease_ms * 1000
