"""Views for readers: who sees which rows, the views that are computed on demand, and snapshots.

A reader needs `views:<name>:read` and sees a row only if it may read or subscribe to the stream of the row; otherwise a view would disclose
every inbox. The machine maintains `latestPerAgent`. `inflight` and `metrics:streams` are compared with the machine on each read, and
periodically while they have followers.
"""

from __future__ import annotations

from itertools import islice
from typing import Annotated, TypeAlias

import msgspec

from penstock.core.clock import Now, rfc3339
from penstock.core.errors import Refusal
from penstock.core.patterns import Glob
from penstock.core.queue.machine import QueueMachine
from penstock.core.queue.views import View, ViewChange, ViewEntry
from penstock.core.scopes import Principal
from penstock.core.tenants import prefix_of
from penstock.dialects.courier.operations import queries
from penstock.dialects.courier.operations.outcomes import Outcome, Result
from penstock.dialects.courier.wire.envelopes import flat

SLICE = 500
"""Streams that one refresh step reads. Each costs about 15 us, during which the loop is blocked."""
_encode = msgspec.json.encode
_ROW_STARTS = (b'{"stream":', b'{"id":')
"""The bytes before the stream name in the computed rows of `inflight` and `metrics:streams`."""

Version: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class SnapshotQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The query of `/v1/snapshot`."""

    view: str
    addr: str | None = None
    """Only rows whose address or stream matches this pattern."""


class Sight(msgspec.Struct, frozen=True, cache_hash=True):
    """Which rows a reader sees. Readers with equal sights see equal bytes, so these are encoded once."""

    reader: Principal | None
    """Whose scopes decide; None sees every stream."""
    glob: Glob | None

    def from_channel(self, addr: str) -> str:
        """The row's address in the reader's names."""
        return addr if self.reader is None else self.reader.from_channel(addr)

    def written(self, view: View, data: bytes) -> bytes:
        """A row's content in one line. A computed row begins with its stream, which is translated into the reader's name."""
        if self.reader is not None and self.reader.tenant is not None and view.member == "row":
            prefix = _encode(prefix_of(self.reader.tenant))[:-1]
            start, found, rest = data.partition(prefix)
            if found and start in _ROW_STARTS:
                data = start + b'"' + rest
        return flat(data)

    def sees(self, row: ViewEntry | ViewChange) -> bool:
        stream = row.stream
        glob = self.glob
        if glob is not None and not (
            glob.matches(self.from_channel(row.addr)) or glob.matches(self.from_channel(stream))
        ):
            return False
        reader = self.reader
        return reader is None or reader.allows("read", stream) or reader.allows("subscribe", stream)


def find(machine: QueueMachine, principal: Principal, name: str) -> View | Refusal:
    """A view that exists and that the caller may read."""
    view = machine.views.find(name)
    if isinstance(view, Refusal) or principal.allows_view("read", view.name):
        return view
    scope = f"views:{view.name}:read"
    return Refusal("Forbidden", f"`{principal.name}` has no scope `{scope}`", ref=scope)


def sight(machine: QueueMachine, principal: Principal, addr: str | None) -> Sight | Refusal:
    """The sight of a reader, limited to the addresses it asks for."""
    if addr is not None and not 0 < len(addr) <= machine.limits.name_max:
        return Refusal("InvalidRequest", f"`addr` has 1 to {machine.limits.name_max} characters", ref="addr")
    return seen_by(principal, None if addr is None else Glob.parse(addr))


def seen_by(principal: Principal, glob: Glob | None) -> Sight:
    """The sight of a reader, limited to the addresses that match."""
    sees_all = any(scope.kind == "admin" for scope in principal.scopes)
    reader = None if sees_all else Principal("", scopes=principal.scopes, tenant=principal.tenant)
    return Sight(reader, glob)


def is_made(machine: QueueMachine, view: View) -> bool:
    """Whether the rows of a view are computed on demand."""
    return view is not machine.views.latest and not machine.views.is_copy


def refresh(machine: QueueMachine, now: Now, view: View) -> None:
    """Bring a computed view up to date, all of it."""
    if not is_made(machine, view):
        return
    if view is machine.views.inflight:
        _refresh_inflight(machine, now, view)
    else:
        view.todo = _names(machine, view)
        _refresh_streams(machine, now, view, len(view.todo))


def refresh_step(machine: QueueMachine, now: Now, view: View) -> None:
    """`refresh` for followers, limited to what one turn may cost."""
    if view is machine.views.streams:
        view.todo = view.todo or _names(machine, view)
        _refresh_streams(machine, now, view, SLICE)
    else:
        refresh(machine, now, view)


def _refresh_inflight(machine: QueueMachine, now: Now, view: View) -> None:
    held: dict[str, None] = {}
    leases = (record for consumer in machine.consumers.values() for record in consumer.leases.values())
    for record in islice(leases, machine.limits.view_rows_max):
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
            "agent": record.holder.link.who,
            "peer": record.holder.link.peer or None,
            "leaseExpiresAt": (now.wall_us + record.deadline_us - now.us) // 1000,
        }
        view.put(addr, stream, _encode(row), mark)
    for addr in [addr for addr in view.rows if addr not in held]:
        view.remove(addr)


def _names(machine: QueueMachine, view: View) -> list[str]:
    """The streams of the next round: those that exist, and those that only have a row left."""
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


def snapshot(machine: QueueMachine, now: Now, principal: Principal, name: str, addr: str | None = None) -> Outcome:
    """The rows of a view and its version."""
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
