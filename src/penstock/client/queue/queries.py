"""Operations of a client that only read: counters, envelopes, views, triggers."""

# size: the reading half of `Client`, apart to keep both readable

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal

from penstock.client.control.frames import rows_of

PeekState = Literal["ready", "inflight", "delayed", "dead"]


class Queries(ABC):
    """The reading operations of a client."""

    @abstractmethod
    async def query(self, kind: str, /, **fields: object) -> dict[str, Any]:
        """Call a reading operation of Control v1 by its name."""

    async def ping(self) -> None:
        """Make one round trip to the server."""
        await self.query("ping")

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
        """Read envelopes without leasing them: `[{env, state, seq, attempt, …}]`."""
        return rows_of(await self.query("peek", stream=stream, state=state, max=max), "rows")

    async def where(self, id: str) -> list[dict[str, Any]]:  # noqa: A002
        """Every stream that holds an id, or held it last: `[{stream, state, seq, attempt, …}]`."""
        return rows_of(await self.query("where", id=id), "places")

    async def explain(self, stream: str) -> dict[str, Any]:
        """Why a stream delivers, or why it does not."""
        return await self.query("explain", stream=stream)

    async def snapshot(self, view: str, *, addr: str | None = None) -> dict[str, Any]:
        """The rows of a view: `{rows: [{addr, env | row}], watermark, asOf}`."""
        return await self.query("snapshot", view=view, addr=addr)

    async def trigger(self, op: str, /, **fields: Any) -> dict[str, Any]:
        """List or change the server's triggers: `ls`, `show`, `explain`, `put`, `remove`, `try`."""
        return await self.query("trigger", op=op, **fields)
