"""`connect`: finds the server, dials it, and makes a client."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from penstock.client import address
from penstock.client.control.connection import ControlConnection
from penstock.client.control.frames import require
from penstock.client.control.owner_links import PROBE_S, OwnerLinks
from penstock.client.queue.client import Client
from penstock.client.queue.settles import UNCONFIRMED_MAX, OnLost, Unconfirmed
from penstock.core.names import agent_problem


class Connecting:
    """The result of `connect`: await it to get a client, or use it in `async with`."""

    def __init__(self, open_client: Callable[[], Coroutine[Any, Any, Client]]) -> None:
        self._open = open_client
        self._client: Client | None = None

    def __await__(self) -> Generator[Any, None, Client]:
        return self._open().__await__()

    async def __aenter__(self) -> Client:
        self._client = await self._open()
        return self._client

    async def __aexit__(self, *exception: object) -> None:
        if self._client is not None:
            await self._client.__aexit__(*exception)


def connect(
    url: str | None = None,
    token: str | None = None,
    agent: str | None = None,
    *,
    timeout: float = 30.0,
    connect_timeout: float = 10.0,
    reconnect: bool = True,
    retries: int = 0,
    unconfirmed_max: int = UNCONFIRMED_MAX,
    on_lost: OnLost | None = None,
) -> Connecting:
    """Connect to Penstock: `async with connect() as client`, or `client = await connect()` and later `await client.close()`.

    Raises PenstockError with the code `Unreachable` when there is no server, and `Unauthorized` when it rejects the token.

    Args:
        url: `tcp://host:port`, `unix:/path`, or `http(s)://` and `ws(s)://` for a WebSocket. Default: `PENSTOCK_URL`, else the
            server running on `./penstock-data`, else `tcp://127.0.0.1:9787`.
        token: Default: `PENSTOCK_TOKEN`.
        agent: Your agent's name. It fills `from` of what you send, names the inbox that `inbox` and `ask` read, and is what
            others see as the holder of your leases.
        timeout: Seconds to wait for an answer; then a request raises `Timeout`.
        connect_timeout: Seconds that connecting may take.
        reconnect: Reconnect after the connection is lost, with a growing back-off.
        retries: How often to repeat a request that the server rejects with a retryable error (429, 503), after the delay that
            the server names.
        unconfirmed_max: The most settles without an answer; `ack`, `nack`, `release` and `term` wait at that number.
        on_lost: Called with each delivery whose settle was lost with its lease or its connection.

    Example:
        async with penstock.connect(agent="sam") as client:
            await client.send("jen", {"text": "hello"})
    """

    async def open_client() -> Client:
        require(None if agent is None else agent_problem(agent))
        place = address.parse(address.discover(url))
        secret = address.given_token(token) or os.environ.get("PENSTOCK_TOKEN") or None

        # Nodes of a cluster are reached as this one is: a token must not leave a door with TLS for one without.
        wants_owners = place.kind == "tcp" and reconnect

        async def dial(place: address.Address) -> ControlConnection:
            connection = ControlConnection(
                place,
                secret,
                agent=agent,
                timeout_s=timeout,
                connect_timeout_s=connect_timeout,
                reconnect=reconnect,
                wants_owners=wants_owners,
            )
            await connection.open()
            return connection

        async def probe(place: address.Address) -> ControlConnection:
            connection = ControlConnection(
                place, secret, connect_timeout_s=min(PROBE_S, connect_timeout), reconnect=False
            )
            await connection.open()
            return connection

        unconfirmed = Unconfirmed(unconfirmed_max)
        home = await dial(place)
        owners = OwnerLinks(home, dial, probe)
        return Client(home, dial, owners, agent=agent, retries=retries, unconfirmed=unconfirmed, on_lost=on_lost)

    return Connecting(open_client)
