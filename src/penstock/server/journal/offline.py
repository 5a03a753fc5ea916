"""Sealing without a server: the directory is locked, recovered as a start would, sealed and closed."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from msgspec.structs import replace

from penstock.core.clock import Now
from penstock.core.errors import PenstockError, Refusal
from penstock.dialects.mew.state import SpaceMemory
from penstock.journal.reader import JournalReader
from penstock.journal.retention import Retention
from penstock.journal.seal import SealReport
from penstock.server.config.load import Config, ConfigError, load, policy_for
from penstock.server.engine.machines import Machines, make_machine
from penstock.server.journal.lifecycle import JournalLifecycle, LockedError

KEEP_ALL = Retention(age_ms=0, bytes_max=0)


def seal_directory(data: Path, config_path: Path | None) -> SealReport:
    """Seal everything in a directory that no server writes."""
    JournalReader(data).identity()  # says so when there is none: a typing error must not make a journal
    try:
        config = load(config_path, os.environ)
    except ConfigError as error:
        raise PenstockError(Refusal("InvalidRequest", "; ".join(error.problems))) from None
    if config_path is None:
        # Without the server's own settings we do not know what it wants kept.
        config = replace(config, journal=replace(config.journal, retention=KEEP_ALL))
    try:
        return asyncio.run(_seal(data.absolute(), config))
    except LockedError as error:
        message, _, hint = str(error).partition("\nhint: ")
        raise PenstockError(Refusal("JournalUnavailable", message, hint=hint or None)) from None


async def _seal(data: Path, config: Config) -> SealReport:
    archive = JournalLifecycle(data, config)
    machine = make_machine(config.limits, lambda name: policy_for(config, name), os.urandom)
    archive.recover(
        Machines(machine, SpaceMemory()), Now(time.monotonic_ns() // 1000, time.time_ns() // 1000)
    )
    archive.start(asyncio.get_running_loop())
    try:
        return await archive.seal(wants_live=True)
    finally:
        await archive.close()
