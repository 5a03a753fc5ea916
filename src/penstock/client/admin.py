"""Administration over HTTP: metrics, spaces and tokens of a server. Blocking; use one object per thread."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from penstock.client.journal import Object, RemoteServer
from penstock.core.errors import PenstockError

Labels = tuple[tuple[str, str], ...]
Counters = dict[tuple[str, Labels], float]
"""The samples of `/metrics`, by name and labels."""

TIMEOUT_S = 5.0
_HIDDEN = ("Unauthorized", "Forbidden", "UnknownRoute")


class ServerFigures(msgspec.Struct, frozen=True):
    """All figures of a server at about one moment."""

    health: dict[str, Any]
    streams: list[dict[str, Any]]
    """`[{id, stats, q}]`."""
    counters: Counters
    spaces: list[dict[str, Any]] | None
    """None if the token may not read them."""


class RemoteFigures(RemoteServer):
    """The figures of a server."""

    def __init__(self, url: str, token: str | None = None) -> None:
        super().__init__(url, token, timeout_s=TIMEOUT_S)

    def read(self) -> ServerFigures:
        """Fetch all figures."""
        health = self.health()
        streams = self._call(Object, "GET", "/v1/metrics").get("streams", [])
        _, text = self._ask("GET", "/metrics?streams=0")
        return ServerFigures(health, streams, parse_counters(text.decode()), self._spaces())

    def _spaces(self) -> list[dict[str, Any]] | None:
        try:
            return self._call(SpaceSurvey, "GET", "/v1/spaces").spaces
        except PenstockError as error:
            if error.code in _HIDDEN:
                return None
            raise


def parse_counters(text: str) -> Counters:
    """Parse the samples of the Prometheus text format."""
    from prometheus_client.parser import text_string_to_metric_families

    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


class SpaceSurvey(msgspec.Struct):
    """All spaces, or the requested one."""

    spaces: list[dict[str, Any]]


class RemoteSpaces(RemoteServer):
    """The spaces of a server."""

    def survey(self, space: str | None = None) -> SpaceSurvey:
        """Participants, open streams, and their counters."""
        query = f"?{urlencode({'space': space})}" if space is not None else ""
        return self._call(SpaceSurvey, "GET", f"/v1/spaces{query}")


class RemoteTokens(RemoteServer):
    """The tokens of a server."""

    def listed(self) -> dict[str, Any]:
        """All tokens except the operator's."""
        return self._call(Object, "GET", "/v1/tokens")

    def mint(
        self,
        name: str,
        scopes: list[str],
        *,
        agent: str | None = None,
        tenant: str | None = None,
        expires_at: datetime | None = None,
    ) -> dict[str, Any]:
        """Make a token; only this answer contains it. It is valid until `expires_at`, or until it is revoked."""
        asked: dict[str, Any] = {"name": name, "scopes": scopes, "agent": agent, "tenant": tenant}
        if expires_at is not None:  # an older server does not know it
            asked["expires_at"] = expires_at
        return self._call(Object, "POST", "/v1/tokens", asked)

    def revoke(self, name: str) -> dict[str, Any]:
        """Revoke a token."""
        return self._call(Object, "DELETE", f"/v1/tokens/{quote(name, safe='')}")
