"""Copies of the views of all shards, which clients of the front follow.

A view that has followers is read from every shard at intervals, and what differs goes into the view of the front's own machine. From there
it is followed as anywhere: with versions, credit and conflation. A view without followers costs nothing. The first rows come within
`LOOK_S`, later changes within `limits.view_beat_ms`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from penstock.core.queue.views import INFLIGHT, View
from penstock.dialects.courier.sessions.front.lines import shard_of_stream
from penstock.server.engine.runtime import Runtime

LOOK_S = 0.05
"""How often it is checked which views have followers."""


class _Snapshot(msgspec.Struct):
    rows: list[dict[str, msgspec.Raw]]


_decode = msgspec.json.Decoder(_Snapshot).decode
_decode_text = msgspec.json.Decoder(str).decode


def copy_rows(view: View, bodies: dict[int, bytes]) -> None:
    """Bring a view up to date with the snapshots of shards. Rows of shards that did not answer stay."""
    found: dict[str, None] = {}
    for body in bodies.values():
        for row in _decode(body).rows:
            addr, data = _decode_text(row["addr"]), bytes(row[view.member])
            found[addr] = None
            entry = view.rows.get(addr)
            if entry is not None and entry.data == data:
                continue
            if entry is not None or not view.is_full:
                view.put(addr, addr.rpartition("#")[0] if view.name == INFLIGHT else addr, data)
    for entry in list(view.rows.values()):
        if entry.addr not in found and shard_of_stream(entry.stream) in bodies:
            view.remove(entry.addr)


class ViewCopies:
    """Keeps the followed views of a front up to date."""

    def __init__(self, runtime: Runtime, read: Callable[[str], Awaitable[dict[int, bytes]]]) -> None:
        self._runtime = runtime
        runtime.machine.views.is_copy = True
        self._read = read
        """Reads the snapshot of a view from every shard."""

    async def run(self) -> None:
        """Copy at intervals while there are followers."""
        loop = asyncio.get_running_loop()
        due_s: dict[str, float] = {}
        while True:
            followed = set(self._runtime.live.followed)
            due_s = {name: due for name, due in due_s.items() if name in followed}
            for name in followed:
                if loop.time() >= due_s.get(name, 0.0):
                    await self.refresh(name)
                    due_s[name] = loop.time() + self._runtime.machine.limits.view_beat_ms / 1_000
            await asyncio.sleep(LOOK_S)

    async def refresh(self, name: str) -> None:
        """Copy one view now."""
        copy_rows(self._runtime.machine.views.all[name], await self._read(name))
        self._runtime.live.changed(self._runtime.scheduler.now())
