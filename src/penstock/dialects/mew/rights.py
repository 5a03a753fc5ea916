"""What a party may send, and the reports about each decision.

Owns the order in which capabilities are tried: those of the settings or the invitation first, then the grants. The reports go to a
`SpaceObserver`, which writes log files; a space without one pays nothing for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, Protocol

import msgspec

from penstock.core.clock import Now
from penstock.dialects.mew.capabilities import Capability, Matcher, clean, with_baseline

CapabilitySource = Literal["static", "dynamic", "implicit"]


class SpaceObserver(Protocol):
    """Receives a report of everything that passes, for log files."""

    def received(self, now: Now, envelope: bytes, id_: str, participant: str, space: str, transport: str) -> None: ...

    def delivered(
        self, now: Now, envelope: bytes, id_: str, participants: Iterable[tuple[str, str]], space: str
    ) -> None: ...

    def rejected(
        self, now: Now, envelope: bytes, id_: str, participant: str, space: str, transport: str, reason: str
    ) -> None: ...

    def decided(self, now: Now, decision: Decision) -> None: ...


class Decision(msgspec.Struct, frozen=True):
    """Whether a participant was allowed to send an envelope, and why."""

    envelope: str
    participant: str
    space: str
    kind: str
    matched: Capability | None
    source: CapabilitySource | None
    """`static` from the settings or the invitation, `dynamic` from a grant, `implicit` from the protocol."""
    held: tuple[Capability, ...]
    transport: str
    correlation: tuple[str, ...] = ()


class Rights:
    """What one party may send."""

    __slots__ = ("all", "granted", "static")

    def __init__(self, static: tuple[Capability, ...], granted: Iterable[tuple[Capability, ...]]) -> None:
        self.static = Matcher(with_baseline(static))
        dynamic = tuple(capability for capabilities in granted for capability in capabilities)
        self.granted = Matcher(dynamic) if dynamic else None
        self.all = with_baseline(clean([*static, *dynamic]))

    def match(self, kind: str, payload: bytes | None) -> tuple[Capability, CapabilitySource] | None:
        found = self.static.match(kind, payload)
        if found is not None:
            return found, "static"
        if self.granted is not None:
            found = self.granted.match(kind, payload)
            if found is not None:
                return found, "dynamic"
        return None
