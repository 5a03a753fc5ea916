"""The kernel's guest book, in process: which servers there are, what they can do, and which of their terminals are taken.

A guest that has not sent a heartbeat for `SILENCE_MS` counts as unavailable; it is never taken out. Time is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal
from uuid import uuid4

import msgspec

from penstock.core.errors import PenstockError, Refusal

HEARTBEAT_MS = 5_000
"""How often a guest says that it is there."""
SILENCE_MS = 20_000
"""After this long without a word a guest is not available."""
GUESTS_MAX = 10_000
"""Entries, which are never taken out."""


class Terminal(msgspec.Struct, frozen=True):
    """A place where a guest can be joined."""

    name: str
    type: Literal["local", "network", "loopback"] = "local"
    direction: Literal["input", "output", "multiplexer", "combiner"] = "input"


class Abilities(msgspec.Struct, frozen=True):
    """What a guest is and does."""

    type: Literal["input", "source", "transform", "output", "routing"]
    accepts: list[str] = []
    produces: list[str] = []
    features: list[str] = []


class Manifest(msgspec.Struct, frozen=True, rename="camel"):
    """How a guest introduces itself."""

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
    """One entry of the book."""

    def __init__(self, manifest: Manifest, now_ms: int) -> None:
        self.id = manifest.identity
        self.manifest = manifest
        self.heard_ms = now_ms
        self.in_use: dict[str, str] = {}
        """The connectome that uses a terminal, by the terminal's name."""


class Hostess:
    """A book of guests by identity."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._guests: dict[str, Guest] = {}
        self._endpoints: dict[str, dict[str, Any]] = {}

    def register(self, manifest: Manifest | Mapping[str, Any]) -> str:
        """Enter a guest, or one with the same identity again; returns the identity."""
        if not isinstance(manifest, Manifest):
            try:
                manifest = msgspec.convert(manifest, Manifest)
            except msgspec.ValidationError as error:
                raise PenstockError(
                    Refusal("InvalidRequest", f"the manifest does not fit: {error}")
                ) from None
        if manifest.uuid is None:
            manifest = msgspec.structs.replace(manifest, uuid=str(uuid4()))
        if manifest.identity not in self._guests and len(self._guests) >= GUESTS_MAX:
            raise PenstockError(Refusal("QuotaExceeded", f"{GUESTS_MAX} guests are registered"))
        self._guests[manifest.identity] = Guest(manifest, self._now_ms())
        return manifest.identity

    def heartbeat(self, id_: str) -> None:
        self._guest(id_).heard_ms = self._now_ms()

    def mark_in_use(self, id_: str, terminal: str, connectome: str) -> None:
        """Claim a terminal."""
        guest = self._guest(id_)
        if terminal not in {one.name for one in guest.manifest.terminals}:
            raise PenstockError(Refusal("InvalidRequest", f"`{id_}` has no terminal `{terminal}`"))
        guest.in_use[terminal] = connectome

    def mark_available(self, id_: str, terminal: str) -> None:
        """Give a terminal back."""
        self._guest(id_).in_use.pop(terminal, None)

    def is_available(self, id_: str) -> bool:
        """Whether a guest was heard of lately and has a terminal that nobody uses."""
        guest = self._guest(id_)
        is_live = self._now_ms() - guest.heard_ms <= SILENCE_MS
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
        """The identities of all guests that do what is asked."""
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
        """Say where a guest can be reached."""
        self._guest(id_)
        self._endpoints[id_] = {
            "id": id_,
            "type": kind,
            "coordinates": coordinates,
            "metadata": dict(metadata or {}),
        }

    def endpoints(self) -> list[dict[str, Any]]:
        """Every endpoint, in the shape of `reports/endpoints.json`."""
        return list(self._endpoints.values())

    def _guest(self, id_: str) -> Guest:
        guest = self._guests.get(id_)
        if guest is None:
            raise PenstockError(Refusal("InvalidRequest", f"nobody is registered as `{id_}`"))
        return guest
