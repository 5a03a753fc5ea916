"""Read-only operations on streams: stats, metrics, peek, where and explain.

Each checks the shape and the scope, asks the machine, and translates channel names back into the caller's stream names. None changes state.

Surveys are reads over all streams, done a few streams a turn so that they do not block the loop: the runtime calls `step` once a turn until
it returns true; then `body` has the answer. Each stream is read at one instant, but not all at the same instant: a stream that is created
meanwhile may be missing. With few streams one step is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import msgspec

from penstock.core.clock import Now, rfc3339
from penstock.core.errors import Refusal
from penstock.core.queue.channel import Channel
from penstock.core.queue.inspect import place
from penstock.core.queue.machine import QueueMachine
from penstock.core.scopes import Principal
from penstock.core.tenants import dead_name
from penstock.dialects.courier.operations.outcomes import Body, Outcome, Result, as_known, check_access, forbidden


def readable(machine: QueueMachine, now: Now, principal: Principal, stream: str) -> Channel | Refusal:
    """The channel of a stream that exists and that the caller may read."""
    if (refusal := check_access(machine, principal, "read", stream)) is not None:
        return refusal
    channel = machine.find(principal.to_channel(stream))
    if isinstance(channel, Refusal):
        return as_known(principal, principal.to_channel(stream), channel)
    machine.rest(channel, now)
    return channel


def _stats(machine: QueueMachine, now: Now, channel: Channel) -> Body:
    row = machine.stats(now, channel)
    row["lastTs"] = rfc3339(row["lastTs"]) if row["lastTs"] else None
    return row


def stats(machine: QueueMachine, now: Now, principal: Principal, stream: str) -> Outcome:
    channel = readable(machine, now, principal, stream)
    return channel if isinstance(channel, Refusal) else Result(_stats(machine, now, channel))


def metrics_of(machine: QueueMachine, now: Now, principal: Principal, names: Sequence[str]) -> list[Body]:
    """The metrics of those streams that are in memory and that the caller may read."""
    return [
        {**stream_metrics(machine, now, channel), "id": principal.from_channel(name)}
        for name in names
        if (channel := machine.channels.get(name)) is not None and principal.allows("read", name)
    ]


_LATENCIES = {"q.lat.p50": "latP50", "q.lat.p95": "latP95", "q.lat.p99": "latP99", "q.oldestMs": "oldestMs"}
"""Metrics that are copied from the stats, by their name there."""


def stream_metrics(machine: QueueMachine, now: Now, channel: Channel) -> Body:
    """Stats and counters of one stream."""
    stats = _stats(machine, now, channel)
    figures = {name: stats[key] for name, key in _LATENCIES.items()}
    return {"id": channel.name, "stats": stats, "q": {**machine.metrics(now, channel), **figures}}


class PeekRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Which envelopes of a stream to look at."""

    stream: str
    state: str = "ready"
    max: int = 10
    after: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """Only envelopes with a greater sequence number, in that order; 0 begins with the first."""


PEEK_STATES = ("ready", "inflight", "delayed", "dead")
PEEK_BYTES = 1024 * 1024
"""Bytes of envelopes after which the answer to a peek ends; it has at least one."""


def peek(machine: QueueMachine, now: Now, principal: Principal, asked: PeekRequest) -> Outcome:
    """Read envelopes without leasing them: fewer than `max` when they are large. With `after`, the answer names the next page."""
    state, limit = asked.state, asked.max
    if state not in PEEK_STATES:
        return Refusal("InvalidRequest", f"`state` is one of {', '.join(PEEK_STATES)}", ref="state")
    if not 1 <= limit <= machine.limits.pull_max:
        return Refusal("InvalidRequest", f"`max` is 1 to {machine.limits.pull_max}", ref="max")
    channel = readable(machine, now, principal, asked.stream)
    if isinstance(channel, Refusal):
        return channel
    if state == "dead" and (refusal := forbidden(principal, "read", dead_name(channel.name))) is not None:
        return refusal
    rows: list[Body] = []
    size = 0
    records = machine.peek(now, channel, state, limit + 1, asked.after)
    for record in records[:limit]:
        size += len(record.body)
        if rows and size > PEEK_BYTES:
            break
        rows.append({"env": msgspec.Raw(record.body), **place(machine, now, record)})
    answer: Body = {"rows": _renamed(principal, rows)}
    if asked.after is not None:  # clients of earlier versions know only the rows
        answer["next"] = records[len(rows) - 1].seq if len(rows) < len(records) else None
    return Result(answer)


def _renamed(principal: Principal, rows: list[Body]) -> list[Body]:
    """Translate the channels of rows into the caller's stream names."""
    if principal.tenant is not None:
        for row in rows:
            row["stream"] = principal.from_channel(row["stream"])
    return rows


def where(machine: QueueMachine, now: Now, principal: Principal, id_: str) -> Outcome:
    """Every place where an envelope is, or was."""
    return places(principal, id_, machine.where(now, id_))


def places(principal: Principal, id_: str, rows: list[Body]) -> Result | Refusal:
    """The rows of an id that the caller may read; settled ones last."""
    found = [row for row in rows if principal.allows("read", row["stream"])]
    if not found:
        return Refusal("UnknownEnvelope", f"no envelope `{id_}` is known", ref=id_)
    found.sort(key=lambda row: row["state"] == "settled")
    return Result({"id": id_, "places": _renamed(principal, found)})


def explain(machine: QueueMachine, now: Now, principal: Principal, stream: str) -> Outcome:
    channel = readable(machine, now, principal, stream)
    if isinstance(channel, Refusal):
        return channel
    return Result({**machine.explain(now, channel), "stream": stream})


STREAMS_A_TURN = 200
"""Streams that one turn reads: a few milliseconds of work."""

_encode = msgspec.json.encode


class MetricsSurvey:
    """The metrics of every stream the caller may read."""

    def __init__(self, machine: QueueMachine, principal: Principal) -> None:
        self._machine = machine
        self._principal = principal
        self._names = Slices(lambda: list(machine.channels))
        self._parts = [b'{"streams":[']

    def step(self, now: Now) -> bool:
        found = metrics_of(self._machine, now, self._principal, self._names.take())
        if found:
            rows = _encode(found)[1:-1]  # encoded at once: the bytes take a fifth of the memory
            self._parts += [rows] if len(self._parts) == 1 else [b",", rows]
        return self._names.is_over

    def body(self) -> bytes:
        """The answer as JSON, copied once: with very many streams it is large."""
        return b"".join([*self._parts, b"]}"])


class WhereSurvey:
    """Every place where an envelope is, or was."""

    def __init__(self, machine: QueueMachine, principal: Principal, id_: str) -> None:
        self._machine = machine
        self._principal = principal
        self._id = id_
        self._names = Slices(lambda: [*machine.channels, *machine.dormant])
        self._rows: list[Body] = []

    def step(self, now: Now) -> bool:
        self._rows += self._machine.where(now, self._id, self._names.take())
        return self._names.is_over

    def body(self) -> bytes | Refusal:
        found = places(self._principal, self._id, self._rows)
        return _encode(found.value()) if isinstance(found, Result) else found


class Slices(msgspec.Struct, eq=False):
    """Names in slices. They are listed when the first slice is taken, so a survey that waits uses no memory."""

    _list: Callable[[], list[str]]
    _names: list[str] = []
    _next: int = 0

    def take(self) -> list[str]:
        if self._next == 0:
            self._names = self._list()
        first, self._next = self._next, self._next + STREAMS_A_TURN
        return self._names[first : self._next]

    @property
    def is_over(self) -> bool:
        return self._next >= len(self._names)
