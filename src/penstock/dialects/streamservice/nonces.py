"""Used nonces: each signed envelope is accepted once.

Owns the memory of (signer, nonce) for as long as an envelope could be replayed: the allowed age plus the skew. Invariants:

- Only an envelope with a valid signature gets an entry: callers check it first. So others cannot fill the memory or use up a nonce.
- Nothing is evicted early. At a limit the new envelope is rejected; evicting the oldest would allow its replay.
- Each signer has a quota, so that one signer cannot lock out the others.
- An expired nonce stays rejected even if the clock is set back: timestamps up to the latest expired one are too old from then on.

Cost: a dictionary lookup and, over time, one removal for each entry; about 250 bytes an entry.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Literal, TypeAlias

import msgspec

AGE_MAX_MS = 300_000
"""How old an envelope may be."""
SKEW_MAX_MS = 30_000
"""How far ahead of ours its clock may be."""
NONCES_MAX = 100_000
"""Nonces in total: at the limit registrations are rejected until older ones expire."""
SIGNER_NONCES_MAX = 50_000
"""Nonces of one signer: about 150 registrations a second sustained, and bursts up to the quota."""


class UsedNonce(msgspec.Struct, frozen=True, gc=False):
    """The nonce of an accepted registration, as the journal keeps it."""

    signer: str
    """The sha256 of its key."""
    nonce: str
    timestamp_ms: int


Verdict: TypeAlias = Literal["fresh", "replayed", "stale", "quota", "full"]


class NonceCache:
    """The nonces of envelopes that could still be replayed."""

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
        """The used part of a signer's quota."""
        return len(self._seen.get(signer, ()))

    def is_used(self, signer: bytes, nonce: bytes) -> bool:
        """Whether a nonce was used; it is not used by asking."""
        return nonce in self._seen.get(signer, ())

    def take(self, signer: bytes, nonce: bytes, timestamp_ms: int, now_ms: int) -> Verdict:
        """Use the nonce of an envelope whose signature is valid."""
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

    def restore(self, used: Iterable[UsedNonce], now_ms: int) -> None:
        """Use the nonces of an earlier run, oldest first."""
        for each in used:
            signer, nonce = bytes.fromhex(each.signer), bytes.fromhex(each.nonce)
            self.take(signer, nonce, each.timestamp_ms, min(each.timestamp_ms, now_ms))

    def forget(self, now_ms: int) -> None:
        """Drop entries that cannot be replayed any more."""
        order = self._order
        while order and order[0][0] < now_ms:
            _, timestamp_ms, signer, nonce = order.popleft()
            seen = self._seen[signer]
            seen.discard(nonce)
            if not seen:
                del self._seen[signer]
            if self._floor_ms is None or timestamp_ms > self._floor_ms:
                self._floor_ms = timestamp_ms
