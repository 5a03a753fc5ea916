"""Open the cell of a server from its config: machine, journal on disk or in memory, runtime."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version

import msgspec

from penstock.core.queue.machine import QueueMachine
from penstock.core.queue.policy import Policy
from penstock.core.scopes import Principal
from penstock.dialects.courier.sessions.front.lines import shard_of_stream, shard_suffix
from penstock.journal.open_and_repair import ERASURE, UNFINISHED
from penstock.journal.port import Journal, MemoryJournal
from penstock.server.cell import Cell
from penstock.server.cells.cell_requests import CellServices
from penstock.server.config.load import Config, policy_for, quotas, rates
from penstock.server.config.sections import LogsSection
from penstock.server.courier.schema_registry import load_registry, reload_registry
from penstock.server.engine.connections import Scheduler
from penstock.server.engine.machines import Machines, install_rules, make_machine
from penstock.server.engine.runtime import Runtime
from penstock.server.http.idempotency import Replays
from penstock.server.journal.lifecycle import JournalLifecycle, progress_bar
from penstock.server.logging import logs
from penstock.server.logging.event_log import make_event_log
from penstock.server.metrics.prometheus_families import Exporter

POLICY_CACHE_MAX = 100_000
"""Policies cached by stream name. When full, the cache starts over."""


def version() -> str:
    try:
        return installed_version("penstock")
    except PackageNotFoundError:
        return "0.1.0"


def policies(config: Config) -> Callable[[str], Policy]:
    """The policy of a stream, cached by name."""
    known: dict[str, Policy] = {}

    def find(name: str) -> Policy:
        policy = known.get(name)
        if policy is None:
            if len(known) >= POLICY_CACHE_MAX:
                known.clear()
            policy = known[name] = policy_for(config, name)
        return policy

    return find


def configured_machine(config: Config) -> QueueMachine:
    """A queue machine with the policies and schemas of the config."""
    find = policies(config)
    machine = make_machine(config.limits, find, secrets.token_bytes, auto_create=config.streams.auto_create)
    machine.schemas = load_registry(config.schemas.dir, find)
    return machine


def adopt_config(runtime: Runtime, archive: JournalLifecycle | None, config: Config) -> None:
    """Have a running cell use a reloaded config."""
    now, machine = runtime.scheduler.now(), runtime.machine
    runtime.log_records = config.logs.level == "debug"
    if archive is not None:
        archive.adopt(config)
    machine.reconfigure(
        now,
        limits=config.limits,
        policy_for=policies(config),
        auto_create=config.streams.auto_create,
        rates=rates(config),
        quota_for=quotas(config),
    )
    install_rules(machine, config.triggers)
    machine.schemas = reload_registry(machine.schemas, config.schemas.dir, machine.policy_for)
    runtime.apply(now)


def open_cell(
    config: Config,
    archive: JournalLifecycle | None,
    scheduler: Scheduler,
    *,
    authenticate: Callable[[str | None], Principal | None],
    replicated: tuple[QueueMachine, Journal] | None = None,
) -> Cell:
    """A cell on the journal of `archive`, recovered from it; in memory without one. A `replicated` journal has recovered its machine."""
    machine = configured_machine(config) if replicated is None else replicated[0]
    machine.limit_rates(rates(config))
    machine.tenants.quota_for = quotas(config)

    def open_journal(machines: Machines) -> Journal:
        if replicated is not None:
            return replicated[1]
        if archive is None:
            return MemoryJournal(scheduler.soon)
        with progress_bar("reading the journal") as progress:
            rows = archive.recover(machines, scheduler.now(), progress)
        journal = archive.start(asyncio.get_running_loop())
        if rows:
            logs.event("journal.recovered", rows=rows, envelopes=machine.live)
        if (archive.data / "journal" / ERASURE).exists():
            logs.warning("journal.erasure", note=UNFINISHED)
        return journal

    cell = Cell(
        machine,
        open_journal,
        scheduler,
        authenticate=authenticate,
        version=version(),
        triggers=config.triggers,
        log=logs.runtime_event,
        log_records=config.logs.level == "debug",
        keeps_history=archive is not None or replicated is not None,
    )
    for lost in cell.lost_rules:
        logs.warning("trigger.lost", rule=lost, note="another version stored it; PUT it again")
    return cell


def suffixed(section: LogsSection, suffix: str) -> LogsSection:
    """The settings of logs with files of their own: two processes must not rotate the same ones."""
    file, events = (None if path is None else f"{path}.{suffix}" for path in (section.file, section.events))
    return msgspec.structs.replace(section, file=file, events=events)


def open_shard(
    shard: int,
    config: Config,
    archive: JournalLifecycle | None,
    scheduler: Scheduler,
    replicated: tuple[QueueMachine, Journal] | None = None,
) -> tuple[Cell, CellServices]:
    """The cell of a shard, and what requests from its fronts are answered from. It lets clients in that a front has let in."""
    cell = open_cell(config, archive, scheduler, authenticate=lambda token: None, replicated=replicated)
    cell.runtime.events = make_event_log(suffixed(config.logs, f"shard-{shard}"))
    cell.machine.boot += shard_suffix(shard)
    cell.machine.is_here = lambda name: shard_of_stream(name) == shard
    exporter = Exporter(cell.runtime, lambda: 0, Replays(), per_stream=config.metrics.per_stream, archive=archive)
    return cell, CellServices(config, cell.runtime, exporter)
