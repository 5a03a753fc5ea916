"""The kernel's registry of servers, in process: their capabilities, and which of their terminals are in use.

A guest without a heartbeat for `SILENCE_MS` counts as unavailable; it is never removed. The caller provides the time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal
from uuid import uuid4

import msgspec

from penstock.core.errors import PenstockError, Refusal

HEARTBEAT_MS = 5_000
"""Interval of heartbeats."""
SILENCE_MS = 20_000
"""Time without a heartbeat after which a guest is unavailable."""
GUESTS_MAX = 10_000
"""The most entries, which are never removed."""


class Terminal(msgspec.Struct, frozen=True):
    """A connection point of a guest."""

    name: str
    type: Literal["local", "network", "loopback"] = "local"
    direction: Literal["input", "output", "multiplexer", "combiner"] = "input"


class Abilities(msgspec.Struct, frozen=True):
    """The capabilities of a guest."""

    type: Literal["input", "source", "transform", "output", "routing"]
    accepts: list[str] = []
    produces: list[str] = []
    features: list[str] = []


class Manifest(msgspec.Struct, frozen=True, rename="camel"):
    """The registration of a guest."""

    servername: str
    capabilities: Abilities
    terminals: list[Terminal] = []
    fqdn: str = "localhost"
    class_hex: str = "0x0000"
    owner: str = "system"
    auth: Literal["yes", "no", "optional"] = "no"
    auth_mechanism: str = "none"
    metadata: dict[str, Any] = {}
    uuid: str | None = None

    @property
    def identity(self) -> str:
        """`fqdn:servername:classHex:owner:auth:authMechanism:uuid`."""
        assert self.uuid is not None
        words = (self.fqdn, self.servername, self.class_hex, self.owner, self.auth, self.auth_mechanism)
        return ":".join((*words, self.uuid))


class Guest:
    """One registered guest."""

    def __init__(self, manifest: Manifest, now_ms: int) -> None:
        self.id = manifest.identity
        self.manifest = manifest
        self.heartbeat_ms = now_ms
        self.in_use: dict[str, str] = {}
        """The connectome that uses a terminal, by the terminal's name."""


class Hostess:
    """Guests by identity."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._guests: dict[str, Guest] = {}
        self._endpoints: dict[str, dict[str, Any]] = {}

    def register(self, manifest: Manifest | Mapping[str, Any]) -> str:
        """Register a guest, or replace one of the same identity; returns the identity."""
        if not isinstance(manifest, Manifest):
            try:
                manifest = msgspec.convert(manifest, Manifest)
            except msgspec.ValidationError as error:
                raise PenstockError(Refusal("InvalidRequest", f"the manifest is not valid: {error}")) from None
        if manifest.uuid is None:
            manifest = msgspec.structs.replace(manifest, uuid=str(uuid4()))
        if manifest.identity not in self._guests and len(self._guests) >= GUESTS_MAX:
            raise PenstockError(Refusal("QuotaExceeded", f"{GUESTS_MAX} guests are registered"))
        self._guests[manifest.identity] = Guest(manifest, self._now_ms())
        return manifest.identity

    def heartbeat(self, id_: str) -> None:
        self._guest(id_).heartbeat_ms = self._now_ms()

    def mark_in_use(self, id_: str, terminal: str, connectome: str) -> None:
        """Mark a terminal as in use by a connectome."""
        guest = self._guest(id_)
        if terminal not in {one.name for one in guest.manifest.terminals}:
            raise PenstockError(Refusal("InvalidRequest", f"`{id_}` has no terminal `{terminal}`"))
        guest.in_use[terminal] = connectome

    def mark_available(self, id_: str, terminal: str) -> None:
        """Mark a terminal as free."""
        self._guest(id_).in_use.pop(terminal, None)

    def is_available(self, id_: str) -> bool:
        """Whether a guest has a recent heartbeat and a free terminal."""
        guest = self._guest(id_)
        is_live = self._now_ms() - guest.heartbeat_ms <= SILENCE_MS
        return is_live and len(guest.in_use) < len(guest.manifest.terminals)

    def query(
        self,
        *,
        kind: str | None = None,
        class_hex: str | None = None,
        accepts: str | None = None,
        produces: str | None = None,
        features: Sequence[str] = (),
        available_only: bool = False,
    ) -> list[str]:
        """The identities of all guests that match."""
        return [
            guest.id
            for guest in self._guests.values()
            if (kind is None or guest.manifest.capabilities.type == kind)
            and (class_hex is None or guest.manifest.class_hex == class_hex)
            and (accepts is None or accepts in guest.manifest.capabilities.accepts)
            and (produces is None or produces in guest.manifest.capabilities.produces)
            and all(feature in guest.manifest.capabilities.features for feature in features)
            and (not available_only or self.is_available(guest.id))
        ]

    def register_endpoint(
        self, id_: str, kind: str, coordinates: str, metadata: Mapping[str, Any] | None = None
    ) -> None:
        """Register the address of a guest."""
        self._guest(id_)
        self._endpoints[id_] = {"id": id_, "type": kind, "coordinates": coordinates, "metadata": dict(metadata or {})}

    def endpoints(self) -> list[dict[str, Any]]:
        """All endpoints, in the format of `reports/endpoints.json`."""
        return list(self._endpoints.values())

    def _guest(self, id_: str) -> Guest:
        guest = self._guests.get(id_)
        if guest is None:
            raise PenstockError(Refusal("InvalidRequest", f"no guest is registered as `{id_}`"))
        return guest
