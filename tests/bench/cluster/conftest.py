"""The server that stands in for a cluster."""

from __future__ import annotations

from tests.server_process import server

__all__ = ["server"]
