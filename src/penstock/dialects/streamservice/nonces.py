"""Nonces that were used: each signature counts once.

Owns the memory of (signer, nonce) for as long as an envelope could come again: the age that is allowed and the skew together, because
a clock that is ahead stamps an envelope that stays young for longer.

What it keeps:

- Only those whose signature was good get an entry, so nobody else can fill it or use up a nonce: callers check first.
- Nothing is forgotten early. At a bound the newcomer is refused, not the oldest let go, since that would let it come again.
- A signer has a quota, so that one of them cannot shut the others out.
- What was forgotten in time stays refused even if the clock is set back: stamps up to the latest forgotten one are too old for good.

Cost: a dictionary lookup and, over time, one removal for each entry; about 250 bytes an entry.
"""

from __future__ import annotations

from collections import deque
from typing import Literal, TypeAlias

AGE_MAX_MS = 300_000
"""How old an envelope may be."""
SKEW_MAX_MS = 30_000
"""How far ahead of ours its clock may be."""
NONCES_MAX = 100_000
"""Nonces remembered in all: at a bound registrations are refused until older ones are out of date."""
SIGNER_NONCES_MAX = 50_000
"""Nonces of one signer: about 150 registrations a second without end, and any burst up to the quota."""

Verdict: TypeAlias = Literal["fresh", "replayed", "stale", "quota", "full"]


class NonceCache:
    """The nonces of the envelopes that are still young."""

    __slots__ = ("_floor_ms", "_order", "_seen", "retention_ms", "signer_max", "total_max")

    def __init__(
        self,
        *,
        age_max_ms: int = AGE_MAX_MS,
        skew_max_ms: int = SKEW_MAX_MS,
        total_max: int = NONCES_MAX,
        signer_max: int = SIGNER_NONCES_MAX,
    ) -> None:
        self.retention_ms = age_max_ms + skew_max_ms
        self.signer_max = signer_max
        self.total_max = total_max
        self._seen: dict[bytes, set[bytes]] = {}
        self._order: deque[tuple[int, int, bytes, bytes]] = deque()
        self._floor_ms: int | None = None

    def __len__(self) -> int:
        return len(self._order)

    def held_by(self, signer: bytes) -> int:
        """How much of its quota a signer has used."""
        return len(self._seen.get(signer, ()))

    def take(self, signer: bytes, nonce: bytes, timestamp_ms: int, now_ms: int) -> Verdict:
        """Use a nonce of an envelope whose signature was checked."""
        self.forget(now_ms)
        if self._floor_ms is not None and timestamp_ms <= self._floor_ms:
            return "stale"
        seen = self._seen.get(signer)
        if seen is not None:
            if nonce in seen:
                return "replayed"
            if len(seen) >= self.signer_max:
                return "quota"
        if len(self._order) >= self.total_max:
            return "full"
        self._seen.setdefault(signer, set()).add(nonce)
        self._order.append((now_ms + self.retention_ms, timestamp_ms, signer, nonce))
        return "fresh"

    def forget(self, now_ms: int) -> None:
        """Let go of what cannot come again."""
        order = self._order
        while order and order[0][0] < now_ms:
            _, timestamp_ms, signer, nonce = order.popleft()
            seen = self._seen[signer]
            seen.discard(nonce)
            if not seen:
                del self._seen[signer]
            if self._floor_ms is None or timestamp_ms > self._floor_ms:
                self._floor_ms = timestamp_ms
