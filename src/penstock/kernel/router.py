"""The kernel's routing table, in process: endpoints with a time to live.

An announcement is also the heartbeat. `sweep`, which the caller must call, removes entries whose announcement is older than `ttl_ms`. The
caller provides the time. There is no wire protocol: a bridge to another host passes its announcements to `receive_from_peer`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from penstock.core.errors import PenstockError, Refusal

TTL_MS = 30_000
"""How long an announcement is valid."""
SWEEP_MS = 10_000
"""Interval of announcements and sweeps."""
ENDPOINTS_MAX = 10_000
"""The most entries."""


class Endpoint(msgspec.Struct, frozen=True, rename="camel"):
    """An entry; times are milliseconds since 1970."""

    id: str
    type: str
    coordinates: str
    metadata: dict[str, Any]
    announced_at: int
    updated_at: int
    expires_at: int


Endpoints = list[Endpoint]


class RouterEvent(msgspec.Struct, frozen=True):
    """A change of an entry."""

    type: Literal["added", "updated", "removed", "staleExpired"]
    endpoint: Endpoint
    timestamp: int


class Router:
    """Endpoints by id."""

    def __init__(self, now_ms: Callable[[], int], *, ttl_ms: int = TTL_MS) -> None:
        self._now_ms = now_ms
        self._ttl_ms = ttl_ms
        self._endpoints: dict[str, Endpoint] = {}
        self._listeners: list[Callable[[RouterEvent], None]] = []

    def subscribe(self, listener: Callable[[RouterEvent], None]) -> None:
        """Call `listener` with every change."""
        self._listeners.append(listener)

    def announce(self, id_: str, kind: str, coordinates: str, metadata: dict[str, Any] | None = None) -> Endpoint:
        """Add an endpoint, or renew it."""
        now = self._now_ms()
        known = self._endpoints.get(id_)
        if known is None and len(self._endpoints) >= ENDPOINTS_MAX:
            raise PenstockError(Refusal("QuotaExceeded", f"{ENDPOINTS_MAX} endpoints are announced"))
        since = now if known is None else known.announced_at
        endpoint = Endpoint(id_, kind, coordinates, dict(metadata or {}), since, now, now + self._ttl_ms)
        self._endpoints[id_] = endpoint
        self._notify("added" if known is None else "updated", endpoint)
        return endpoint

    def receive_from_peer(self, peer: str, announcement: Endpoint) -> Endpoint:
        """Add an endpoint that another host announced."""
        metadata = {**announcement.metadata, "federationSource": peer}
        return self.announce(announcement.id, announcement.type, announcement.coordinates, metadata)

    def withdraw(self, id_: str) -> bool:
        """Remove an endpoint; returns whether it existed."""
        gone = self._endpoints.pop(id_, None)
        if gone is not None:
            self._notify("removed", gone)
        return gone is not None

    def list(self) -> Endpoints:
        return [*self._endpoints.values()]

    def resolve_all(self, coordinates: str) -> Endpoints:
        """All endpoints with exactly these coordinates: local ones first, then the newest first."""
        found = [one for one in self._endpoints.values() if one.coordinates == coordinates]
        return sorted(found, key=lambda one: ("federationSource" in one.metadata, -one.updated_at))

    def resolve(self, coordinates: str) -> Endpoint | None:
        return next(iter(self.resolve_all(coordinates)), None)

    def sweep(self) -> Endpoints:
        """Remove the expired endpoints and return them."""
        now = self._now_ms()
        stale = [one for one in self._endpoints.values() if now - one.updated_at > self._ttl_ms]
        for endpoint in stale:
            del self._endpoints[endpoint.id]
            self._notify("staleExpired", endpoint)
        return stale

    def _notify(self, kind: Literal["added", "updated", "removed", "staleExpired"], endpoint: Endpoint) -> None:
        event = RouterEvent(kind, endpoint, self._now_ms())
        for listener in [*self._listeners]:
            listener(event)
