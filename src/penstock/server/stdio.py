"""`penstock stdio`: Control v1 on stdin and stdout, inside another program's process tree.

The queue is in memory, or with `--server` that of a running server. Exits when stdin ends, after writing what is still to be
answered, or when stdout is closed. Logs go to stderr.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path

from penstock.client.address import Address
from penstock.client.control.raw_connection import RawConnection
from penstock.core.errors import PenstockError, Refusal
from penstock.core.limits import Limits
from penstock.core.scopes import ANONYMOUS
from penstock.dialects.courier.sessions.control.session import ControlSession
from penstock.dialects.courier.wire.kernel_frames import WholeLines
from penstock.journal.port import MemoryJournal
from penstock.server.cell import Cell
from penstock.server.config.load import Config, ConfigError, load
from penstock.server.engine.connections import Connection
from penstock.server.engine.schedulers import LoopScheduler
from penstock.server.logging import logs
from penstock.server.open_cell import configured_machine, version
from penstock.transports.byte_streams import open_stdio
from penstock.transports.transport import ByteStreamTransport

FLUSH_S = 5.0
"""How long the last answers of a server may take after the input has ended: a pull of a minute must not hold the process."""


def main(config_path: Path | None = None, server: Address | None = None, token: str | None = None) -> int:
    """Serve one client on stdin and stdout; raises PenstockError when the server is lost."""
    if server is not None:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(_join(server, token))
        return 0
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
        connection = runtime.peers.open(ControlSession(runtime, token_needed=False), wire, ANONYMOUS, "stdio")
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


class _Carrier:
    """Stdin and stdout as one end of a connection to a server: a chunk is read when the one before has been sent."""

    def __init__(self, wire: ByteStreamTransport) -> None:
        self.wire = wire
        self.chunks: asyncio.Queue[bytes] = asyncio.Queue()
        self.writable = asyncio.Event()
        self.writable.set()

    def received(self, data: bytes) -> None:
        self.wire.hold(True)
        self.chunks.put_nowait(data)

    def congested(self, on: bool) -> None:
        (self.writable.clear if on else self.writable.set)()

    def lost(self) -> None:
        self.writable.set()

    async def up(self, uplink: RawConnection) -> None:
        lines = WholeLines(Limits().frame_max + 1)  # the server refuses a longer line, and this process holds no more
        while chunk := await self.chunks.get():
            for part in lines.feed(chunk):
                await uplink.write(part)
            self.wire.hold(False)

    async def down(self, uplink: RawConnection) -> None:
        while lines := await uplink.read():
            await self.writable.wait()
            self.wire.send([lines])


async def _join(server: Address, token: str | None) -> None:
    """Carry lines to a running server and back until the input or the output ends."""
    uplink = await RawConnection.open(server, token)
    carrier: _Carrier

    def accept(wire: ByteStreamTransport, peer: str) -> _Carrier:
        nonlocal carrier
        carrier = _Carrier(wire)
        return carrier

    ended, output = await open_stdio(accept)
    work = [ended.wait(), output.closed.wait(), carrier.up(uplink), carrier.down(uplink)]
    is_ended, is_closed, up, down = tasks = [asyncio.ensure_future(one) for one in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if is_closed.done():
            return
        if not is_ended.done():
            raise PenstockError(Refusal("Unreachable", f"no connection to {server.url}: {uplink.reason}"))
        carrier.chunks.put_nowait(b"")  # what was read before the end is sent first
        await asyncio.wait((up,), timeout=FLUSH_S)
        await uplink.finish()
        await asyncio.wait((down,), timeout=FLUSH_S)
        output.close()
        await output.gone()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await uplink.close()
