"""`penstock pipe`: kernel pipes for a running server, in a separate process.

It listens, dials hosts, or both, and serves every pipe through a bridge. It ends on a signal, when all dialled hosts have closed and it
does not listen, or when the server is unreachable.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from penstock.client.address import Address
from penstock.core.errors import PenstockError, Refusal
from penstock.server.files.addresses import is_loopback
from penstock.server.ops.kernel.bridge import Bridge
from penstock.transports.pipe_transports import PipeAddress, PipeListener, PipeTransport, dial, listen, parse_pipe


class PipeReady(msgspec.Struct, frozen=True):
    """The addresses of the open pipes."""

    listen: list[str]
    connect: list[str]
    server: str
    tap: str | None = None


class PipeOptions(msgspec.Struct, frozen=True):
    """The options of `penstock pipe`."""

    listen: list[PipeAddress]
    connect: list[PipeAddress]
    server: Address
    token: str | None = None
    tap: str | None = None
    is_public: bool = False


def addresses(texts: Sequence[str], *, is_public: bool = True) -> list[PipeAddress]:
    """Parse URLs of pipes; raises PenstockError for an invalid one, and for a public address without `is_public`."""
    found = []
    for text in texts:
        try:
            address = parse_pipe(text)
        except ValueError as error:
            raise PenstockError(Refusal("InvalidRequest", str(error))) from None
        if not is_public and not is_loopback(address.host):
            hint = "listen on 127.0.0.1, or add --public; every client that reaches the port then has the rights of this process"
            message = f"other machines can reach `{text}`"
            raise PenstockError(Refusal("Forbidden", message, hint=hint))
        found.append(address)
    return found


async def run(options: PipeOptions, ready: Callable[[PipeReady], None]) -> None:
    """Serve pipes until none is left; raises PenstockError when the server is unreachable."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, stopped.set)
    bridge = Bridge(options.server, options.token, options.tap)
    await bridge.check()
    listeners: list[PipeListener] = []
    dialled: list[asyncio.Task[bool]] = []
    stopping = asyncio.ensure_future(stopped.wait())
    try:
        for address in options.listen:
            # One by one: when one fails, the open ones must be closed.
            listeners.append(await _open(bridge, address, options.is_public))  # noqa: PERF401
        for address in options.connect:
            dialled.append(loop.create_task(bridge.serve(await _dial(address))))  # noqa: PERF401
        ready(
            PipeReady(
                [str(listener.address) for listener in listeners],
                [str(address) for address in options.connect],
                options.server.url,
                options.tap,
            )
        )
        await _until_over(bridge, stopping, dialled, is_listening=bool(listeners))
    finally:
        stopping.cancel()
        # Peers first: closing a listener waits for the connections that it accepted.
        await bridge.close()
        for listener in listeners:
            await listener.close()
        await asyncio.gather(*dialled, return_exceptions=True)
    if bridge.lost.done():
        raise bridge.lost.result()


async def _until_over(
    bridge: Bridge, stopping: asyncio.Future[Any], dialled: list[asyncio.Task[bool]], *, is_listening: bool
) -> None:
    waiting: list[asyncio.Future[Any]] = [*dialled]
    while is_listening or waiting:
        ends: list[asyncio.Future[Any]] = [stopping, bridge.lost, *waiting]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if stopping.done() or bridge.lost.done():
            return
        waiting = [task for task in waiting if not task.done()]


async def _open(bridge: Bridge, address: PipeAddress, is_public: bool) -> PipeListener:
    async def serve(channel: PipeTransport) -> None:
        await bridge.serve(channel)

    try:
        return await listen(address, serve, is_public=is_public)
    except OSError as error:
        message = f"cannot listen on {address}: {error.strerror or error}"
        raise PenstockError(
            Refusal("InvalidRequest", message, hint="choose another port; 0 takes a free one")
        ) from None


async def _dial(address: PipeAddress) -> PipeTransport:
    try:
        return await dial(address)
    except OSError as error:
        message = f"cannot connect to {address}: {error.strerror or error}"
        hint = "is the host's pipe server running?"
        raise PenstockError(Refusal("Unreachable", message, hint=hint)) from None
