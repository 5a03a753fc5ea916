"""Fixtures of this folder: real servers as child processes, and clients for them."""

from __future__ import annotations

import pytest

from tests.integration.serving import Http
from tests.server_process import server, start_server, stream

__all__ = ["http", "server", "start_server", "stream"]


@pytest.fixture(scope="session")
def http(server):
    """Plain requests to the shared server."""
    return Http(server.http)
