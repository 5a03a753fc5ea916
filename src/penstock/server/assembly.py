"""The server assembled from its config: cell, listeners, supervisors, and the files in `run/`."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import msgspec
from prometheus_client.core import Metric

from penstock.client.address import ServerEndpoints
from penstock.core.errors import Refusal
from penstock.dialects.courier.sessions.front.legs import LegOpener
from penstock.dialects.courier.sessions.front.session import FrontSession
from penstock.ipc.pipeline import PipelineStatus
from penstock.server.admin.journal import JournalReads
from penstock.server.admin.lake import Lake, LakeHistory, SqlEndpoint
from penstock.server.admin.reload import ReloadedReply, admit, differences, merged
from penstock.server.admin.tail import Tail
from penstock.server.admin.tokens import TokenAdmin, learn
from penstock.server.auth.minted_tokens import FILE, MintedTokens
from penstock.server.auth.tokens import Guard, TokenStore, start_check, write_operator_token
from penstock.server.config.load import Config, ConfigError
from penstock.server.config.spaces.space_yaml import load_spaces
from penstock.server.courier.control_listener import ControlListener
from penstock.server.courier.frame_recorder import Recorder
from penstock.server.courier.front import SocketFrontSession
from penstock.server.courier.skill_worker import SkillWorker, start_skills
from penstock.server.courier.stage_store import Staging
from penstock.server.engine.admission import AdmissionControl
from penstock.server.engine.garbage import GarbageCollector
from penstock.server.engine.runtime import Runtime
from penstock.server.engine.schedulers import LoopScheduler
from penstock.server.files.addresses import HostPort, is_loopback, parse_alias, parse_control, parse_host_port
from penstock.server.files.secret_files import make_private_folder, write_private
from penstock.server.http.console import Console
from penstock.server.http.console_sessions import Sessions
from penstock.server.http.health import HealthMonitor
from penstock.server.http.idempotency import Replays
from penstock.server.http.listener import HttpEndpoint
from penstock.server.http.openapi import document
from penstock.server.http.routes import ROUTES
from penstock.server.http.services import CellsPort, HttpServices
from penstock.server.journal.lifecycle import JournalLifecycle
from penstock.server.logging import logs
from penstock.server.logging.event_log import make_event_log
from penstock.server.metrics.history import MetricsHistory
from penstock.server.metrics.prometheus_families import Exporter
from penstock.server.open_cell import adopt_config, open_cell, version
from penstock.server.ops.kernel.endpoints import Advertisement
from penstock.server.ops.pipeline_supervisor import PipelineSupervisor
from penstock.server.relay.supervisor import RelayError, RelaySupervisor
from penstock.server.spaces.files import HostedSpaces
from penstock.server.spaces.listener import SpaceEndpoint
from penstock.transports.http import HttpListener


class Cells(CellsPort, LegOpener, Protocol):
    """Several cells that hold the streams: processes of this machine, or a cluster."""

    @property
    def about(self) -> str:
        """What they are, for people."""

    async def start(self, front: Runtime) -> None:
        """Open the shards; `front` holds the clients."""

    def listens(self, http: str, control: str | None) -> None:
        """Where clients reach this server."""

    def metrics(self) -> Iterable[Metric]:
        """What is exported of them."""

    def adopt(self, config: Config) -> None:
        """Use a reloaded config."""

    async def drain(self, within_s: float) -> int:
        """Take nothing more; returns the leases given up."""

    async def stop(self) -> None: ...


MakeCells: TypeAlias = Callable[[Config, "Path | None", Path, LoopScheduler], Cells]
"""Makes them for a config, a data directory and a folder for this run."""


class Service:
    """A running Penstock."""

    def __init__(
        self,
        config: Config,
        data: Path | None,
        log_dropped: Callable[[], int],
        reread: Callable[[], Config] | None = None,
        make_cells: MakeCells | None = None,
    ) -> None:
        self._config = config
        self._reread = reread
        """How to read the config again."""
        self.scheduler = LoopScheduler(asyncio.get_running_loop())
        self._is_temporary = data is None
        if data is not None:
            data.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.run_dir = (data / "run") if data is not None else Path(tempfile.mkdtemp(prefix="penstock-"))
        make_private_folder(self.run_dir)
        self.tokens = TokenStore(config.auth)
        self.guard = Guard(config)
        self.archive = None if data is None else JournalLifecycle(data, config)
        self.cell = open_cell(config, self.archive, self.scheduler, authenticate=self.tokens.resolve)
        self.runtime = self.cell.runtime
        self.runtime.is_agent_taken, self.runtime.token_refused = self.tokens.is_taken, self.tokens.refused
        self.admission = AdmissionControl(lambda: self.runtime.machine.limits, self.guard.is_proxy)
        self._minted = MintedTokens(None if data is None else data / FILE)
        learn(self._minted, self.tokens, self.guard)
        self.spaces = load_spaces(config.spaces, (data or self.run_dir) / "spaces", os.environ)
        for space in self.spaces:
            logs.event(
                "space.loaded",
                space=space.settings.id,
                dir=str(space.mewdir),
                made=space.made,
                unstarted=space.unstarted,
            )
        self.events = self.runtime.events = make_event_log(config.logs)
        self.hosted = HostedSpaces(
            self.cell.host_spaces, self.spaces, self.tokens, keeps_logs=not config.serves_courier
        )
        self.relay: RelaySupervisor | None = None
        if config.relay.enabled:
            self.relay = RelaySupervisor(
                config.relay, self.run_dir, self.cell.machines.relay, self.runtime, keeps_rows=data is not None
            )
        self.console: Console | None = None
        if config.console.enabled:
            key = None if data is None else self.run_dir / "console.key"
            self.console = Console(Sessions(self.tokens, key), self._facts)
        self._log_dropped = log_dropped
        self.pipeline: PipelineSupervisor | None = None
        self.operator_token: str | None = None
        self._http: HttpServices | None = None
        self._recorder: Recorder | None = None
        self._listeners: list[HttpListener] = []
        self.skills: list[SkillWorker] = []
        self.control = ControlListener(self.runtime, self.tokens, self.guard, self.admission)
        self.cells: Cells | None = None
        """What holds the streams, if there are several cells."""
        if make_cells is not None:
            self.cells = self.control.cells = make_cells(config, data, self.run_dir, self.scheduler)
            self.runtime.machine.is_here = lambda name: False
        self.endpoints: ServerEndpoints | None = None
        self._advertising: Advertisement | None = None
        self._looking: asyncio.Future[Any] | None = None
        self.garbage = GarbageCollector()

    async def start(self) -> ServerEndpoints:
        """Open every listener, then write `run/endpoints.json`."""
        config = self._config
        address = parse_host_port(config.listen.http)
        alias = parse_alias(config.listen.ws)
        start_check(config, self._http_hosts(), config.listen.control, minted=self._minted.tokens)
        if config.logs.record is not None:
            machine = self.runtime.machine
            self._recorder = self.control.recorder = Recorder(
                config.logs.record, redact=config.logs.redact, waiting_max=lambda: machine.limits.record_max
            )
        self.skills = start_skills(config.skills, self.runtime)
        if self.cells is not None:
            await self.cells.start(self.runtime)
        self._http = self._http_services(config)
        self._http.token_admin.watch()
        url = await self._start_http(self._http, address)
        ws = None if alias is None else await self._start_http(self._http, alias)
        control = await self.control.start(parse_control(config.listen.control))
        sockets = await self._start_relay()
        # Last: a start that fails because a server already runs here must not replace that server's token.
        self.operator_token = write_operator_token(self.run_dir / "operator.token")
        self.tokens.add_operator(self.operator_token)
        console = f"{url}/" if config.console.enabled else None
        if self.cells is not None:
            self.cells.listens(url, control)
        self.endpoints = ServerEndpoints(os.getpid(), version(), url, control, *sockets, console, ws)
        if config.listen.advertise is not None:
            self._advertising = Advertisement(Path(config.listen.advertise), self.runtime, url, control)
            await self._advertising.start()
        text = msgspec.json.format(msgspec.json.encode(self.endpoints)) + b"\n"
        write_private(self.run_dir / "endpoints.json", text)
        self.runtime.note("start", version=version(), boot=self.runtime.boot_id)
        self.garbage.start()
        self.scheduler.turns.start()
        self._looking = asyncio.gather(self._http.health.run(self._http), self._http.history.run(self._http.exporter))
        return self.endpoints

    def _http_services(self, config: Config) -> HttpServices:
        """What the HTTP routes answer from."""
        runtime, archive, recorder, replays = self.runtime, self.archive, self._recorder, Replays()
        data = None if archive is None else archive.data
        history, sql = MetricsHistory(), SqlEndpoint(data, lambda: self._config.console)
        return HttpServices(
            config=config,
            openapi=document(version(), ROUTES),
            runtime=runtime,
            tokens=self.tokens,
            guard=self.guard,
            exporter=Exporter(
                runtime,
                self._log_dropped,
                replays,
                self.pipeline_status,
                record_dropped=lambda: 0 if recorder is None else recorder.dropped,
                per_stream=config.metrics.per_stream,
                spaces=self.hosted.spaces,
                relay=self.relay,
                archive=archive,
                turns=self.scheduler.turns,
                admission=self.admission,
                tokens_refused=self.tokens.refusals,
                cells=tuple if self.cells is None else self.cells.metrics,
            ),
            admission=self.admission,
            replays=replays,
            staging=Staging(runtime, self.hosted.spaces),
            journal=JournalReads(archive),
            tail=Tail(archive, lambda: runtime.commit_log.draining, self.tokens.renewed),
            lake=Lake(data),
            sql=sql,
            token_admin=TokenAdmin(runtime, self.tokens, self.guard, self._minted, self._readmit),
            spaces=self.hosted.spaces,
            relay=self.relay,
            recorder=recorder,
            console=self.console,
            health=HealthMonitor(runtime.machine.health),
            history=history,
            lake_history=LakeHistory(history, sql, data, "" if archive is None else archive.journal.id),
            pipeline=self.pipeline_status,
            reload=self.reload,
            cells=self.cells,
        )

    def _facts(self) -> dict[str, Any]:
        """What the console shows of the server."""
        spaces = [space.settings.id for space in self.spaces]
        return {"version": version(), "bootId": self.runtime.boot_id, "spaces": spaces, "relay": self.relay is not None}

    async def _start_relay(self) -> tuple[str | None, str | None]:
        """Where clients of the relay subscribe, and where its publishers push."""
        if self.relay is None:
            return None, None
        try:
            ready = await self.relay.start()
        except RelayError as error:
            raise ConfigError([f"relay: {error}"]) from error
        return ready.pub, ready.pull

    def _http_hosts(self) -> tuple[str, ...]:
        alias = parse_alias(self._config.listen.ws)
        return parse_host_port(self._config.listen.http).hosts + (alias.hosts if alias is not None else ())

    async def _start_http(self, services: HttpServices, address: HostPort) -> str:
        is_local = all(is_loopback(host) for host in address.hosts)
        spaces = SpaceEndpoint(self.hosted.spaces, self.guard, is_loopback_bind=is_local)
        listener = HttpListener(HttpEndpoint(services, spaces, is_loopback_bind=is_local))
        self._listeners.append(listener)
        port = await listener.start(address.hosts, address.port)
        self.hosted.serve_at(address.host, port)
        return f"http://{HostPort(address.host, port)}"

    def reload(self) -> ReloadedReply | Refusal:
        """Reload the config; keep the old one and report all errors if the new one is invalid."""
        if self._reread is None:
            return Refusal("Unsupported", "this server has no config to read again")
        try:
            config = self._reread()
            start_check(config, self._http_hosts(), self._config.listen.control, minted=self._minted.tokens)
        except ConfigError as error:
            for problem in error.errors:
                logs.warning("config.problem", problem=problem)
            logs.warning("config.refused", problems=len(error.errors), note="the old config stays")
            return Refusal("InvalidConfig", "; ".join(error.errors))
        report = differences(self._config, config)
        report = msgspec.structs.replace(report, closed=self._adopt(merged(self._config, config)))
        for notice in config.notices:
            logs.warning("config.notice", note=notice)
        logs.event("config.reloaded", changed=report.changed, closed=report.closed)
        if report.restart:
            logs.warning("config.restart", settings=report.restart, note="these count from the next start on")
        return report

    def _adopt(self, config: Config) -> int:
        """Apply a checked config; returns the number of connections that were closed."""
        before, self._config = self._config, config
        runtime = self.runtime
        logs.set_level(config.logs.level)
        self.tokens.adopt(config.auth)
        self.guard.adopt(config)
        if self._http is not None:
            self._http.adopt(config)
        adopt_config(runtime, self.archive, config)
        if self.cells is not None:
            self.cells.adopt(config)
        return self._readmit(was_open=before.auth.allow_anonymous)

    def _readmit(self, *, was_open: bool = False) -> int:
        """Give every connection the rights that its token has now; returns the number that were closed."""
        config, runtime = self._config, self.runtime
        closed = 0
        for connection in runtime.peers.all():
            refusal = admit(connection, self.tokens, was_open=was_open, is_open=config.auth.allow_anonymous)
            if refusal is not None:
                runtime.peers.dismiss(connection, refusal)
                closed += 1
            elif isinstance(connection.session, FrontSession | SocketFrontSession):
                connection.session.identified_as()
        return closed + sum(listener.cut_downloads(self.tokens.renewed) for listener in self._listeners)

    def start_pipeline(self) -> None:
        """Start the pipeline, once the server listens."""
        assert self.archive is not None
        assert self.endpoints is not None
        journal = self.archive.journal
        self.pipeline = PipelineSupervisor(
            self.archive.data, self._config.pipeline, self.endpoints.http, lambda: {journal.id: journal.next_offset}
        )
        self.pipeline.start()

    def pipeline_status(self) -> PipelineStatus | None:
        """The status of the pipeline, with the current end of the journal."""
        if self.pipeline is None or self.archive is None:
            return None
        return self.pipeline.status()

    async def drain(self) -> int:
        """Stop taking work, let leases settle, close everything; returns the leases given up."""
        loop = asyncio.get_running_loop()
        pipeline = None if self.pipeline is None else loop.create_task(self.pipeline.stop())
        for worker in self.skills:
            await worker.stop()
        if self._advertising is not None:
            await self._advertising.stop()
        self.control.close()
        given_up = 0
        if self.cells is not None:
            given_up = await self.cells.drain(self.runtime.machine.limits.drain_ms / 1_000)
            await self.cells.stop()
        drained: asyncio.Future[int] = loop.create_future()
        self.runtime.drain(drained.set_result)
        abandoned = await drained + given_up
        for listener in self._listeners:
            await listener.stop(1.0)
        if self._recorder is not None:
            self._recorder.close()
        if self.relay is not None:
            await self.relay.stop()
        if pipeline is not None:
            await pipeline
        if self._looking is not None:
            self._looking.cancel()
            with suppress(asyncio.CancelledError):
                await self._looking
        self.garbage.stop()
        if self.archive is not None:
            self.runtime.note("stop", abandoned=abandoned)
            flushed = asyncio.Event()
            self.runtime.flushed(flushed.set)
            await flushed.wait()
            await self.archive.close()
        await asyncio.to_thread(self.hosted.close)
        if self.events is not None:
            await asyncio.to_thread(self.events.close)
        (self.run_dir / "endpoints.json").unlink(missing_ok=True)
        if self._is_temporary:
            shutil.rmtree(self.run_dir, ignore_errors=True)
        return abandoned
