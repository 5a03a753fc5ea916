"""Requests for shards from the front: which shard places an HTTP request, and how the answers of all shards become one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from penstock.core.errors import Refusal
from penstock.core.placement import SHARDS
from penstock.core.scopes import OPERATOR
from penstock.dialects.courier.operations.merges import MERGES
from penstock.dialects.courier.operations.outcomes import Result
from penstock.dialects.courier.sessions.front.lines import shard_of_stream, shard_of_suffix
from penstock.dialects.courier.wire.envelopes import inbox
from penstock.server.cells.messages import CellRequest
from penstock.server.cells.remote_legs import RemoteCells
from penstock.server.http.request import Request, Route
from penstock.server.http.services import HttpServices
from penstock.server.metrics import prometheus_families
from penstock.server.metrics.shard_labels import merge_texts
from penstock.transports.http_replies import Reply

_PLACES: dict[str, Callable[[Request], str]] = {
    "enqueue": lambda r: r.body.to,
    "send": lambda r: inbox(r.body.to),
    **dict.fromkeys(("pull", "redrive", "purge", "drop"), lambda r: r.body.stream),
    **dict.fromkeys(("stats", "peek"), lambda r: r.query.stream),
    "explain": lambda r: r.values[0],
    "trigger_try": lambda r: r.body.to,
}
"""The stream that places a request, by the name of its route."""
_OF_ONE_JOURNAL = (
    "journal", "journal_rows", "journal_seal", "journal_readers", "tail", "history",
    "stage_part", "stage_commit", "stage_abort", "stage_last",
)  # fmt: skip
"""Routes of one journal."""
_SEVERAL_JOURNALS = Refusal(
    "Unsupported",
    "this route reads or writes one journal, and with `--cells` or `--join` there are several",
    hint="history is in the table `events`: `penstock sql`, or `GET /v1/lake`",
)


class ShardRequests(RemoteCells):
    """The routes of HTTP over all shards."""

    def handler(self, route: Route) -> Callable[[HttpServices, Request], Any] | None:
        """Who answers a route whose streams are not in this process."""
        if route.name in _PLACES or route.name == "settle":
            return self._at_shard
        if route.name in MERGES:
            return self._at_all
        if route.name == "prometheus":
            return self._prometheus
        return (lambda services, request: _SEVERAL_JOURNALS) if route.name in _OF_ONE_JOURNAL else None

    def _asked(self, request: Request, shard: int) -> CellRequest:
        route, values, parameters = request.route.name, request.values, dict(request.parameters)
        who, data, is_checked = request.principal, request.data, request.is_checked
        return CellRequest(0, shard, route, values, parameters, request.peer, who, data, is_checked)

    def _shard_of(self, request: Request) -> int:
        if request.route.name != "settle":
            return shard_of_stream(request.principal.to_channel(_PLACES[request.route.name](request)))
        lease_id, stream = request.body.lease_id, request.body.stream
        shard = None if lease_id is None else shard_of_suffix(lease_id)
        if shard is None and stream is not None:
            shard = shard_of_stream(request.principal.to_channel(stream))
        return shard or 0

    async def _at_shard(self, services: HttpServices, request: Request) -> Result | Reply | Refusal:
        body = await self.ask(self._asked(request, self._shard_of(request)))
        if isinstance(body, Refusal):
            return body
        # A reply counts as a read: a token that was revoked while it waited gets no envelopes.
        return Reply(200, body) if request.route.name == "pull" else _result(body)

    async def _gather(self, asked: Callable[[int], CellRequest]) -> tuple[list[tuple[int, bytes | Refusal]], list[int]]:
        """What every shard says, and the shards whose process is down."""
        up = [shard for shard in range(SHARDS) if self.by_shard[shard].link is not None]
        answers = await asyncio.gather(*[self.ask(asked(shard)) for shard in up])
        found = [(shard, said) for shard, said in zip(up, answers, strict=True) if not _is_gone(said)]
        there = {shard for shard, _ in found}
        return found, [shard for shard in range(SHARDS) if shard not in there]

    async def _at_all(self, services: HttpServices, request: Request) -> Result | Refusal:
        name = request.route.name
        found, missing = await self._gather(lambda shard: self._asked(request, shard))
        bodies = [said for _, said in found if isinstance(said, bytes)]
        refused = [said for _, said in found if isinstance(said, Refusal)]
        is_change = name in ("trigger_put", "trigger_remove")
        if refused and (is_change or not bodies or not all(one.code == "UnknownEnvelope" for one in refused)):
            return refused[0]
        if not bodies or (missing and is_change):
            return Refusal("Unreachable", f"shards {missing} are down", retry_after_ms=1_000)
        body = MERGES[name](bodies)
        if missing:
            body = msgspec.json.encode({**msgspec.json.decode(body), "missing": missing})
        return _result(body)

    async def read_view(self, name: str) -> dict[int, bytes]:
        found, _ = await self._gather(
            lambda shard: CellRequest(0, shard, "snapshot", (), {"view": name}, "here", OPERATOR, b"", False)
        )
        return {shard: said for shard, said in found if isinstance(said, bytes)}

    async def _prometheus(self, services: HttpServices, request: Request) -> Reply | Refusal:
        assert request.route.handler is not None
        own: Reply = await request.route.handler(services, request)
        found, _ = await self._gather(lambda shard: self._asked(request, shard))
        texts = {shard: said.decode() for shard, said in found if isinstance(said, bytes)}
        return Reply(200, merge_texts(own.body.decode(), texts).encode(), prometheus_families.CONTENT_TYPE)


def _is_gone(said: bytes | Refusal) -> bool:
    return isinstance(said, Refusal) and said.code == "Unreachable"


def _result(body: bytes) -> Result:
    return Result(lambda: msgspec.Raw(body))  # type: ignore[arg-type,return-value]  # JSON that is encoded already
