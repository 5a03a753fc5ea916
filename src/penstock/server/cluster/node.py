"""A node of a cluster: `penstock up --join`. It runs one `ClusterShard` for each shard, and serves any client for all of them."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from nats.aio.client import Client
from nats.js.object_store import ObjectStore
from prometheus_client.core import Metric

from penstock.core.cluster.status import ClusterStatus, NodeReport, OwnerMap
from penstock.core.errors import PenstockError
from penstock.core.health import PartHealth
from penstock.core.placement import SHARDS
from penstock.dialects.courier.sessions.front.session import FrontSession
from penstock.journal.replicated import cluster_keys
from penstock.journal.replicated.cluster_keys import ClusterSettings, decode_report
from penstock.journal.replicated.jetstream import FAILURES
from penstock.journal.replicated.membership import NODE, ClusterBuckets, Membership, ShardSettings
from penstock.journal.replicated.worker import Worker
from penstock.server.cells.shard_requests import ShardRequests
from penstock.server.cells.view_copies import ViewCopies
from penstock.server.cluster import figures
from penstock.server.cluster.cluster_view import ClusterView
from penstock.server.cluster.join import Joined, JoinOptions, join
from penstock.server.cluster.log_copy import boot_us
from penstock.server.cluster.nats_client import NatsNotices, end_tasks, until_answered
from penstock.server.cluster.node_links import NodeLinks
from penstock.server.cluster.repair import repair
from penstock.server.cluster.routes import Routes
from penstock.server.cluster.shard import ClusterShard
from penstock.server.config.load import Config
from penstock.server.engine.runtime import Runtime
from penstock.server.engine.schedulers import LoopScheduler
from penstock.server.files.addresses import HostPort
from penstock.server.logging import logs
from penstock.server.open_cell import version
from penstock.server.ops.cluster.operator import ClusterOperator

LOOK_S = 0.1
"""How often the shards are looked at."""
GATHER_US = 2_000_000
"""A node that starts takes no shard for this long, so that nodes that start together divide them at once."""
READY_S = 20.0
"""How long a start waits until every shard has an owner; then it goes on without."""
LEAVE_S = 10.0
"""How long a node that ends waits until other nodes own its shards."""


class ClusterNode(ShardRequests):
    """This node."""

    def __init__(self, config: Config, data: Path, options: JoinOptions, scheduler: LoopScheduler) -> None:
        self.routes = Routes(SHARDS, lambda node: None if self.links is None else self.links.connect(node))
        super().__init__(list(self.routes.legs))
        self.config = config
        self.data = data
        self.scheduler = scheduler
        self.name, self.cluster = options.node, options.cluster
        self._options = options
        self._joined: Joined | None = None
        self.encode = Worker(asyncio.get_running_loop(), "encode")
        self.sealing = asyncio.Semaphore(1)
        """One sealer at a time: it takes a process."""
        self.view = ClusterView(options.cluster, options.node)
        self.shards: dict[int, ClusterShard] = {}
        self.report_id = secrets.token_hex(8)
        self._report = NodeReport(self.report_id, version(), pid=os.getpid(), started=time.time_ns() // 1000)
        self.membership: Membership
        self.links: NodeLinks | None = None
        self._tasks: list[asyncio.Task[Any]] = []
        self._moves: set[asyncio.Task[None]] = set()
        self._repairs: set[int] = set()
        self._started_us = 0
        self._front: Runtime | None = None
        self.owners: OwnerMap | None = None
        self.is_leaving = False
        self._is_draining = False
        """Whether it hands over all that it owns: the others know by then that it leaves."""
        self.notices = NatsNotices()
        self._news = asyncio.Event()
        """Set when the reports were looked at."""

    # Starting

    @property
    def joined(self) -> Joined:
        assert self._joined is not None, "it has joined"
        return self._joined

    @property
    def client(self) -> Client:
        return self.joined.client

    @property
    def buckets(self) -> ClusterBuckets:
        return self.joined.buckets

    @property
    def settings(self) -> ClusterSettings:
        return self.joined.settings

    @property
    def objects(self) -> ObjectStore:
        return self.joined.objects

    @property
    def verified(self) -> str | None:
        """Why the servers were not checked; None when they were."""
        return self.joined.unverified

    def status(self) -> ClusterStatus:
        """The status of the cluster, as this node sees it."""
        return self.view.status()

    def may_take(self, shard: int, silent: str | None) -> bool:
        """Whether this node may take over a shard without an owner."""
        if self.is_leaving or boot_us() - self._started_us < GATHER_US or self.shards[shard].is_closed:
            return False
        return self.view.may_take(shard, silent)

    @property
    def about(self) -> str:
        return f"{len(self.shards)} shards of the cluster `{self.cluster}`, as its node `{self.name}`"

    async def start(self, front: Runtime) -> None:
        """Open every shard, and wait a little until all have owners."""
        self._front = front
        try:
            self._joined = await join(self._options, self.notices)
            await self._open(front)
        except BaseException:
            await self.stop()
            raise
        await self._until(lambda: not self.status().unowned, READY_S)
        logs.event("cluster.joined", cluster=self.cluster, node=self.name, unowned=self.status().unowned)

    async def _open(self, front: Runtime) -> None:
        loop = asyncio.get_running_loop()
        self.links = NodeLinks(self.cluster, self.name, self.joined, self.routes, self.shards.get)
        await self.links.start()
        for shard in range(self.settings.shards):
            found = await until_answered(partial(self.buckets.shard, shard))
            assert found is not None, "the start has made it"
            self.shards[shard] = ClusterShard(self, shard, found[0])
        await asyncio.gather(*[shard.prepare() for shard in self.shards.values()])
        await asyncio.gather(*[shard.open() for shard in self.shards.values()])
        self.membership = Membership(
            self.buckets, self.name, self.view.nodes, boot_us, value=self._value, noted=self._noted_key
        )
        self._started_us = boot_us()
        self._tasks = [
            *map(loop.create_task, self.membership.jobs()),
            loop.create_task(self.links.send()),
            loop.create_task(self._look()),
            loop.create_task(ViewCopies(front, self.read_view).run()),
        ]
        for task in self._tasks:
            task.add_done_callback(_note_end)

    async def _until(self, is_true: Callable[[], bool], within_s: float) -> None:
        """Wait for the cluster, at most so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while not is_true():
                    self._news.clear()
                    await self._news.wait()

    def listens(self, http: str, control: str | None) -> None:
        """Where clients reach this node."""
        host = self._options.advertise
        self._report.http, self._report.control = advertised(http, host), control and advertised(control, host)
        self.changed()

    # What the nodes say of themselves

    def _value(self) -> bytes:
        report = self._report
        report.at = time.time_ns() // 1000
        report.verified = self.verified is None
        report.leaving = self.is_leaving
        report.shards = {number: shard.report for number, shard in self.shards.items()}
        return msgspec.json.encode(report)

    def changed(self) -> None:
        """A shard of this node has changed: this node knows at once, the others soon."""
        if self._started_us == 0:
            return
        self._note_report(self.name, msgspec.json.decode(self._value(), type=NodeReport))
        self.membership.changed()

    def _noted_key(self, key: str, value: bytes | None) -> None:
        """A key was written, or is gone; what cannot be read must not end the watch."""
        try:
            self._noted(key, value)
        except Exception as error:
            logs.error("cluster.failed", exc=error, key=key)

    def _noted(self, key: str, value: bytes | None) -> None:
        if key.startswith(NODE):
            name = key.removeprefix(NODE)
            report = None if value is None else decode_report(value)
            if name == self.name:
                if report is not None and report.id != self.report_id and report.started > self._report.started:
                    logs.error("cluster.same_name", node=name, pid=report.pid)
            elif report is not None:
                self._note_report(name, report)
            else:
                self.view.reports.pop(name, None)
                self._apply_map()
        elif key.startswith("shard.") and value is not None:
            shard = self.shards.get(int(key.removeprefix("shard.")))
            if shard is not None:
                shard.switch(msgspec.json.decode(value, type=ShardSettings))
        elif self.view.decisions.note(key, value):
            logs.event("cluster.decision", key=key, value=None if value is None else value.decode(errors="replace"))
        if key.startswith(cluster_keys.REPAIR) and value == self.name.encode():
            self._begin_repair(key.removeprefix(cluster_keys.REPAIR))

    def _begin_repair(self, number: str) -> None:
        shard = self.shards.get(int(number)) if number.isdecimal() else None
        if shard is None or shard.shard in self._repairs:
            return
        self._repairs.add(shard.shard)
        task = asyncio.get_running_loop().create_task(self._repair(shard))
        self._moves.add(task)
        task.add_done_callback(self._moves.discard)

    async def _repair(self, shard: ClusterShard) -> None:
        """Repair a shard that an operator has named, once."""
        try:
            if shard.report.state != "halted":
                logs.warning("cluster.repair_refused", shard=shard.shard, reason="its log is not damaged here")
                return
            settings = await repair(self, shard)
            logs.warning("cluster.repaired", shard=shard.shard, generation=settings.generation, base=settings.base)
            shard.switch(settings)
        except PenstockError as error:
            logs.error("cluster.repair_failed", shard=shard.shard, reason=error.message)
            shard.reopen_later()
        except Exception as error:  # of the disk, say: the shard must not stay paused
            logs.error("cluster.repair_failed", exc=error, shard=shard.shard)
            shard.reopen_later()
        finally:
            self._repairs.discard(shard.shard)
            with suppress(*FAILURES):
                await cluster_keys.end_repair(self.buckets, shard.shard)

    def _note_report(self, name: str, report: NodeReport) -> None:
        before = self.view.reports.get(name)
        self.view.reports[name] = report
        for number, shard in self.shards.items():
            old = None if before is None else before.shards.get(number)
            new = report.shards.get(number)
            if shard.journal is not None and (old and old.state) != (new and new.state) and name != self.name:
                shard.journal.look()
        self._apply_map()

    def _apply_map(self) -> None:
        self._news.set()
        self.routes.own(self.view.owners())
        found = self.view.owner_map()
        if found != self.owners:
            self.owners = found
            if self._front is not None:
                for connection in self._front.peers.all():
                    if isinstance(connection.session, FrontSession):
                        connection.session.owners_changed(found)

    def _release_one(self) -> None:
        """Hand over a shard that belongs elsewhere."""
        found = self.view.to_release(boot_us())
        if found is not None and self.shards[found].may_release(is_leaving=False):
            self._release(found)

    def _release(self, shard: int) -> None:
        task = asyncio.get_running_loop().create_task(self.shards[shard].release())
        self._moves.add(task)
        task.add_done_callback(self._moves.discard)

    async def _look(self) -> None:
        failure, links = "", self.links
        assert links is not None
        while True:
            try:
                links.pipes.beat()
                for shard in self.shards.values():
                    shard.look()
                if self._is_draining:
                    for number, shard in self.shards.items():  # one may have recovered, or could not move before
                        if shard.may_release(is_leaving=True):
                            self._release(number)
                elif not self._moves and not self.is_leaving:
                    self._release_one()
                self._apply_map()
                failure = ""
            except Exception as error:
                if failure != (failure := repr(error)):  # once, not every time
                    logs.error("cluster.failed", exc=error)
            await asyncio.sleep(LOOK_S)

    # What the server asks

    def adopt(self, config: Config) -> None:
        self.config = config
        for shard in self.shards.values():
            shard.adopt(config)

    async def drain(self, within_s: float) -> int:
        """Hand over every shard, while other nodes live."""
        self.is_leaving = True
        self.changed()
        await self.membership.put()  # else the others would leave its shards to it
        self._is_draining = True
        owned = [shard for shard in self.shards.values() if shard.is_owner]
        await asyncio.gather(*[shard.release() for shard in owned])

        def is_over() -> bool:
            if any(shard.is_owner for shard in self.shards.values()):
                return False
            return not self.view.others or not self.status().unowned

        await self._until(is_over, LEAVE_S)
        left = [number for number, shard in self.shards.items() if shard.is_owner]
        logs.event("cluster.left", node=self.name, kept=left, unowned=self.status().unowned)
        return 0

    async def stop(self) -> None:
        """End, however far the start has come."""
        self.routes.close()
        await end_tasks([*self._tasks, *self._moves])
        await asyncio.gather(*[shard.close() for shard in self.shards.values()])
        if self.links is not None:
            await self.links.close()
        self.encode.close()
        if self._joined is None:
            return
        if self._tasks:
            with suppress(TimeoutError, *FAILURES):
                async with asyncio.timeout(1.0):
                    await self.buckets.live.delete(NODE + self.name)
        with suppress(*FAILURES):
            await self.client.close()

    def cluster_status(self) -> ClusterStatus | None:
        """None before this node has joined."""
        return self.status() if self._started_us else None

    def decider(self) -> ClusterOperator:
        """What writes the decisions of an operator."""
        return ClusterOperator(self.client, self.cluster, self.buckets)

    def metrics(self) -> list[Metric]:
        return figures.metrics(self)

    def finding(self) -> PartHealth:
        return figures.finding(self)

    def report(self) -> list[dict[str, Any]]:
        """The nodes and their shards, for `/health`."""
        status = self.status()
        return [
            {"node": node.node, "up": node.state != "gone", "state": node.state, "shards": node.owns}
            for node in status.nodes
        ]


def _note_end(task: asyncio.Task[Any]) -> None:
    """A task of the node has ended: only `stop` ends one without an error."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logs.error("cluster.failed", exc=error)


def advertised(url: str, host: str | None) -> str:
    """The URL with another host, for clients on other machines."""
    if host is None or url.startswith("unix:"):
        return url
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{HostPort(host, int(rest.rpartition(':')[2]))}"
