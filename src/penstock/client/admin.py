"""What an operator reads and changes over HTTP: figures, spaces and tokens of a server. Blocking; use one object per thread."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from penstock.client.journal import RemoteServer
from penstock.core.errors import PenstockError

Labels = tuple[tuple[str, str], ...]
Counters = dict[tuple[str, Labels], float]
"""What `/metrics` says, by name and labels."""

TIMEOUT_S = 5.0
_HIDDEN = ("Unauthorized", "Forbidden", "UnknownRoute")


class ServerFigures(msgspec.Struct, frozen=True):
    """Everything at about one moment."""

    health: dict[str, Any]
    streams: list[dict[str, Any]]
    """`[{id, stats, q}]`."""
    counters: Counters
    spaces: list[dict[str, Any]] | None
    """None where the token does not show them."""


class RemoteFigures(RemoteServer):
    """The figures behind a server's HTTP door."""

    def __init__(self, url: str, token: str | None = None) -> None:
        super().__init__(url, token, timeout_s=TIMEOUT_S)

    def read(self) -> ServerFigures:
        """Ask for all of them."""
        health = self._object("/health")
        streams = self._object("/v1/metrics").get("streams", [])
        _, text = self._ask("GET", "/metrics?streams=0")
        return ServerFigures(health, streams, parse_counters(text.decode()), self._spaces())

    def _spaces(self) -> list[dict[str, Any]] | None:
        try:
            found: list[dict[str, Any]] = self._object("/v1/spaces").get("spaces", [])
        except PenstockError as error:
            if error.code in _HIDDEN:
                return None
            raise
        return found

    def _object(self, path: str) -> dict[str, Any]:
        _, body = self._ask("GET", path)
        return self._decoded(body, dict[str, Any])


def parse_counters(text: str) -> Counters:
    """The samples of Prometheus' text format."""
    from prometheus_client.parser import text_string_to_metric_families

    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


class SpaceSurvey(msgspec.Struct):
    """All spaces, or the one that was asked for."""

    spaces: list[dict[str, Any]]


class RemoteSpaces(RemoteServer):
    """The spaces behind a server's HTTP door."""

    def survey(self, space: str | None = None) -> SpaceSurvey:
        """Who is there, which streams are open, and what went through them."""
        query = f"?{urlencode({'space': space})}" if space is not None else ""
        _, body = self._ask("GET", f"/v1/spaces{query}")
        return self._decoded(body, SpaceSurvey)


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
