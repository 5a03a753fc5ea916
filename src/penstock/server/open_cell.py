"""Open the cell of a server from its config: machine, journal on disk or in memory, runtime."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version

from penstock.core.queue.machine import QueueMachine
from penstock.core.queue.policy import Policy
from penstock.core.scopes import Principal
from penstock.journal.open_and_repair import ERASURE, UNFINISHED
from penstock.journal.port import Journal, MemoryJournal
from penstock.server.cell import Cell
from penstock.server.config.load import Config, policy_for, quotas, rates
from penstock.server.courier.schema_registry import load_registry, reload_registry
from penstock.server.engine.machines import Machines, install_rules, make_machine
from penstock.server.engine.runtime import Runtime
from penstock.server.engine.schedulers import LoopScheduler
from penstock.server.journal.lifecycle import JournalLifecycle, progress_bar
from penstock.server.logging import logs

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
    scheduler: LoopScheduler,
    *,
    authenticate: Callable[[str | None], Principal | None],
) -> Cell:
    """A cell on the journal of `archive`, recovered from it; in memory without one."""
    machine = configured_machine(config)
    machine.limit_rates(rates(config))
    machine.tenants.quota_for = quotas(config)

    def open_journal(machines: Machines) -> Journal:
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
        keeps_history=archive is not None,
    )
    for lost in cell.lost_rules:
        logs.warning("trigger.lost", rule=lost, note="another version stored it; PUT it again")
    return cell
