"""Looking at views: who may see which rows, the rows that are made on demand, and the snapshot that HTTP and Control v1 share.

A reader needs `views:<name>:read`, and sees a row only when it may read or subscribe to the stream that the row tells about:
else a view would show every inbox to everybody. `latestPerAgent` is kept by the machine; `inflight` and `metrics:streams` are
compared with the machine when somebody looks, and now and then while somebody follows.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Annotated, TypeAlias

import msgspec

from penstock.core.clock import Now, rfc3339
from penstock.core.errors import Refusal
from penstock.core.patterns import Glob
from penstock.core.queue.machine import QueueMachine
from penstock.core.queue.views import Change, Entry, View
from penstock.core.records import Record
from penstock.core.scopes import Principal
from penstock.core.tenants import prefix_of
from penstock.dialects.courier.operations import queries
from penstock.dialects.courier.operations.outcomes import Outcome, Result
from penstock.dialects.courier.wire.envelopes import flat

SLICE = 500
"""Streams that one beat looks at: their figures cost about 15 us each, and everybody else waits meanwhile."""
_encode = msgspec.json.encode
_ROW_STARTS = (b'{"stream":', b'{"id":')
"""What stands before the stream's name in rows that we make: of `inflight`, and of `metrics:streams`."""

Version: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class SnapshotQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The query of `/v1/snapshot`."""

    view: str
    addr: str | None = None
    """Only rows whose address or stream fits this pattern."""


class Sight(msgspec.Struct, frozen=True, cache_hash=True):
    """Which rows a reader sees. Equal ones see the same, so what is written for one serves all of them."""

    reader: Principal | None
    """Whose scopes decide; None sees every stream."""
    glob: Glob | None

    def from_channel(self, addr: str) -> str:
        """What the reader calls a row."""
        return addr if self.reader is None else self.reader.from_channel(addr)

    def written(self, view: View, data: bytes) -> bytes:
        """A row's content in one line; one that we made begins with its stream, which is called what the reader calls it."""
        if self.reader is not None and self.reader.tenant is not None and view.member == "row":
            prefix = _encode(prefix_of(self.reader.tenant))[:-1]
            start, found, rest = data.partition(prefix)
            if found and start in _ROW_STARTS:
                data = start + b'"' + rest
        return flat(data)

    def sees(self, row: Entry | Change) -> bool:
        stream = row.stream
        glob = self.glob
        if glob is not None and not (
            glob.matches(self.from_channel(row.addr)) or glob.matches(self.from_channel(stream))
        ):
            return False
        reader = self.reader
        return reader is None or reader.allows("read", stream) or reader.allows("subscribe", stream)


def find(machine: QueueMachine, principal: Principal, name: str) -> View | Refusal:
    """A view that exists and that the caller may look at."""
    view = machine.views.find(name)
    if isinstance(view, Refusal) or principal.allows_view("read", view.name):
        return view
    scope = f"views:{view.name}:read"
    return Refusal("Forbidden", f"`{principal.name}` has no scope `{scope}`", ref=scope)


def sight(machine: QueueMachine, principal: Principal, addr: str | None) -> Sight | Refusal:
    """What a reader sees of a view, all of it or the addresses it asks for."""
    if addr is not None and not 0 < len(addr) <= machine.limits.name_max:
        return Refusal("InvalidRequest", f"`addr` has 1 to {machine.limits.name_max} characters", ref="addr")
    return seen_by(principal, None if addr is None else Glob.parse(addr))


def seen_by(principal: Principal, glob: Glob | None) -> Sight:
    """What a reader sees of the addresses that fit."""
    sees_all = any(scope.kind == "admin" for scope in principal.scopes)
    reader = None if sees_all else Principal("", scopes=principal.scopes, tenant=principal.tenant)
    return Sight(reader, glob)


def is_made(machine: QueueMachine, view: View) -> bool:
    """Whether a view's rows are made on demand."""
    return view is not machine.views.latest


def refresh(machine: QueueMachine, now: Now, view: View) -> None:
    """Compare a view that is made on demand with the machine, all of it."""
    if view is machine.views.inflight:
        _refresh_inflight(machine, now, view)
    elif view is machine.views.streams:
        view.todo = _names(machine, view)
        _refresh_streams(machine, now, view, len(view.todo))


def beat(machine: QueueMachine, now: Now, view: View) -> None:
    """`refresh` for followers: as much of it as one beat may cost."""
    if view is machine.views.streams:
        view.todo = view.todo or _names(machine, view)
        _refresh_streams(machine, now, view, SLICE)
    else:
        refresh(machine, now, view)


def _refresh_inflight(machine: QueueMachine, now: Now, view: View) -> None:
    held: dict[str, None] = {}
    for record in islice(_leases(machine), machine.limits.view_rows_max):
        stream = record.channel.name
        addr = f"{stream}#{record.seq}"
        held[addr] = None
        entry = view.rows.get(addr)
        mark = (record.lease, record.deadline_us)
        if entry is not None and entry.mark == mark:
            continue
        if entry is None and view.is_full:
            continue
        assert record.holder is not None
        row = {
            "stream": stream,
            "id": record.id,
            "seq": record.seq,
            "attempt": record.attempt,
            "holder": record.holder.holder_name,
            "leaseExpiresAt": (now.wall_us + record.deadline_us - now.us) // 1000,
        }
        view.put(addr, stream, _encode(row), mark)
    for addr in [addr for addr in view.rows if addr not in held]:
        view.remove(addr)


def _leases(machine: QueueMachine) -> Iterator[Record]:
    for consumer in machine.consumers.values():
        yield from consumer.leases.values()


def _names(machine: QueueMachine, view: View) -> list[str]:
    """The streams of the next round: those that are there, and those of which a row is left."""
    names = list(islice(machine.channels, machine.limits.view_rows_max))
    return names + [name for name in view.rows if name not in machine.channels]


def _refresh_streams(machine: QueueMachine, now: Now, view: View, count: int) -> None:
    names = view.todo[:count]
    del view.todo[:count]
    for name in names:
        channel = machine.channels.get(name)
        entry = view.rows.get(name)
        if channel is None:
            if entry is not None:
                view.remove(name)
            continue
        if entry is None and view.is_full:
            continue
        data = _encode(queries.stream_metrics(machine, now, channel))
        if entry is None or entry.data != data:
            view.put(name, name, data)


def snapshot(
    machine: QueueMachine, now: Now, principal: Principal, name: str, addr: str | None = None
) -> Outcome:
    """The rows of a view, and the version they are of."""
    view = find(machine, principal, name)
    if isinstance(view, Refusal):
        return view
    seen = sight(machine, principal, addr)
    if isinstance(seen, Refusal):
        return seen
    refresh(machine, now, view)
    rows = [
        {"addr": seen.from_channel(entry.addr), view.member: msgspec.Raw(seen.written(view, entry.data))}
        for entry in view.rows.values()
        if seen.sees(entry)
    ]
    return Result({"rows": rows, "watermark": view.version, "asOf": rfc3339(now.wall_us)})
