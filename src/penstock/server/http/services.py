"""What the handlers of HTTP routes work with: one object per server, shared by its ports."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from penstock.core.cluster.status import ClusterStatus, OwnerMap
from penstock.core.errors import Refusal
from penstock.core.health import PartHealth
from penstock.core.queue.machine import QueueMachine
from penstock.dialects.courier.sessions.front.legs import LegHello, LegOwner, LegPort
from penstock.dialects.courier.sessions.subscribe import SubscribeQuery
from penstock.ipc.pipeline import PipelineStatus
from penstock.server.admin.cluster import ClusterDecider
from penstock.server.admin.journal import JournalReads
from penstock.server.admin.lake import Lake, LakeHistory, SqlEndpoint
from penstock.server.admin.reload import ReloadedReply
from penstock.server.admin.tail import Tail
from penstock.server.admin.tokens import TokenAdmin
from penstock.server.auth.tokens import Guard, TokenStore
from penstock.server.config.load import Config
from penstock.server.courier.frame_recorder import Recorder
from penstock.server.courier.stage_store import Staging
from penstock.server.engine.admission import AdmissionControl
from penstock.server.engine.runtime import Runtime
from penstock.server.http.console import Console
from penstock.server.http.health import HealthMonitor
from penstock.server.http.idempotency import Replays
from penstock.server.metrics.history import MetricsHistory
from penstock.server.metrics.prometheus_families import Exporter
from penstock.server.relay.supervisor import RelaySupervisor
from penstock.server.spaces.host import Spaces

if TYPE_CHECKING:
    from penstock.server.http.request import Request, Route


class CellsPort(Protocol):
    """Several cells that hold the streams in place of this server's own."""

    owners: OwnerMap | None

    def open(self, shard: int, hello: LegHello, owner: LegOwner, query: SubscribeQuery | None = None) -> LegPort:
        """Open a leg at a shard."""

    def handler(self, route: Route) -> Callable[[HttpServices, Request], Any] | None:
        """Who answers this route; None where the server itself does."""

    def report(self) -> list[dict[str, Any]]:
        """The processes or nodes and their shards, for `/health`."""

    def cluster_status(self) -> ClusterStatus | None:
        """The cluster, if these are its cells."""

    def decider(self) -> ClusterDecider | None:
        """What decides about the cluster, if these are its cells."""

    def finding(self) -> PartHealth:
        """How they are."""


class HttpServices(msgspec.Struct, kw_only=True, eq=False):
    """The parts of a server that routes answer from."""

    config: Config
    """The settings that count now."""
    openapi: bytes
    """The document of `/openapi.json`."""
    runtime: Runtime
    tokens: TokenStore
    guard: Guard
    admission: AdmissionControl
    exporter: Exporter
    replays: Replays
    staging: Staging
    journal: JournalReads
    tail: Tail
    lake: Lake
    sql: SqlEndpoint
    token_admin: TokenAdmin
    spaces: Spaces
    relay: RelaySupervisor | None
    recorder: Recorder | None
    console: Console | None
    health: HealthMonitor
    history: MetricsHistory
    lake_history: LakeHistory
    pipeline: Callable[[], PipelineStatus | None]
    reload: Callable[[], ReloadedReply | Refusal]
    cells: CellsPort | None = None

    def handler_of(self, route: Route) -> Callable[[HttpServices, Request], Any]:
        """Who answers a route."""
        handler = None if self.cells is None else self.cells.handler(route)
        assert route.handler is not None
        return handler or route.handler

    @property
    def machine(self) -> QueueMachine:
        return self.runtime.machine

    def adopt(self, config: Config) -> None:
        """Answer by these settings from now on."""
        self.config = config
        self.exporter.per_stream = config.metrics.per_stream
