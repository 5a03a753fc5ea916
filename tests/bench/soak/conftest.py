"""The server that the attackers attack."""

from __future__ import annotations

from tests.server_process import server

__all__ = ["server"]
