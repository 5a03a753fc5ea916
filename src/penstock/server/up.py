"""`penstock up`: run the server until it is stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from penstock.client.address import ServerEndpoints
from penstock.core.errors import PenstockError
from penstock.core.placement import SHARDS
from penstock.dialects.courier.triggers.shard_checks import cross_shard_refusal
from penstock.journal.lake_location import lake_of
from penstock.journal.segments import DamageError
from penstock.server.assembly import Cells, MakeCells, Service
from penstock.server.cells.cell_group import CellGroup
from penstock.server.config.cross_checks import relay_errors
from penstock.server.config.load import Config, ConfigError, load
from penstock.server.config.sections import SkillsSection
from penstock.server.engine.admission import raise_descriptor_limit
from penstock.server.engine.child_supervisor import ChildSupervisor
from penstock.server.engine.process_memory import MemoryTrimmer
from penstock.server.engine.schedulers import LoopScheduler
from penstock.server.journal.lifecycle import LockedError
from penstock.server.journal.seal_process import SHARDS_DIR
from penstock.server.journal.shard_migration import is_interrupted
from penstock.server.logging import logs
from penstock.server.open_cell import version
from penstock.server.ops.pipeline_supervisor import is_installed

if TYPE_CHECKING:
    from penstock.server.logging.logs import LogWriter

Section = TypeVar("Section", bound=msgspec.Struct)
DEMO_STOP_S = 3.0
"""How long the agents of the demo may take to disconnect."""
EXIT_OK, EXIT_ERROR, EXIT_USAGE = 0, 1, 2
LOCAL = "local"
"""With `--join`: NATS servers of our own, on this machine."""
CLUSTER = "penstock"


class Options(msgspec.Struct):
    """The flags of `penstock up`; what is None comes from the config."""

    config: Path | None = None
    data: str | None = None
    http: str | None = None
    control: str | None = None
    lake: str | None = None
    advertise: str | None = None
    log_level: str | None = None
    no_pipeline: bool = False
    pub: str | None = None
    pull: str | None = None
    no_relay: bool = False
    demo: bool = False
    cells: int | None = None
    join: str | None = None
    """URLs of NATS servers, with commas between them."""
    cluster: str | None = None
    node: str | None = None
    advertise_host: str | None = None
    nats_creds: Path | None = None
    nats_system_creds: Path | None = None
    nats_ca: Path | None = None
    unsafe_servers: bool = False
    creates_cluster: bool = False
    """Whether a cluster that is missing is made: the servers are this machine's own."""
    as_json: bool = False


class StartHints(msgspec.Struct, frozen=True):
    """The flags of a command that help when the system refuses something."""

    port: str = "`--http localhost:PORT` or `--control 127.0.0.1:PORT` (0 takes a free one)"
    directory: str = "`--data`"


START_HINTS = StartHints()


def configure(options: Options, env: Mapping[str, str]) -> Config:
    """The config of the file and the environment, with the flags over it."""
    config = load(options.config, env, options.lake)
    listen = _given(config.listen, http=options.http, control=options.control, advertise=options.advertise)
    log = _given(config.logs, level=options.log_level)
    pipeline = _given(config.pipeline, enabled=False if options.no_pipeline else None)
    is_on = config.relay.enabled is not False and not options.no_relay
    relay = _given(config.relay, enabled=is_on, pub=options.pub or None, pull=options.pull or None)
    if found := list(relay_errors(relay)):
        raise ConfigError([f"{'.'.join(map(str, path))}: {text}" for path, text in found])
    config = msgspec.structs.replace(config, listen=listen, logs=log, pipeline=pipeline, relay=relay)
    if options.demo and cells_of(options):
        raise ConfigError(["--demo: its triggers join streams of different shards; leave out `--cells`"])
    if options.demo:
        from penstock.server.ops.demo_supervisor import with_demo

        config = with_demo(config, has_data=options.data != "none")
    if options.join is not None:
        check_join(options)
    return with_cells(config) if cells_of(options) or options.join is not None else config


def check_join(options: Options) -> None:
    """Raise ConfigError for what a node of a cluster cannot be."""
    problems, options.cluster = [], options.cluster or CLUSTER
    options.node = options.node or ("a" if options.join == LOCAL else None)
    if not options.node:
        problems.append("--node: `--join` needs it: a name of letters, digits, `-` and `_`")
    if options.data == "none":
        problems.append("--data: a node keeps its copy of the shards on disk; name a directory")
    if options.cells is not None:
        problems.append("--cells: a node holds its shards itself; leave it out")
    if options.demo:
        problems.append("--demo: its triggers join streams of different shards; leave it out")
    if problems:
        raise ConfigError(problems)


def data_of(options: Options) -> Path | None:
    """The data directory; None keeps everything in memory."""
    return None if options.data == "none" else Path(options.data or "penstock-data").absolute()


def cells_of(options: Options) -> int:
    """How many processes hold the streams; 0 when the server itself does, in one journal."""
    if options.join is not None:
        return 0
    data, cells = data_of(options), options.cells
    if cells is not None and not 1 <= cells <= SHARDS:
        raise ConfigError([f"--cells: got {cells}, expected 1 to {SHARDS}"])
    if data is not None and (command := is_interrupted(data)):
        raise ConfigError([f"--data: `penstock cluster {command} {data}` was interrupted; run it again"])
    if data is not None and (data / SHARDS_DIR).is_dir():
        return cells or 1
    if cells is None or cells == 1:
        return 0
    if data is not None and (data / "journal").is_dir():
        hint = f"`penstock cluster import {data}` divides it, and `penstock cluster export` joins it again"
        raise ConfigError([f"--cells: `{data}` has one journal and no shards; {hint}"])
    return cells


def with_cells(config: Config) -> Config:
    """The config for several cells; raises ConfigError for what only one journal can do."""
    problems = [
        f"triggers: {refusal.message}; {refusal.kind.hint}"
        for refusal in map(cross_shard_refusal, config.triggers)
        if refusal
    ]
    if config.logs.record is not None:
        problems.append("logs.record: frames are not recorded with `--cells`; take it out")
    if config.skills != SkillsSection():
        problems.append("skills: skills do not run with `--cells`; take the section out")
    if problems:
        raise ConfigError(problems)
    return msgspec.structs.replace(config, pipeline=_given(config.pipeline, enabled=False))


def _given(section: Section, **flags: Any) -> Section:
    """The section with the flags that are not None."""
    return msgspec.structs.replace(section, **{name: value for name, value in flags.items() if value is not None})


def main(options: Options) -> int:
    """Run until a signal; the exit code says how it went."""
    try:
        config = configure(options, os.environ)
    except ConfigError as error:
        for problem in error.errors:
            print(f"error: {problem}", file=sys.stderr)
        print("hint: `penstock config doc` prints every setting", file=sys.stderr)
        return EXIT_USAGE
    data = data_of(options)
    writer = logs.setup(config.logs)
    work = _run_local if options.join == LOCAL else _run
    return run(lambda: work(config, data, writer, options), writer)


def run(work: Callable[[], Coroutine[Any, Any, int]], writer: LogWriter, hints: StartHints = START_HINTS) -> int:
    """Run a server on the fastest event loop available; print every failure with a hint."""
    try:
        import uvloop

        runner = uvloop.run
    except ImportError:
        runner = asyncio.run  # type: ignore[assignment]
    raise_descriptor_limit()
    try:
        return runner(_trimmed(work()))
    except ConfigError as error:
        for problem in error.errors:
            print(f"error: {problem}", file=sys.stderr)
        return EXIT_USAGE
    except (LockedError, DamageError) as error:
        print(f"error: {error}", file=sys.stderr)
        if isinstance(error, DamageError):
            hint = "restore the file from a backup, or give the rows up with `penstock log repair --accept-loss`"
            print(f"hint: `penstock log check` shows the damage; {hint}", file=sys.stderr)
        return EXIT_ERROR
    except PenstockError as error:
        print(f"error: {error.message}\nhint: {error.hint}", file=sys.stderr)
        return EXIT_ERROR
    except OSError as error:
        print(f"error: {_fault(error)}\nhint: {_hint(error, hints)}", file=sys.stderr)
        return EXIT_ERROR
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE
    finally:
        writer.close()


async def _trimmed(work: Coroutine[Any, Any, int]) -> int:
    """Run a server and return its free memory to the system meanwhile."""
    trimming = asyncio.get_running_loop().create_task(MemoryTrimmer().run())
    try:
        return await work
    finally:
        trimming.cancel()


def _fault(error: OSError) -> str:
    said = error.strerror or str(error)
    return f"`{error.filename}`: {said}" if error.filename else said


def _hint(error: OSError, hints: StartHints) -> str:
    match error.errno:
        case 98 | 48:
            return f"another program listens there; stop it, or choose another port with {hints.port}"
        case 13 | 1:
            return "choose a directory or port that you may use"
        case 28:
            return f"the disk is full: free some space, or choose another directory with {hints.directory}"
        case 2 | 20 | 30:
            return f"choose another directory with {hints.directory}"
        case _:
            return "`penstock doctor` checks the machine"


def _console_line(service: Service, url: str) -> str:
    """The link that signs in; a browser does not send the part after `#`."""
    if service.console is None or not service.console.is_built:
        return "not built: `make setup` builds it where there is Node 20 or newer"
    return f"{url}#token={service.operator_token}"


def _pipeline_line(service: Service, config: Config, data: Path | None) -> str:
    if service.cells is not None:
        return "off with --cells and --join; history goes to the table `events`"
    if data is None or not config.pipeline.enabled:
        return "off"
    if not is_installed():
        return "off: `pip install penstock[spark]` brings it"
    return f"{config.pipeline.master}, joins when Spark is up; tables in {lake_of(data)}"


def _banner(service: Service, config: Config, data: Path | None, endpoints: ServerEndpoints, options: Options) -> str:
    """Where everything is; parts that are off without a flag are left out."""
    demo = None
    if options.demo:
        from penstock.server.ops.demo_supervisor import summary

        demo = summary(config)
    memory = "memory: envelopes do not survive a restart"
    lines = {
        "http": endpoints.http,
        "also": endpoints.ws,
        "control": endpoints.control or "off",
        "relay": endpoints.pub and f"{endpoints.pub}, publishers at {endpoints.pull}",
        "spaces": ", ".join(space.settings.id for space in service.spaces),
        "journal": memory if data is None else f"{data / 'journal'} (sync: {config.journal.sync})",
        "nats": options.creates_cluster
        and f"another node: penstock up --join {options.join} --nats-creds {options.nats_creds} --node NAME --data DIR",
        "cells": service.cells and f"{service.cells.about}, {data and data / SHARDS_DIR}",
        "pipeline": _pipeline_line(service, config, data),
        "demo": demo,
        "run": str(service.run_dir),
        "console": endpoints.console and _console_line(service, endpoints.console),
        "": endpoints.console and "`penstock console` prints this link again",
    }
    shown = [f"  {name:<8} {text}" for name, text in lines.items() if text]
    return "\n".join([f"penstock {version()} is up", *shown])


def stop_signals(writer: LogWriter, reload: Callable[[], object] | None = None) -> asyncio.Event:
    """Set by the first signal to stop; a second signal ends the process.

    Call it before the server can be reached: a signal at that moment must drain too.
    """
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop(name: str) -> None:
        if stopping.is_set():
            logs.event("server.exit", signal=name, note="a second signal: exit at once")
            writer.close()
            os._exit(EXIT_ERROR)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number.name)
    if reload is not None:
        loop.add_signal_handler(signal.SIGHUP, reload)
    else:  # without a config to reload, the terminal was closed
        loop.add_signal_handler(signal.SIGHUP, stop, signal.SIGHUP.name)
    return stopping


async def drain(service: Service) -> int:
    """Drain the server and stop it; returns the exit code."""
    logs.event("server.drain", leased=service.runtime.machine.leased)
    abandoned = await service.drain()
    logs.event("server.stop", abandoned=abandoned)
    return EXIT_OK


def cell_processes(count: int) -> MakeCells:
    """The streams in so many processes."""
    return lambda config, data, run_dir, scheduler: CellGroup(config, data, run_dir, count)


def cluster_cells(options: Options) -> MakeCells:
    """The streams in a cluster that this process is a node of."""
    # Here, so that a server alone needs no client of NATS.
    from penstock.journal.replicated.connection import parse_servers
    from penstock.server.cluster.join import JoinOptions
    from penstock.server.cluster.node import ClusterNode

    assert options.join is not None
    system = options.nats_system_creds
    join = JoinOptions(
        parse_servers(options.join, options.nats_creds, options.nats_ca),
        options.cluster or "",
        options.node or "",
        None if system is None else parse_servers(options.join, system, options.nats_ca),
        options.advertise_host,
        options.creates_cluster,
        options.unsafe_servers,
    )

    def make(config: Config, data: Path | None, run_dir: Path, scheduler: LoopScheduler) -> Cells:
        assert data is not None, "checked with the options"
        return ClusterNode(config, data, join, scheduler)

    return make


async def _run_local(config: Config, data: Path | None, writer: LogWriter, options: Options) -> int:
    """The same with NATS servers on this machine, which end after the server."""
    from penstock.server.ops.cluster.local_servers import LocalServers

    assert data is not None, "checked with the options"
    servers = LocalServers(data)
    try:
        options.join, options.nats_creds, options.creates_cluster = (await servers.start()).shown, servers.creds, True
        return await _run(config, data, writer, options)
    finally:
        await servers.stop()


async def _run(config: Config, data: Path | None, writer: LogWriter, options: Options) -> int:
    cells = cells_of(options)
    if cells and data is not None:  # before the journal of the server itself, which alone would look undivided
        (data / SHARDS_DIR).mkdir(mode=0o700, parents=True, exist_ok=True)
    make_cells: MakeCells | None = None
    if options.join is not None:
        make_cells = cluster_cells(options)
    elif cells:
        make_cells = cell_processes(cells)
    service = Service(config, data, lambda: writer.dropped, lambda: configure(options, os.environ), make_cells)
    can_reload = config.source is not None or not sys.stdout.isatty()
    stopping = stop_signals(writer, service.reload if can_reload else None)
    endpoints = await service.start()
    for notice in config.notices:
        logs.warning("config.notice", note=notice)
    if options.as_json:
        print(msgspec.json.encode({**msgspec.to_builtins(endpoints), "run": str(service.run_dir)}).decode(), flush=True)
    else:
        print(_banner(service, config, data, endpoints, options), flush=True)
    if data is not None and config.pipeline.enabled and is_installed():
        service.start_pipeline()
    demo = None
    if options.demo:
        from penstock.server.ops.demo_supervisor import LOG, task_of

        demo = ChildSupervisor("penstock.demo.process", log=service.run_dir / LOG)
        await demo.start(task_of(service, config, prints=not options.as_json))
    await stopping.wait()
    if demo is not None:
        await demo.stop(DEMO_STOP_S)
    return await drain(service)
