"""The spaces of a server as its operator sees them, over HTTP. Blocking, and for one thread."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import msgspec

from penstock.client.history import RemoteServer


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
