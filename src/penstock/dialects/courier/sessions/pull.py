"""`POST /v1/pull` and its Control v1 twin: the checks of a pull, its answer, and the session of one that waits over HTTP."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from penstock.core.clock import Now
from penstock.core.errors import Refusal
from penstock.core.links import Consumer, PeerlessSession
from penstock.core.queue.machine import QueueMachine
from penstock.core.records import Record
from penstock.core.scopes import Principal
from penstock.dialects.courier.operations.outcomes import Body, check_access, check_lease
from penstock.dialects.courier.sessions.answers import RuntimePort


class PullRequest(msgspec.Struct, forbid_unknown_fields=True):
    """`POST /v1/pull`."""

    stream: str
    max: int = 1
    wait_ms: int = 0
    lease_ms: int | None = None
    agent: str | None = None
    """The agent that pulls, for those who ask who holds an envelope."""


def check_pull(machine: QueueMachine, principal: Principal, request: PullRequest) -> int | Refusal:
    """The lease of a pull that may go on."""
    if (refusal := check_access(machine, principal, "subscribe", request.stream)) is not None:
        return refusal
    if not 1 <= request.max <= machine.limits.pull_max:
        return Refusal("InvalidRequest", f"`max` is 1 to {machine.limits.pull_max}", ref="max")
    if not 0 <= request.wait_ms <= machine.limits.pull_wait_max_ms:
        return Refusal("InvalidRequest", f"`wait_ms` is 0 to {machine.limits.pull_wait_max_ms}", ref="wait_ms")
    return check_lease(machine, request.lease_ms)


def to_pull_body(machine: QueueMachine, now: Now, records: list[Record]) -> Body:
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


class PullSession(PeerlessSession):
    """The session of one HTTP pull: it takes one delivery and ends."""

    def __init__(self, runtime: RuntimePort, done: Callable[[Body], None]) -> None:
        super().__init__()
        self._machine = runtime.machine
        self._done = done

    def deliver(self, now: Now, consumer: Consumer, records: list[Record]) -> None:
        self._done(to_pull_body(self._machine, now, records))

    def drain(self, refusal: Refusal) -> None:
        """Close with a reason; the machine has ended the pull without records."""
        if self.closing is None and refusal.kind.close is not None:
            self.closing = (refusal.kind.close, refusal.code)
