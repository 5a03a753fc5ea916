"""A node of a cluster: `penstock up --join`. It runs one `ClusterShard` for each shard, and serves any client for all of them."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from nats.aio.client import Client
from nats.js.errors import KeyNotFoundError
from prometheus_client.core import Metric

from penstock.core.cluster.assignment import LiveNodes, may_take, shard_to_release
from penstock.core.cluster.status import (
    ClusterStatus,
    NodeReport,
    OwnerMap,
    cluster_status,
    owner_map,
    owner_of,
)
from penstock.core.errors import PenstockError, Refusal
from penstock.core.health import PartHealth
from penstock.core.placement import SHARDS
from penstock.dialects.courier.sessions.front.session import FrontSession
from penstock.journal.replicated import cluster_keys
from penstock.journal.replicated.cluster_keys import ClusterSettings, Decisions, decode_report
from penstock.journal.replicated.connection import NatsServersAddress
from penstock.journal.replicated.jetstream import FAILURES, JetStreamLiveStore
from penstock.journal.replicated.membership import NODE, ClusterBuckets, Membership, ShardSettings
from penstock.journal.replicated.server_check import ask_servers, server_problem
from penstock.journal.replicated.worker import Worker
from penstock.server.cells.link import CellLink
from penstock.server.cells.shard_requests import ShardRequests
from penstock.server.cells.view_copies import ViewCopies
from penstock.server.cluster.channels import ChannelHost, FromNode, HostedShard, LocalLink, ToNode
from penstock.server.cluster.nats_client import Notices, connect, end_tasks, until_answered
from penstock.server.cluster.pipes import Pipe, Pipes
from penstock.server.cluster.repair import repair
from penstock.server.cluster.routes import Routes
from penstock.server.cluster.shard import ClusterShard, boot_us
from penstock.server.config.load import Config
from penstock.server.engine.runtime import Runtime
from penstock.server.engine.schedulers import LoopScheduler
from penstock.server.files.addresses import HostPort
from penstock.server.logging import logs
from penstock.server.metrics.metric_names import families, labelled
from penstock.server.open_cell import version
from penstock.server.ops.cluster.operator import ClusterOperator

LOOK_S = 0.1
"""How often the shards are looked at."""
GATHER_US = 2_000_000
"""A node that starts takes no shard for this long, so that nodes that start together divide them at once."""
READY_S = 20.0
"""How long a start waits until every shard has an owner; then it goes on without."""
SAME_NAME_S = 3.0
"""A key of this name that is written again within this time belongs to a node that runs."""
LEAVE_S = 10.0
"""How long a node that ends waits until other nodes own its shards."""
OUTBOX_MAX = 4_096
"""Frames for other nodes that wait to be published; more ends the pipes they belong to."""


class JoinOptions(msgspec.Struct, frozen=True):
    """What `--join` and the options with it say."""

    servers: NatsServersAddress
    cluster: str
    node: str
    system: NatsServersAddress | None = None
    """The same servers, for a user that may ask them about themselves."""
    advertise: str | None = None
    creates: bool = False
    """Whether the cluster is made if it is missing."""
    is_unsafe: bool = False
    """Whether servers are accepted that may lose what they acknowledge."""


class ClusterNode(ShardRequests):
    """This node."""

    def __init__(self, config: Config, data: Path, options: JoinOptions, scheduler: LoopScheduler) -> None:
        self.routes = Routes(SHARDS, self._connect)
        super().__init__(list(self.routes.legs))
        self.config = config
        self.data = data
        self.scheduler = scheduler
        self.name, self.cluster = options.node, options.cluster
        self._options = options
        self._client: Client | None = None
        self.settings: ClusterSettings
        self.buckets: ClusterBuckets
        self.objects: Any
        self.encode = Worker(asyncio.get_running_loop(), "encode")
        self.sealing = asyncio.Semaphore(1)
        """One sealer at a time: it takes a process."""
        self.live = LiveNodes()
        self.decisions = Decisions()
        self.reports: dict[str, NodeReport] = {}
        self.shards: dict[int, ClusterShard] = {}
        self.report_id = secrets.token_hex(8)
        self._report = NodeReport(self.report_id, version(), pid=os.getpid(), started=time.time_ns() // 1000)
        self.verified: str | None = None
        """Why the servers were not checked; None when they were."""
        self.membership: Membership
        self._pipes: Pipes | None = None
        self._outbox: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue(OUTBOX_MAX)
        self._hosts: list[ChannelHost] = []
        self._tasks: list[asyncio.Task[Any]] = []
        self._moves: set[asyncio.Task[None]] = set()
        self._repairs: set[int] = set()
        self._started_us = 0
        self._front: Runtime | None = None
        self.owners: OwnerMap | None = None
        self.is_leaving = False
        self._notices = Notices()
        self._news = asyncio.Event()
        """Set when the reports were looked at."""

    # Starting

    @property
    def client(self) -> Client:
        assert self._client is not None, "it has joined"
        return self._client

    @property
    def pipes(self) -> Pipes:
        assert self._pipes is not None, "it has started"
        return self._pipes

    @property
    def about(self) -> str:
        return f"{len(self.shards)} shards of the cluster `{self.cluster}`, as its node `{self.name}`"

    async def _join(self) -> None:
        """Connect to the servers, check them, and read what the cluster is. Before the shards are opened."""
        options = self._options
        for name, what in ((options.cluster, "a cluster"), (options.node, "a node")):
            if problem := cluster_keys.name_problem(name, what):
                raise PenstockError(problem)
        self._client = await connect(options.servers, f"penstock {options.node}", self._notices)
        await self._check_servers()
        self.buckets = await until_answered(lambda: ClusterBuckets.open(self.client, self.cluster))
        if options.creates:
            await until_answered(lambda: cluster_keys.create(self.client, self.cluster))
        settings = await until_answered(lambda: cluster_keys.settings_of(self.buckets))
        if settings is None:
            hint = f"`penstock cluster create --join {options.servers.shown} --cluster {self.cluster}` makes it"
            raise PenstockError(Refusal("InvalidRequest", f"there is no cluster `{self.cluster}`", hint=hint))
        self.settings = settings
        # A creation that was interrupted is completed; nothing that is there changes.
        await until_answered(lambda: cluster_keys.create(self.client, self.cluster))
        self.objects = await until_answered(lambda: JetStreamLiveStore.open(self.client, self.cluster))
        await self._check_name()
        if settings.shards != SHARDS:
            message = f"the cluster has {settings.shards} shards, and this version knows {SHARDS}"
            raise PenstockError(Refusal("Unsupported", message, hint="upgrade this node"))

    async def _check_servers(self) -> None:
        known = await ask_servers(self.client)  # an account may import the service that answers
        if not known and self._options.system is not None:
            client = await connect(self._options.system, f"penstock {self.name} check", self._notices)
            try:
                known = await ask_servers(client)
            finally:
                await client.close()
        problem = server_problem(known) if known else None
        if problem is not None and not self._options.is_unsafe:
            raise PenstockError(problem)
        self.verified = None if problem is None else problem.message
        if not known:
            self.verified = (
                "the servers do not describe themselves to this user; `penstock cluster check` says what to do"
            )
        if self.verified is not None:
            logs.warning("cluster.unverified", reason=self.verified)

    async def _check_name(self) -> None:
        """Two processes must not have one name."""
        key = NODE + self.name

        async def revision() -> int | None:
            try:
                return (await self.buckets.live.get(key)).revision
            except KeyNotFoundError:
                return None

        before = await until_answered(revision)
        if before is None:
            return
        until_s = time.monotonic() + SAME_NAME_S
        while time.monotonic() < until_s:
            await asyncio.sleep(LOOK_S)
            now = await until_answered(revision)
            if now is not None and now != before:
                hint = "give each node its own `--node`; a node that was stopped may start again at once"
                raise PenstockError(Refusal("InvalidRequest", f"a node `{self.name}` runs already", hint=hint))

    async def start(self, front: Runtime) -> None:
        """Open every shard, and wait a little until all have owners."""
        self._front = front
        try:
            await self._join()
            await self._open(front)
        except BaseException:
            await self.stop()
            raise
        await self._until(lambda: not self.status().unowned, READY_S)
        logs.event("cluster.joined", cluster=self.cluster, node=self.name, unowned=self.status().unowned)

    async def _open(self, front: Runtime) -> None:
        loop = asyncio.get_running_loop()
        self._pipes = Pipes(
            self.cluster,
            self.name,
            bytes.fromhex(self.settings.secret),
            self._publish,
            entropy=os.urandom,
            opened=self._pipe_opened,
            accepted=self._pipe_accepted,
        )
        subscription = await self.client.subscribe(self.pipes.subject(self.name), cb=self._pipe_message)
        assert subscription is not None
        here, there = LocalLink.pair()
        self._host(there)
        self.routes.attach(self.name, here)
        for shard in range(self.settings.shards):
            found = await until_answered(partial(self.buckets.shard, shard))
            assert found is not None, "the start has made it"
            self.shards[shard] = ClusterShard(self, shard, found[0])
        await asyncio.gather(*[shard.prepare() for shard in self.shards.values()])
        await asyncio.gather(*[shard.open() for shard in self.shards.values()])
        self._started_us = boot_us()
        self.membership = Membership(self.buckets, self.name, self.live, boot_us, value=self._value, noted=self._noted)
        self._tasks = [
            *map(loop.create_task, self.membership.jobs()),
            loop.create_task(self._send()),
            loop.create_task(self._look()),
            loop.create_task(ViewCopies(front, self.read_view).run()),
        ]

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
        if self._started_us == 0 or not hasattr(self, "membership"):
            return
        self._note_report(self.name, msgspec.json.decode(self._value(), type=NodeReport))
        self.membership.changed()

    def _noted(self, key: str, value: bytes | None) -> None:
        """A key was written, or is gone."""
        if key.startswith(NODE):
            name = key.removeprefix(NODE)
            report = None if value is None else decode_report(value)
            if name == self.name:
                if report is not None and report.id != self.report_id and report.started > self._report.started:
                    logs.error("cluster.same_name", node=name, pid=report.pid)
            elif report is not None:
                self._note_report(name, report)
            else:
                self.reports.pop(name, None)
                self._apply_map()
        elif key.startswith("shard.") and value is not None:
            shard = self.shards.get(int(key.removeprefix("shard.")))
            if shard is not None:
                shard.switch(msgspec.json.decode(value, type=ShardSettings))
        elif self.decisions.note(key, value):
            if key.startswith(cluster_keys.REPAIR) and value == self.name.encode():
                self._begin_repair(int(key.removeprefix(cluster_keys.REPAIR)))
            logs.event("cluster.decision", key=key, value=None if value is None else value.decode(errors="replace"))

    def _begin_repair(self, number: int) -> None:
        shard = self.shards.get(number)
        if shard is None or number in self._repairs:
            return
        self._repairs.add(number)
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
            await shard.open()
        finally:
            self._repairs.discard(shard.shard)
            with suppress(*FAILURES):
                await cluster_keys.end_repair(self.buckets, shard.shard)

    def _note_report(self, name: str, report: NodeReport) -> None:
        before = self.reports.get(name)
        self.reports[name] = report
        for number, shard in self.shards.items():
            old = None if before is None else before.shards.get(number)
            new = report.shards.get(number)
            if shard.journal is not None and (old and old.state) != (new and new.state) and name != self.name:
                shard.journal.look()
        self._apply_map()

    def _apply_map(self) -> None:
        self._news.set()
        owners: list[str | None] = []
        for shard in range(self.settings.shards):
            owner = owner_of(shard, self.reports, self._alive)
            owners.append(owner[0] if owner is not None and owner[1].state == "owning" else None)
        self.routes.own(owners)
        found = owner_map(self.settings.shards, self.reports, self._alive)
        if found != self.owners:
            self.owners = found
            if self._front is not None:
                for connection in self._front.peers.all():
                    if isinstance(connection.session, FrontSession):
                        connection.session.owners_changed(found)

    @property
    def _alive(self) -> tuple[str, ...]:
        """Nodes that live. This one does, whatever the servers say."""
        nodes = self.live.nodes
        return nodes if self.name in nodes else (*nodes, self.name)

    def status(self) -> ClusterStatus:
        """The status of the cluster, as this node sees it."""
        moves, drains = self.decisions.moves, self.decisions.drains
        return cluster_status(self.cluster, self.settings.shards, self.reports, self._alive, moves, drains)

    # Assignment

    @property
    def _drained(self) -> set[str]:
        return self.decisions.drains | {name for name, report in self.reports.items() if report.leaving}

    def may_take(self, shard: int, silent: str | None) -> bool:
        """Whether this node may take over a shard without an owner."""
        if self.is_leaving or boot_us() - self._started_us < GATHER_US or self.shards[shard].is_closed:
            return False
        return may_take(
            self.name,
            shard,
            self.live.nodes,
            self.settings.shards,
            silent=silent,
            moves=self.decisions.moves,
            drains=self._drained,
        )

    def _release_one(self) -> None:
        """Hand over a shard that belongs elsewhere."""
        owners: dict[int, str | None] = {}
        for shard in range(self.settings.shards):
            owner = owner_of(shard, self.reports, self._alive)
            owners[shard] = owner[0] if owner is not None and owner[1].state == "owning" else None
        found = shard_to_release(
            self.name,
            self.live.nodes,
            owners,
            self.settings.shards,
            moves=self.decisions.moves,
            drains=self._drained,
            is_settled=self.live.is_settled(boot_us()),
        )
        if found is not None:
            self._release(found)

    def _release(self, shard: int) -> None:
        task = asyncio.get_running_loop().create_task(self.shards[shard].release())
        self._moves.add(task)
        task.add_done_callback(self._moves.discard)

    async def _look(self) -> None:
        failure = ""
        while True:
            try:
                self.pipes.beat()
                for shard in self.shards.values():
                    shard.look()
                if not self._moves and not self.is_leaving:
                    self._release_one()
                self._apply_map()
                failure = ""
            except Exception as error:
                if failure != (failure := repr(error)):  # once, not every time
                    logs.error("cluster.failed", exc=error)
            await asyncio.sleep(LOOK_S)

    # Pipes

    def _publish(self, subject: str, data: bytes) -> None:
        try:
            self._outbox.put_nowait((subject, data))
        except asyncio.QueueFull:
            self.frames_dropped += 1

    frames_dropped = 0
    """Frames that could not be published; the numbers of their pipes then have a gap."""

    async def _send(self) -> None:
        while True:
            subject, data = await self._outbox.get()
            try:
                await self.client.publish(subject, data)
            except FAILURES:
                self.frames_dropped += 1

    async def _pipe_message(self, message: Any) -> None:
        self.pipes.received(message.data)

    def _connect(self, node: str) -> None:
        if node != self.name:
            self.pipes.open(node)

    def _pipe_opened(self, node: str, pipe: Pipe) -> None:
        link: CellLink[FromNode] = CellLink(FromNode)
        _join(link, pipe)
        self.routes.attach(node, link)

    def _pipe_accepted(self, node: str, pipe: Pipe) -> None:
        link: CellLink[ToNode] = CellLink(ToNode)
        _join(link, pipe)
        self._host(link)

    def _host(self, link: Any) -> None:
        def find(shard: int) -> HostedShard | None:
            return self.shards.get(shard)

        host = ChannelHost(link, find)
        self._hosts = [one for one in self._hosts if not one.link.is_over]
        self._hosts.append(host)

    # What the server asks

    def adopt(self, config: Config) -> None:
        self.config = config
        for shard in self.shards.values():
            shard.adopt(config)

    async def drain(self, within_s: float) -> int:
        """Hand over every shard, while other nodes live."""
        self.is_leaving = True
        self.changed()
        await self.membership.put()
        owned = [shard for shard in self.shards.values() if shard.is_owner]
        await asyncio.gather(*[shard.release() for shard in owned])

        def is_over() -> bool:
            if any(shard.is_owner for shard in self.shards.values()):
                return False
            others = [name for name in self.live.nodes if not self.reports[name].leaving]
            return not others or not self.status().unowned

        await self._until(is_over, LEAVE_S)
        left = [number for number, shard in self.shards.items() if shard.is_owner]
        logs.event("cluster.left", node=self.name, kept=left, unowned=self.status().unowned)
        return 0

    async def stop(self) -> None:
        """End, however far the start has come."""
        self.routes.close()
        await end_tasks([*self._tasks, *self._moves])
        await asyncio.gather(*[shard.close() for shard in self.shards.values()])
        if self._pipes is not None:
            self._pipes.close()
        self.encode.close()
        if self._client is None:
            return
        if self._tasks:
            with suppress(TimeoutError, *FAILURES):
                async with asyncio.timeout(1.0):
                    await self.buckets.live.delete(NODE + self.name)
        with suppress(*FAILURES):
            await self._client.close()

    def cluster_status(self) -> ClusterStatus | None:
        """None before this node has joined."""
        return self.status() if self._started_us else None

    def decider(self) -> ClusterOperator:
        """What writes the decisions of an operator."""
        return ClusterOperator(self.client, self.cluster, self.buckets)

    def metrics(self) -> list[Metric]:
        shards = self.shards.values()
        owned = [shard for shard in shards if shard.is_owner]
        states = Counter(shard.report.state for shard in shards)
        pipes = self.pipes
        dropped = {
            "forged": pipes.forged,
            "repeated": pipes.repeated,
            "unknown": pipes.dropped,
            "unsent": self.frames_dropped,
        }
        return [
            *labelled(states.items(), {"cluster_shards": float}),
            *labelled([(str(one.shard), one.report.epoch) for one in shards], {"cluster_epoch": float}),
            *labelled(dropped.items(), {"cluster_frames_dropped": float}),
            *families(
                {
                    "penstock_cluster_takeovers": sum(shard.takeovers for shard in shards),
                    "penstock_cluster_unowned": len(self.status().unowned),
                    "penstock_cluster_suspended": sum(not shard.may_serve for shard in owned),
                    "penstock_cluster_lease_age_seconds": max((shard.lease_age_s for shard in owned), default=0.0),
                    "penstock_cluster_seals_failed": sum(shard.history.seals_failed for shard in shards),
                    "penstock_cluster_nats_errors": self._notices.errors,
                }
            ),
        ]

    def finding(self) -> PartHealth:
        status = self.status()
        if status.halted:
            action = (
                "`penstock cluster status` says why; `penstock cluster repair SHARD` writes a new log from what is kept"
            )
            return PartHealth("failed", f"the logs of shards {status.halted} are damaged", action)
        if status.unowned:
            return PartHealth("degraded", f"shards {status.unowned} have no owner", "`penstock cluster status`")
        if suspended := [number for number, shard in self.shards.items() if shard.report.reason]:
            action = "look at the NATS servers: the shards go on by themselves"
            return PartHealth("degraded", f"the NATS servers do not keep the frames of shards {suspended}", action)
        if gone := [node.node for node in status.nodes if node.state == "gone"]:
            return PartHealth("degraded", f"the nodes {', '.join(gone)} are gone", "start them again")
        if self.verified is not None:
            return PartHealth("ok", f"every shard has an owner; unverified: {self.verified}")
        return PartHealth("ok", "every shard has an owner")

    def report(self) -> list[dict[str, Any]]:
        """The nodes and their shards, for `/health`."""
        status = self.status()
        return [
            {"node": node.node, "up": node.state != "gone", "state": node.state, "shards": node.owns}
            for node in status.nodes
        ]


def advertised(url: str, host: str | None) -> str:
    """The URL with another host, for clients on other machines."""
    if host is None or url.startswith("unix:"):
        return url
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{HostPort(host, int(rest.rpartition(':')[2]))}"


def _join(link: CellLink[Any], pipe: Pipe) -> None:
    transport: Any = pipe  # it has what a link uses of a transport
    pipe.link = link
    link.connection_made(transport)
