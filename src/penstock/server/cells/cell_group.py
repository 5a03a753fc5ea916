"""The processes of cells of one server: started, restarted, drained, and asked by the routes of HTTP.

Each process owns some of the shards. The server accepts clients and holds no stream itself.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from penstock.core.errors import PenstockError, Refusal
from penstock.core.placement import SHARDS
from penstock.core.scopes import OPERATOR
from penstock.dialects.courier.operations.merges import MERGES
from penstock.dialects.courier.operations.outcomes import Result
from penstock.dialects.courier.sessions.front.lines import shard_of_stream, shard_of_suffix
from penstock.dialects.courier.wire.envelopes import inbox
from penstock.server.cells.link import CellLink
from penstock.server.cells.messages import CellConfig, CellDrain, CellHello, CellRequest, CellTask, FromCell
from penstock.server.cells.remote_legs import ProcessLegs, RemoteCells
from penstock.server.cells.view_copies import ViewCopies
from penstock.server.config.load import Config
from penstock.server.engine.child_supervisor import AfterExit, Backoff, ChildSupervisor
from penstock.server.engine.runtime import Runtime
from penstock.server.http.request import Request, Route
from penstock.server.http.services import HttpServices
from penstock.server.logging import logs
from penstock.server.metrics import prometheus_families
from penstock.server.metrics.shard_labels import merge_texts
from penstock.transports.http_replies import Reply

MODULE = "penstock.server.cell_process"
SOCKET = "cells.sock"
PATH_MAX = 100
"""Characters of the path of a Unix socket that every system accepts."""
READY_S = 120.0
"""How long the processes may take to recover their shards."""
STOP_S = 5.0
"""How long a process may take to exit after it has drained."""
BACKOFF = Backoff(first_s=0.1, max_s=10.0, stable_s=30.0)

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
    "this route reads or writes one journal, and with `--cells` there are several",
    hint="history is in the table `events`: `penstock sql`, or `GET /v1/lake`",
)


def shards_of(index: int, count: int) -> tuple[int, ...]:
    """The shards of one process of several."""
    return tuple(shard for shard in range(SHARDS) if shard * count // SHARDS == index)


class CellGroup(RemoteCells):
    """The processes of cells."""

    def __init__(self, config: Config, data: Path | None, run_dir: Path, count: int) -> None:
        super().__init__([ProcessLegs(index, shards_of(index, count)) for index in range(count)])
        self._config = config
        self._data = data
        path = run_dir / SOCKET
        self._short = Path(tempfile.mkdtemp(prefix="penstock-")) if len(str(path)) > PATH_MAX else None
        self._path = self._short / SOCKET if self._short is not None else path
        self._secret = secrets.token_hex(32)
        self._server: asyncio.Server | None = None
        self._children = [ChildSupervisor(MODULE) for _ in range(count)]
        self._tasks: list[asyncio.Task[None]] = []
        self._is_ready = False
        self._failed: asyncio.Event = asyncio.Event()

    # Processes

    async def start(self, front: Runtime) -> None:
        """Start every process and wait until all have recovered their shards. `front` holds the clients."""
        loop = asyncio.get_running_loop()
        self._path.unlink(missing_ok=True)
        before = os.umask(0o177)
        try:
            self._server = await loop.create_unix_server(self._accept, str(self._path))
        finally:
            os.umask(before)
        self._tasks = [loop.create_task(self._keep_running(process)) for process in self.processes]
        ready = loop.create_task(self._all_up())
        failed = loop.create_task(self._failed.wait())
        done, _ = await asyncio.wait((ready, failed), timeout=READY_S, return_when=asyncio.FIRST_COMPLETED)
        failed.cancel()
        ready.cancel()
        if ready not in done:
            await self.stop()
            hint = "the lines above say why; `penstock doctor` checks the machine"
            raise PenstockError(Refusal("Unreachable", "a process of cells did not start", hint=hint))
        self._is_ready = True
        self._tasks.append(loop.create_task(ViewCopies(front, self._read_view).run()))

    async def _all_up(self) -> None:
        for process in self.processes:
            await process.is_up.wait()

    async def _keep_running(self, process: ProcessLegs) -> None:
        child = self._children[process.index]

        async def exited(code: int, pause_s: float) -> AfterExit:
            if not self._is_ready:
                self._failed.set()
                return "end"
            shards = list(process.shards)
            logs.warning("cells.exit", process=process.index, code=code, shards=shards, restart_s=pause_s)
            return "back_off"

        def run() -> Coroutine[Any, Any, int]:
            data = None if self._data is None else str(self._data)
            return child.run(CellTask(self._config, data, process.index, process.shards, str(self._path), self._secret))

        await child.keep_running(BACKOFF, run, exited)

    def _accept(self) -> CellLink[FromCell]:
        link: CellLink[FromCell] = CellLink(FromCell)

        def hello(message: FromCell) -> None:
            if not isinstance(message, CellHello) or not 0 <= message.index < len(self.processes):
                link.close()
                return
            if not hmac.compare_digest(message.secret, self._secret):
                logs.warning("cells.stranger", process=message.index)
                link.close()
                return
            process = self.processes[message.index]
            process.attach(link, message.pid)
            logs.event("cells.up", process=process.index, pid=message.pid, shards=list(process.shards))

        link.received = hello
        return link

    def adopt(self, config: Config) -> None:
        """Have every process use a reloaded config."""
        self._config = config
        for process in self.processes:
            process.post(CellConfig(config))

    async def drain(self, within_s: float) -> int:
        """Let every process drain; returns the leases given up."""
        up = [process for process in self.processes if process.link is not None]
        for process in up:
            process.post(CellDrain())
        waits = [asyncio.create_task(process.drained.wait()) for process in up]
        if waits:
            await asyncio.wait(waits, timeout=within_s + STOP_S)
            for wait in waits:
                wait.cancel()
        return sum(process.abandoned for process in up)

    async def stop(self) -> None:
        """End every process."""
        await asyncio.gather(*[child.stop(STOP_S) for child in self._children])
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        if self._server is not None:
            self._server.close()
        self._path.unlink(missing_ok=True)
        if self._short is not None:
            shutil.rmtree(self._short, ignore_errors=True)

    def report(self) -> list[dict[str, Any]]:
        return [
            {
                "process": one.index,
                "pid": one.pid,
                "up": one.link is not None,
                "shards": list(one.shards),
                "restarts": self._children[one.index].restarts,
            }
            for one in self.processes
        ]

    # HTTP

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

    async def _read_view(self, name: str) -> dict[int, bytes]:
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
