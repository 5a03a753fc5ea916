"""The connection of a node to NATS: who it is, and that it comes back for ever."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import nats
from nats.aio.client import Client

from penstock.core.errors import PenstockError, Refusal
from penstock.journal.replicated.jetstream import FAILURES
from penstock.server.logging import logs

CONNECT_S = 60.0
"""How long a node waits for the servers when it starts."""
RECONNECT_S = 0.2
LOG_EVERY_S = 1.0
"""At most one line about the connection in this time."""
T = TypeVar("T")
PENDING_BYTES = 64 * 1024 * 1024
"""What the client holds back while it has no server; more ends the pipes to other nodes, and publishes fail."""


class Login(msgspec.Struct, frozen=True):
    """How to show the servers who this is; the texts are secrets."""

    creds: Path | None = None
    """A file of `nsc`, a file with the seed of an nkey, or one line `user:password`."""
    ca: Path | None = None

    def options(self) -> dict[str, Any]:
        """What `nats.connect` wants."""
        found: dict[str, Any] = {}
        if self.ca is not None:
            found["tls"] = ssl.create_default_context(cafile=str(self.ca))
        if self.creds is None:
            return found
        try:
            text = self.creds.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            hint = "name a file of `nsc`, of the seed of an nkey, or with one line `user:password`"
            message = f"`{self.creds}` cannot be read: {getattr(error, 'strerror', None) or error}"
            raise PenstockError(Refusal("InvalidRequest", message, hint=hint)) from None
        user, colon, password = text.partition(":")
        if text.startswith("-----BEGIN"):
            found["user_credentials"] = str(self.creds)
        elif colon:
            found |= {"user": user, "password": password}
        else:
            found["nkeys_seed_str"] = text
        return found


class Notices:
    """What the client says about its connection, a line now and then."""

    def __init__(self) -> None:
        self._said_s = -LOG_EVERY_S
        self.errors = 0

    async def failed(self, error: Exception) -> None:
        self.errors += 1
        now_s = time.monotonic()
        if now_s - self._said_s >= LOG_EVERY_S:
            self._said_s = now_s
            logs.warning("nats.error", reason=str(error) or type(error).__name__, errors=self.errors)

    async def left(self) -> None:
        logs.warning("nats.disconnected")

    async def back(self) -> None:
        logs.event("nats.connected")


async def connect(urls: list[str], login: Login, name: str, *, within_s: float = CONNECT_S) -> Client:
    """Connect to the first server that accepts."""
    notices = Notices()
    options = login.options()

    async def attempt() -> Client:
        return await nats.connect(
            urls,
            name=name,
            max_reconnect_attempts=-1,
            reconnect_time_wait=RECONNECT_S,
            pending_size=PENDING_BYTES,
            error_cb=notices.failed,
            disconnected_cb=notices.left,
            reconnected_cb=notices.back,
            allow_reconnect=True,
            **options,
        )

    try:
        async with asyncio.timeout(within_s):
            return await until_answered(attempt)
    except TimeoutError:
        hint = "`--join` names the URLs of your NATS servers, such as nats://10.0.0.1:4222; `--nats-creds` says who you are"
        raise PenstockError(Refusal("Unreachable", f"no NATS server of {', '.join(urls)} accepts", hint=hint)) from None


async def until_answered(ask: Callable[[], Awaitable[T]]) -> T:
    """The first answer that the servers give: while they elect a leader they give none."""
    while True:
        try:
            return await ask()
        except FAILURES:
            await asyncio.sleep(RECONNECT_S)
