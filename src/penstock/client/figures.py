"""The figures of a server over HTTP: its health, its streams, its counters and its spaces. Blocking, and for one thread."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.client.history import RemoteServer
from penstock.core.errors import PenstockError

Labels = tuple[tuple[str, str], ...]
Counters = dict[tuple[str, Labels], float]
"""What `/metrics` says, by name and labels."""

TIMEOUT_S = 5.0
_HIDDEN = ("Unauthorized", "Forbidden", "UnknownRoute")


class Figures(msgspec.Struct, frozen=True):
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

    def read(self) -> Figures:
        """Ask for all of them."""
        health = self._object("/health")
        streams = self._object("/v1/metrics").get("streams", [])
        _, text = self._ask("GET", "/metrics?streams=0")
        return Figures(health, streams, parse_counters(text.decode()), self._spaces())

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
