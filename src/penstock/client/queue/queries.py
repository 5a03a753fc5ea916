"""What a client may look at without taking anything: figures, envelopes, views, rules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal

from penstock.client.control.frames import rows_of

PeekState = Literal["ready", "inflight", "delayed", "dead"]


class Queries(ABC):
    """The reading half of a client."""

    @abstractmethod
    async def query(self, kind: str, /, **fields: object) -> dict[str, Any]:
        """An operation of Control v1 that reads, by its name."""

    async def stats(self, stream: str) -> dict[str, Any]:
        """Depth, rates, latencies and counters of one stream."""
        return await self.query("stats", stream=stream)

    async def metrics(self) -> list[dict[str, Any]]:
        """The stats of every stream: `[{id, stats, q}]`."""
        return rows_of(await self.query("metrics"), "streams")

    async def peek(
        self,
        stream: str,
        *,
        state: PeekState = "ready",
        max: int = 10,  # noqa: A002
    ) -> list[dict[str, Any]]:
        """Look at envelopes without taking them: `[{env, state, seq, attempt, …}]`."""
        return rows_of(await self.query("peek", stream=stream, state=state, max=max), "rows")

    async def where(self, id: str) -> list[dict[str, Any]]:  # noqa: A002
        """Every place where an id is, or was last seen: `[{stream, state, seq, attempt, …}]`."""
        return rows_of(await self.query("where", id=id), "places")

    async def explain(self, stream: str) -> dict[str, Any]:
        """Why a stream flows, or does not."""
        return await self.query("explain", stream=stream)

    async def snapshot(self, view: str, *, addr: str | None = None) -> dict[str, Any]:
        """The rows of a view: `{rows: [{addr, env | row}], watermark, asOf}`."""
        return await self.query("snapshot", view=view, addr=addr)

    async def trigger(self, op: str, /, **fields: Any) -> dict[str, Any]:
        """Look at the server's triggers or change them: `ls`, `show`, `explain`, `put`, `remove`, `try`."""
        return await self.query("trigger", op=op, **fields)
