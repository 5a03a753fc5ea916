"""A server without sockets: requests go to the HTTP endpoint as values."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import msgspec

from penstock.server.assembly import Service
from penstock.server.config.load import Config
from penstock.server.http.listener import HttpEndpoint
from penstock.server.spaces.listener import SpaceEndpoint
from penstock.transports.exchanges import Exchange
from penstock.transports.http_replies import Reply

OPERATOR_TOKEN = "operator-token"
LOOPBACK = "127.0.0.1"


class FakeExchange:
    """A request as the transport hands it over."""

    def __init__(
        self, method: str, path: str, body: Any, headers: dict[str, str], query: dict[str, str], **more: Any
    ) -> None:
        self.method = method
        self.path = path
        self._body = body if isinstance(body, bytes) else b"" if body is None else msgspec.json.encode(body)
        self.headers = {"Host": "localhost:8787", **headers}
        self.query_pairs = list(query.items())
        self.peer: str = more.get("peer", LOOPBACK)
        self.size: int | None = more.get("size", len(self._body))
        self.is_known = False
        self.is_upgrade: bool = more.get("upgrade", False)
        self.reads = 0

    def known(self) -> None:
        self.is_known = True

    def holds(self, size: int) -> None:
        """What it holds is counted by real connections."""

    async def read(self) -> bytes:
        self.reads += 1
        return self._body


class HttpDriver:
    """The HTTP endpoint of a server that keeps nothing, unless it has a folder."""

    def __init__(self, config: Config, data: Path | None = None) -> None:
        self.service = Service(config, data, lambda: 0)
        self.service.tokens.add_operator(OPERATOR_TOKEN)
        self.services = self.service._http_services(config)
        spaces = SpaceEndpoint(self.services.spaces, self.services.guard, is_loopback_bind=True)
        self.endpoint = HttpEndpoint(self.services, spaces, is_loopback_bind=True)

    async def handle(self, method: str, path: str, body: Any = None, *, token: str | None = None, **more: Any) -> Any:
        """The answer, whatever it is."""
        headers = dict(more.pop("headers", {}))
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        self.exchange = FakeExchange(method, path, body, headers, more.pop("query", {}), **more)
        async with asyncio.timeout(10):
            return await self.endpoint.handle(cast(Exchange, self.exchange))

    async def ask(self, method: str, path: str, body: Any = None, **more: Any) -> tuple[int, Any]:
        """Status and JSON of the answer."""
        reply = await self.handle(method, path, body, **more)
        assert isinstance(reply, Reply), reply
        return reply.status, msgspec.json.decode(reply.body) if reply.body else None

    async def code(self, *asked: Any, **more: Any) -> str:
        """The error code of a refusal."""
        status, body = await self.ask(*asked, **more)
        assert status >= 400, body
        return str(body["error"]["code"])


def drive(work: Callable[[HttpDriver], Awaitable[None]], config: Config | None = None) -> None:
    """Run a test on a server of its own."""

    async def run() -> None:
        driver = HttpDriver(config or Config())
        try:
            await work(driver)
        finally:
            shutil.rmtree(driver.service.run_dir, ignore_errors=True)

    asyncio.run(run())


def envelope(id_: str, **more: Any) -> dict[str, Any]:
    return {"id": id_, "ts": "2026-01-01T00:00:00Z", "type": "t", "payload": {}, **more}
