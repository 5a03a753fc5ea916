"""The tokens of a server as its operator sees, makes and takes them back, over HTTP. Blocking, and for one thread."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from penstock.client.history import RemoteServer


class RemoteTokens(RemoteServer):
    """The tokens behind a server's HTTP door."""

    def listed(self) -> dict[str, Any]:
        """Every token but the operator's own."""
        _, body = self._ask("GET", "/v1/tokens")
        return self._decoded(body, dict[str, Any])

    def mint(
        self, name: str, scopes: list[str], *, agent: str | None = None, tenant: str | None = None
    ) -> dict[str, Any]:
        """Make a token; the answer has it, this once."""
        asked = {"name": name, "scopes": scopes, "agent": agent, "tenant": tenant}
        _, body = self._ask("POST", "/v1/tokens", asked)
        return self._decoded(body, dict[str, Any])

    def revoke(self, name: str) -> dict[str, Any]:
        """Take a token back."""
        _, body = self._ask("DELETE", f"/v1/tokens/{quote(name, safe='')}")
        return self._decoded(body, dict[str, Any])
