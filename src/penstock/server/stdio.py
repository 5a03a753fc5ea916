"""`penstock stdio`: Control v1 on stdin and stdout, a queue inside another program's process tree.

Exits when stdin ends, after writing what is still to be answered, or when stdout is closed. Logs go to stderr.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path

from penstock.core.errors import Refusal
from penstock.core.scopes import ANONYMOUS
from penstock.dialects.courier.sessions.control.session import ControlSession
from penstock.journal.port import MemoryJournal
from penstock.server.cell import Cell
from penstock.server.config.load import Config, ConfigError, load
from penstock.server.engine.connections import Connection
from penstock.server.engine.schedulers import LoopScheduler
from penstock.server.logging import logs
from penstock.server.open_cell import configured_machine, version
from penstock.transports.byte_streams import open_stdio
from penstock.transports.transport import ByteStreamTransport


def main(config_path: Path | None = None) -> int:
    """Serve one client on stdin and stdout."""
    try:
        config = load(config_path, os.environ)
    except ConfigError as error:
        for problem in error.errors:
            print(f"error: {problem}", file=sys.stderr)
        return 2
    writer = logs.setup(config.logs)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(_run(config))
    finally:
        writer.close()
    return 0


async def _run(config: Config) -> None:
    loop = asyncio.get_running_loop()
    scheduler = LoopScheduler(loop)
    cell = Cell(
        configured_machine(config),
        lambda machines: MemoryJournal(scheduler.soon),
        scheduler,
        authenticate=lambda _: ANONYMOUS,
        version=version(),
        triggers=config.triggers,
    )
    runtime = cell.runtime

    def accept(wire: ByteStreamTransport, peer: str) -> Connection | None:
        connection = runtime.open(ControlSession(runtime, token_needed=False), wire, ANONYMOUS, "stdio")
        return None if isinstance(connection, Refusal) else connection

    ended, output = await open_stdio(accept)
    # A closed stdout ends the process too: a parent that died may leave stdin open.
    ends = [asyncio.ensure_future(ended.wait()), asyncio.ensure_future(output.closed.wait())]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    if output.closed.is_set():
        return
    flushed = asyncio.Event()
    runtime.flushed(flushed.set)
    await flushed.wait()
    output.close()
    await output.gone()
