"""Operations of a client that are one request each: look at streams and envelopes, settle by id, move or drop what waits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Raw

from penstock.client.control.frames import Settled, head
from penstock.core.errors import PenstockError, Refusal
from penstock.core.tenants import is_dead
from penstock.dialects.courier.wire import answers

_ONCE = ("redrive", "purge", "drop")
"""Operations that are not repeated after a lost connection: they may have been done."""
SettleOp = Literal["ack", "nack", "release", "term", "extend"]
PeekState = Literal["ready", "inflight", "delayed", "dead"]
R = TypeVar("R")


class Queries(ABC):
    """The operations of a client that are one request each."""

    @abstractmethod
    async def _answer(self, body: bytes, *, is_repeatable: bool) -> Raw:
        """Send a frame and wait for its result."""

    async def ping(self) -> None:
        """Make one round trip to the server."""
        await self._ask(dict[str, Any], "ping")

    async def stats(self, stream: str) -> answers.Stats:
        """Depth, rates, latencies and counters of one stream."""
        return await self._ask(answers.Stats, "stats", stream=stream)

    async def streams(self) -> list[answers.StreamMetrics]:
        """The stats and counters of every stream that you may read."""
        return (await self._ask(dict[str, list[answers.StreamMetrics]], "metrics"))["streams"]

    async def peek(self, stream: str, *, state: PeekState = "ready", max: int = 10) -> list[answers.PeekedRow]:  # noqa: A002
        """Read envelopes without leasing them; `state="dead"` reads the dead letters of the stream."""
        rows = await self._ask(dict[str, list[answers.PeekedRow]], "peek", stream=stream, state=state, max=max)
        return rows["rows"]

    async def where(self, id: str) -> list[answers.Place]:  # noqa: A002
        """Every stream that holds an id, or held it last. Raises `NotFound` if none does."""
        return (await self._ask(_Places, "where", id=id)).places

    async def explain(self, stream: str) -> answers.Explained:
        """Why a stream delivers, or why it does not."""
        return await self._ask(answers.Explained, "explain", stream=stream)

    async def settle(
        self,
        id: str,  # noqa: A002
        op: SettleOp = "ack",
        *,
        lease_id: str | None = None,
        stream: str | None = None,
        delay_ms: int | None = None,
        reason: str | None = None,
        ms: int | None = None,
        backoff: bool = False,
    ) -> Settled:
        """Settle a pulled delivery by its id, together with its lease or its stream. Raises `LeaseLost` when the lease has ended.

        With `backoff` a nack waits from the first failure on, as the `retry` of the stream says.
        """
        fields = {"leaseId": lease_id, "stream": stream, "delayMs": delay_ms, "reason": reason, "ms": ms}
        return await self._ask(Settled, "settle", id=id, op=op, backoff=backoff or None, **fields)

    async def redrive(
        self,
        stream: str | None = None,
        *,
        id: str | None = None,  # noqa: A002
        max: int | None = None,  # noqa: A002
    ) -> answers.Redriven:
        """Move the dead letters of a stream back into it, at most `max`; with `id` only this one, of whatever stream."""
        if stream is None:
            stream = await self._stream_of(id, is_dead_letter=True)
        ids = None if id is None else [id]
        return await self._ask(answers.Redriven, "redrive", stream=stream, max=max, ids=ids)

    async def purge(self, stream: str) -> answers.Purged:
        """Drop every envelope that waits in a stream; leased ones stay. Needs the scope `admin` on the stream."""
        return await self._ask(answers.Purged, "purge", stream=stream)

    async def drop(self, id: str, *, stream: str | None = None) -> answers.Dropped:  # noqa: A002
        """Drop one envelope that waits, or one dead letter. Needs the scope `admin` on its stream."""
        if stream is None:
            stream = await self._stream_of(id)
        return await self._ask(answers.Dropped, "drop", stream=stream, ids=[id])

    async def snapshot(self, view: str, *, addr: str | None = None) -> dict[str, Any]:
        """The rows of a view: `{rows: [{addr, env | row}], watermark, asOf}`."""
        return await self._ask(dict[str, Any], "snapshot", view=view, addr=addr)

    async def trigger(self, op: str, /, **fields: Any) -> dict[str, Any]:
        """List or change the server's triggers: `ls`, `show`, `explain`, `put`, `remove`, `try`."""
        return await self._ask(dict[str, Any], "trigger", op=op, **fields)

    async def schemas(self) -> list[dict[str, Any]]:
        """The payload schemas of the server: `[{name, versions}]`."""
        return (await self._ask(dict[str, list[dict[str, Any]]], "schema.list"))["schemas"]

    async def validate(self, envelope: Mapping[str, Any]) -> dict[str, Any]:
        """Check an envelope against the schema that it names, without sending it: `{ok, finding, message, problems}`."""
        return await self._ask(dict[str, Any], "schema.validate", env=envelope)

    async def _ask(self, answer: type[R], kind: str, /, **fields: object) -> R:
        result = await self._answer(head(kind, **fields), is_repeatable=kind not in _ONCE)
        try:
            return msgspec.json.decode(result, type=answer)
        except msgspec.ValidationError as error:
            message = f"the answer to `{kind}` cannot be read: {error}"
            hint = "server and client differ in their version"
            raise PenstockError(Refusal("Unsupported", message, hint=hint)) from None

    async def _stream_of(self, id_: str | None, *, is_dead_letter: bool = False) -> str:
        """The only stream in which an envelope is, or in which it is a dead letter."""
        if id_ is None:
            hint = "name the stream, or one dead letter by its id: `--id` on the command line, `id=…` in Python"
            raise PenstockError(Refusal("InvalidRequest", "give a stream or an id", hint=hint))
        found = [place.stream for place in await self.where(id_) if place.state != "settled"]
        if is_dead_letter:
            found = list(filter(is_dead, found))
        if not found:
            what = "is no dead letter" if is_dead_letter else "is settled in every stream that held it"
            raise PenstockError(Refusal("UnknownEnvelope", f"`{id_}` {what}", ref=id_))
        if len(found) > 1:
            message = f"`{id_}` is in {' and '.join(f'`{stream}`' for stream in found)}"
            raise PenstockError(Refusal("InvalidRequest", message, ref=id_, hint="name the stream as well"))
        return found[0]


class _Places(msgspec.Struct):
    places: list[answers.Place]
