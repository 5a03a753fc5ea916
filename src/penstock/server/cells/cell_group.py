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
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.core.errors import PenstockError, Refusal
from penstock.core.health import PartHealth
from penstock.core.placement import SHARDS
from penstock.server.cells.link import CellLink
from penstock.server.cells.messages import CellConfig, CellDrain, CellHello, CellTask, FromCell
from penstock.server.cells.remote_legs import ProcessLegs
from penstock.server.cells.shard_requests import ShardRequests
from penstock.server.cells.view_copies import ViewCopies
from penstock.server.config.load import Config
from penstock.server.engine.child_supervisor import AfterExit, Backoff, ChildSupervisor
from penstock.server.engine.runtime import Runtime
from penstock.server.logging import logs

MODULE = "penstock.server.cell_process"
SOCKET = "cells.sock"
PATH_MAX = 100
"""Characters of the path of a Unix socket that every system accepts."""
READY_S = 120.0
"""How long the processes may take to recover their shards."""
STOP_S = 5.0
"""How long a process may take to exit after it has drained."""
BACKOFF = Backoff(first_s=0.1, max_s=10.0, stable_s=30.0)


def shards_of(index: int, count: int) -> tuple[int, ...]:
    """The shards of one process of several."""
    return tuple(shard for shard in range(SHARDS) if shard * count // SHARDS == index)


class CellGroup(ShardRequests):
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
        self._tasks.append(loop.create_task(ViewCopies(front, self.read_view).run()))

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
            if not hmac.compare_digest(message.secret.encode(), self._secret.encode()):
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

    @property
    def about(self) -> str:
        return f"{SHARDS} shards in {len(self.processes)} processes"

    def listens(self, http: str, control: str | None) -> None:
        """Only clients want to know, and they do."""

    def finding(self) -> PartHealth:
        down = [process for process in self.processes if process.link is None]
        lost = sorted(shard for process in down for shard in process.shards)
        note = f"shards {lost} are down; their processes are being restarted" if down else "every process is up"
        return PartHealth("degraded" if down else "ok", note)

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
