"""NATS servers that every client may use, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.nats_servers import NatsServers


@pytest.fixture(scope="package")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServers]:
    found = NatsServers(tmp_path_factory.mktemp("nats"))
    yield found
    found.close()
