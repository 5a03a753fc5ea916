"""The entry of this server in the endpoints file of a Stream Kernel, so that the kernel's tools list it.

The entry is renewed at intervals and removed at the end. Other programs share the file: their entries are kept as they are, and the file
is replaced atomically. A malformed file is not changed; the server logs that once and is not listed until the file is repaired. Hosts of
the kernel rewrite the whole file when they end; the next renewal adds the entry again.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from penstock.core.queue.machine import QueueMachine
from penstock.kernel.router import SWEEP_MS, Endpoint, Router
from penstock.server.engine.runtime import Runtime
from penstock.server.logging import logs

BEAT_S = SWEEP_MS / 1000
"""How often the entry is renewed: three times within its lifetime."""
FILE_MAX = 4 * 1024 * 1024
"""Bytes of the file; a larger one is not changed."""
SLICE = 1_000
"""Streams summed in one turn of the loop."""


class _Entry(msgspec.Struct):
    """The fields of an entry that matter here."""

    id: Any = None


_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_entry = msgspec.json.Decoder(_Entry).decode


class MalformedError(Exception):
    """The file is not a list of entries."""


def merged(data: bytes | None, endpoint: Endpoint) -> bytes:
    """The file with the entry added, or replaced in its position."""
    entry = msgspec.json.encode(endpoint)
    entries = _read(data)
    if any(id_ == endpoint.id for id_, _ in entries):
        return _written([entry if id_ == endpoint.id else raw for id_, raw in entries])
    return _written([*(raw for _, raw in entries), entry])


def without(data: bytes, id_: str) -> bytes:
    """The file without the entry."""
    return _written([raw for other, raw in _read(data) if other != id_])


def _read(data: bytes | None) -> list[tuple[Any, bytes]]:
    """The id and the raw bytes of every entry."""
    if data is None or not data.strip():
        return []
    if len(data) > FILE_MAX:
        raise MalformedError(f"it has more than {FILE_MAX} bytes")
    try:
        return [(_entry(raw).id, bytes(raw)) for raw in _list(data)]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedError(f"it is not a list of endpoints: {error}") from None


def _written(entries: list[bytes]) -> bytes:
    return msgspec.json.format(b"[%b]" % b",".join(entries)) + b"\n"


async def totals(machine: QueueMachine, now_us: Callable[[], int]) -> dict[str, Any]:
    """Sums over all streams, a few per turn: there may be very many."""
    channels = list(machine.channels.values())
    depth = inflight = 0
    rate_in = rate_out = 0.0
    for start in range(0, len(channels), SLICE):
        us = now_us()
        for channel in channels[start : start + SLICE]:
            depth += channel.depth
            inflight += channel.leased
            rate_in += channel.rate_in.per_second(us)
            rate_out += channel.rate_out.per_second(us)
        await asyncio.sleep(0)
    return {
        "streams": len(machine.channels) + len(machine.dormant),
        "depth": depth,
        "inflight": inflight,
        "rateIn": round(rate_in, 3),
        "rateOut": round(rate_out, 3),
    }


class Advertisement:
    """Keeps the entry in the file while the server runs."""

    def __init__(
        self,
        path: Path,
        runtime: Runtime,
        http: str,
        control: str | None,
        *,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.path = path.absolute()
        self._runtime = runtime
        self._router = Router(now_ms)
        self._coordinates = control or http
        # The id is the same after a restart at the same address, so the entry of a crashed run is replaced.
        self.id = f"courier@{self._coordinates}"
        self._http = http
        self._task: asyncio.Task[None] | None = None
        self._trouble: str | None = None

    async def start(self) -> None:
        """Add the entry, and renew it at intervals."""
        await self.beat()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Remove the entry."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await asyncio.to_thread(self._withdraw)

    async def beat(self) -> None:
        """Renew the entry now."""
        machine, scheduler = self._runtime.machine, self._runtime.scheduler
        health = self._runtime.health(scheduler.now())
        metadata = {
            "service": "courier",
            "version": health["version"],
            "http": self._http,
            "ws": f"ws{self._http.removeprefix('http')}/v1/control",
            "stats": await totals(machine, lambda: scheduler.now().us),
        }
        endpoint = self._router.announce(self.id, "process", self._coordinates, metadata)
        await asyncio.to_thread(self._enter, endpoint)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            await self.beat()

    def _enter(self, endpoint: Endpoint) -> None:
        try:
            data = self.path.read_bytes() if self.path.exists() else None
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._replace(merged(data, endpoint))
        except (OSError, MalformedError) as error:
            self._note(str(error))
        else:
            self._note(None)

    def _withdraw(self) -> None:
        with contextlib.suppress(OSError, MalformedError):
            data = self.path.read_bytes()
            left = without(data, self.id)
            if left != data:
                self._replace(left)

    def _replace(self, data: bytes) -> None:
        draft = self.path.with_name(f".{self.path.name}.{secrets.token_hex(8)}")
        try:
            draft.write_bytes(data)
            if self.path.exists():
                draft.chmod(self.path.stat().st_mode & 0o777)
            draft.replace(self.path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise

    def _note(self, trouble: str | None) -> None:
        """Log once when the server is not listed, and once when it is again."""
        if trouble == self._trouble:
            return
        self._trouble = trouble
        if trouble is not None:
            logs.warning("advertise.off", file=str(self.path), reason=trouble, note="the file is not changed")
        else:
            logs.event("advertise.on", file=str(self.path))
