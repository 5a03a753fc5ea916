"""One shard at a node: its spool, its part in the log, and while this node owns it, the cell that serves it.

A shard follows its log until it may take it over, recovers a cell from the spool on a thread, and serves. Without its lease it lets
nothing out (`Gate`); without it for `CUT_S` its clients are cut off, and another node may serve them. A shard that is lost ends its cell.
One that is behind begins again at a live file; one whose log is damaged halts until it is repaired.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from penstock.core.queue.machine import QueueMachine
from penstock.journal.replicated.membership import ShardSettings
from penstock.journal.replicated.replicated_journal import MOVED
from penstock.server.cell import Cell
from penstock.server.cells.cell_requests import CellServices
from penstock.server.cells.hosted_link import HostedLink
from penstock.server.cluster.channels import Gate
from penstock.server.cluster.log_copy import LogCopy, boot_us, unsealed
from penstock.server.cluster.nats_client import end_tasks
from penstock.server.cluster.shard_history import ShardHistory
from penstock.server.config.load import Config, quotas, rates
from penstock.server.engine.connections import Timer
from penstock.server.engine.machines import Machines
from penstock.server.engine.schedulers import LoopScheduler
from penstock.server.journal.seal_process import shard_config
from penstock.server.logging import logs
from penstock.server.open_cell import adopt_config, configured_machine, open_shard

if TYPE_CHECKING:
    from penstock.server.cluster.node import ClusterNode

CUT_S = 5.0
"""How long clients of a suspended shard wait before they are cut off."""
FLUSH_S = 2.0
"""How long a shard that moves may take to answer what it has taken; then it stays."""
STAY_S = 10.0
"""How long a shard that could not move stays before the next planned move."""
LEAVE_AGAIN_S = 1.0
"""The same at a node that ends."""
SUSPENDED = "its lease is over: the NATS servers do not keep its frames"


class _NoTimer:
    def cancel(self) -> None:
        """There is nothing to cancel."""


class CellScheduler:
    """The scheduler of one cell: what it has scheduled ends with it."""

    def __init__(self, scheduler: LoopScheduler) -> None:
        self._scheduler = scheduler
        self.is_over = False
        self.now = scheduler.now

    def soon(self, call: Callable[[], None]) -> object:
        return None if self.is_over else self._scheduler.soon(partial(self._run, call))

    def at(self, us: int, call: Callable[[], None]) -> Timer:
        return _NoTimer() if self.is_over else self._scheduler.at(us, partial(self._run, call))

    def _run(self, call: Callable[[], None]) -> None:
        if not self.is_over:
            call()


class ClusterShard(LogCopy):
    """One shard at this node."""

    def __init__(self, node: ClusterNode, shard: int, settings: ShardSettings) -> None:
        super().__init__(node, shard, settings)
        self.cell: Cell | None = None
        self.services: CellServices | None = None
        self._scheduler: CellScheduler
        self._gates: list[Gate] = []
        self._is_moving = False
        self._stayed_s = -math.inf
        """When it last could not move, by the clock of the loop."""
        self._suspended_s: float | None = None
        self.takeovers = 0
        self.history = ShardHistory(node, self)

    async def prepare(self) -> None:
        await super().prepare()
        await self.on_thread(self.history.place)
        self._start(self.history.run)

    # Ownership

    def look(self) -> None:
        """Bring the report up to date, and do what is due: called some times a second."""
        journal = self.journal
        if journal is None or self.report.state in ("halted", "behind"):
            return
        state, reason = self.report.state, ""
        if state in ("following", "taking"):
            state = "taking" if journal.ownership.state == "taking" else "following"
            reason = self.report.reason  # what is wrong with the spool holds until it is open again
        if self.cell is not None:
            reason = self._look_at_lease()
        self._note(state, reason)

    def _look_at_lease(self) -> str:
        if self.may_serve:
            self._suspended_s = None
            for gate in self._gates:
                gate.flush()
            return ""
        now_s = self._loop.time()
        if self._suspended_s is None:
            self._suspended_s = now_s
            logs.warning("cluster.suspended", shard=self.shard)
        elif now_s - self._suspended_s >= CUT_S and self._gates:
            self._cut()
        return SUSPENDED

    def _cut(self) -> None:
        """Cut off the clients of this shard: another node may serve them, or this one later."""
        gates, self._gates = self._gates, []
        for gate in gates:
            gate.end()
            gate.hosted.close()

    def _owned(self, life: int) -> None:
        if life != self._life or self.is_closed:
            return
        self.takeovers += 1
        self._note("recovering")
        self._start(partial(self._recover, life))

    async def _recover(self, life: int) -> None:
        """Build the cell from the spool. The lease goes on meanwhile."""
        journal = self.journal
        assert journal is not None
        config = self._config
        began_s = time.monotonic()

        def rebuild() -> QueueMachine:
            machine = configured_machine(config)
            machine.limit_rates(rates(config))
            machine.tenants.quota_for = quotas(config)
            machines, now = Machines(machine), self._node.scheduler.now()
            with unsealed(self.disk.directory):
                for is_state, row in journal.rows():
                    (machines.resume if is_state else machines.restore)(now, row)
            machines.recovered(now)
            return machine

        machine = await self.on_thread(rebuild)
        if life != self._life or journal.ownership.state != "owning":
            return
        self._scheduler = CellScheduler(self._node.scheduler)
        self.cell, self.services = open_shard(self.shard, config, None, self._scheduler, (machine, journal))
        self.cell.runtime.schedule_turn()
        self._suspended_s = None
        self._note("owning")
        took_s = round(time.monotonic() - began_s, 3)
        logs.event(
            "cluster.owned", shard=self.shard, epoch=self.report.epoch, envelopes=machine.live, recovery_s=took_s
        )

    def _ended(self, life: int, reason: str) -> None:
        """This node does not own the shard any more, or cannot follow it."""
        if life != self._life or self.is_closed:
            return
        journal = self.journal
        assert journal is not None
        self._close_cell()
        state = journal.ownership.state
        if state == "halted":
            logs.error("cluster.halted", shard=self.shard, code="JOURNAL_REWOUND", reason=reason)
            self._note("halted", reason)
        elif state == "behind":
            self._note("behind", reason)
            self._start(partial(self._reach_live_file, life, journal))
        elif reason == MOVED:
            logs.event("cluster.moved", shard=self.shard, epoch=journal.ownership.reader.end.epoch)
            self._note("following")
        else:
            logs.error("cluster.spool", shard=self.shard, reason=reason)
            self._note("following", reason)
            self._start(self._open_again)

    # The cell

    @property
    def _config(self) -> Config:
        return shard_config(self._node.config, self._node.data)

    @property
    def is_open(self) -> bool:
        return self.cell is not None and not self._is_moving and self.may_serve

    @property
    def may_serve(self) -> bool:
        return self.journal is not None and self.journal.ownership.may_serve(boot_us())

    @property
    def lease_age_s(self) -> float:
        """How long ago the newest kept frame was sent."""
        proven_us = None if self.journal is None else self.journal.ownership.writer.proven_us
        return 0.0 if proven_us is None else (boot_us() - proven_us) / 1e6

    def host(self, gate: Gate) -> HostedLink:
        services = self.services
        assert services is not None
        self._gates.append(gate)
        return HostedLink(gate.post, lambda shard: services)

    def left(self, gate: Gate) -> None:
        if gate in self._gates:
            self._gates.remove(gate)

    def adopt(self, config: Config) -> None:
        """Use a reloaded config."""
        if self.cell is not None and self.services is not None:
            self.services.config = shard_config(config, self._node.data)
            adopt_config(self.cell.runtime, None, self.services.config)

    def _close_cell(self) -> None:
        self._is_moving = False
        self._suspended_s = None
        cell, self.cell, self.services = self.cell, None, None
        if cell is None:
            return
        self._cut()
        self._scheduler.is_over = True
        if cell.runtime.events is not None:
            self._start(partial(asyncio.to_thread, cell.runtime.events.close))

    # Moving

    @property
    def is_owner(self) -> bool:
        return self.report.state in ("recovering", "owning", "moving")

    def may_release(self, *, is_leaving: bool) -> bool:
        """Whether to hand it over now: it serves, does not move, and has not just found that it cannot."""
        pause_s = LEAVE_AGAIN_S if is_leaving else STAY_S
        return self.cell is not None and not self._is_moving and self._loop.time() - self._stayed_s >= pause_s

    async def release(self) -> None:
        """Hand the shard over: take nothing new, answer what was taken, end the epoch. What comes of it is reported."""
        cell, journal = self.cell, self.journal
        if cell is None or journal is None or self._is_moving:
            return
        self._is_moving = True
        self._note("moving")
        for gate in self._gates:
            gate.begin_end()
        flushed = asyncio.Event()
        cell.runtime.flushed(flushed.set)
        try:
            async with asyncio.timeout(FLUSH_S):
                await flushed.wait()
        except TimeoutError:
            if self.cell is cell:
                self._stay()
            return
        for _ in range(3):  # tasks of requests go on with their answers
            await asyncio.sleep(0)
        if self.cell is cell and journal.ownership.state == "owning":
            journal.release()
        elif self.cell is cell:  # it takes its epoch again
            self._stay()

    def _stay(self) -> None:
        """The servers do not keep frames: clients are cut off, and the shard stays."""
        self._is_moving = False
        self._stayed_s = self._loop.time()
        self._cut()
        self._note("owning")

    async def close(self) -> None:
        """Stop, without a word to the log."""
        self.is_closed = True
        self._life += 1
        self._close_cell()
        if self.journal is not None:
            self.journal.close()
        await end_tasks(self._tasks)

        def end() -> None:
            if self.journal is not None:
                self.journal.close_spool()
            self.disk.unlock()

        await self.on_thread(end)
        self._work.close()
