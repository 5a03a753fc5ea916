"""Three NATS servers for the tests of this folder."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import nats
import pytest
from nats.aio.client import Client

from tests.cluster_node import until
from tests.nats_servers import NatsServers


@asynccontextmanager
async def connected(servers: NatsServers, user: str = "app") -> AsyncIterator[Client]:
    """A connection, as soon as a server accepts one."""

    async def ignore(error: Exception) -> None:
        """Servers start and end under a test."""

    client = await until(
        lambda: nats.connect(servers.urls, user=user, password=user, error_cb=ignore, allow_reconnect=True)
    )
    try:
        yield client
    finally:
        await client.close()


@pytest.fixture(scope="package")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServers]:
    found = NatsServers(tmp_path_factory.mktemp("nats"))
    yield found
    found.close()
