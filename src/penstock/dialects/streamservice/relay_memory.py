"""What the relay remembers of registrations: used nonces, and across restarts registrations as rows of the journal, and back.

`NonceCache` accepts each signed envelope once. It keeps (signer, nonce) for as long as an envelope could be replayed: the allowed age plus
the skew. Invariants:

- Only an envelope with a valid signature gets an entry: callers check it first. So others cannot fill the memory or use up a nonce.
- Nothing is evicted early. At a limit the new envelope is rejected; evicting the oldest would allow its replay.
- Each signer has a quota, so that one signer cannot lock out the others.
- An expired nonce stays rejected even if the clock is set back: timestamps up to the latest expired one are too old from then on.

Cost: a dictionary lookup and, over time, one removal for each entry; about 250 bytes an entry.

In the journal, topics are stored as hashes only, because the name of a topic is enough to subscribe to it. Every change is made by
applying its row, in a running relay and after a restart alike, so the two cannot differ.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Literal, TypeAlias

import msgspec

from penstock.core.records import Entry
from penstock.core.relay.topic import Remembered
from penstock.core.rows import Row, row_of

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


DOOR = "streamservice"


class RelayMemory:
    """Registrations, by the hash of their topic."""

    def __init__(self) -> None:
        self.registrations: dict[str, Remembered] = {}
        self._nonces: dict[tuple[str, str], int] = {}
        """When each registration was signed, by its signer and nonce; the oldest first."""

    def apply(self, entry: Entry | Row) -> None:
        """Apply a fact or a row."""
        known = self.registrations.get(entry.channel)
        if entry.event == "register":
            meta = msgspec.json.decode(entry.meta or "{}")
            exp = meta.get("exp", 0)
            self._use(entry.sender or "", meta)
            self.registrations[entry.channel] = Remembered(
                entry.channel, entry.sender or "", exp * 1_000_000, entry.seq if known is None else known.seq
            )
        elif entry.event == "nonce":
            self._use(entry.sender or "", msgspec.json.decode(entry.meta or "{}"))
        elif entry.event == "expire":
            self.registrations.pop(entry.channel, None)
        elif entry.event in ("chunk", "chunk_counts") and known is not None:
            self.registrations[entry.channel] = msgspec.structs.replace(known, seq=max(known.seq, entry.seq))

    restore = apply

    def _use(self, signer: str, meta: dict[str, Any]) -> None:
        if "nonce" in meta:
            self._nonces[signer, meta["nonce"]] = meta.get("timestamp", 0)
            if len(self._nonces) > NONCES_MAX:  # the relay refuses that many at a time, so the oldest is out of date
                del self._nonces[next(iter(self._nonces))]

    def used_nonces(self, wall_us: int) -> list[UsedNonce]:
        """The nonces that could still be replayed; the others are dropped."""
        oldest_ms = wall_us // 1000 - AGE_MAX_MS - SKEW_MAX_MS
        self._nonces = {key: at_ms for key, at_ms in self._nonces.items() if at_ms >= oldest_ms}
        return [UsedNonce(*key, at_ms) for key, at_ms in self._nonces.items()]

    def valid(self, wall_us: int) -> list[Remembered]:
        """The registrations that have not expired; the others are dropped."""
        for known in [each for each in self.registrations.values() if each.expires_us <= wall_us]:
            del self.registrations[known.hash]
        return list(self.registrations.values())

    def snapshot(self) -> Iterator[Row]:
        """The state as rows for `apply`."""
        for known in self.registrations.values():
            yield row_of(register_entry(known))
        for (signer, nonce), at_ms in self._nonces.items():
            meta = msgspec.json.encode({"nonce": nonce, "timestamp": at_ms}).decode()
            yield row_of(Entry(DOOR, "nonce", "", sender=signer, meta=meta))


def register_entry(known: Remembered, nonce: str = "", timestamp_ms: int = 0) -> Entry:
    """The fact of a registration. It holds the nonce, so that a restart does not make a replay possible."""
    meta: dict[str, int | str] = {"exp": known.expires_us // 1_000_000, "signer": known.signer}
    if nonce:
        meta |= {"nonce": nonce, "timestamp": timestamp_ms}
    text = msgspec.json.encode(meta).decode()
    return Entry(DOOR, "register", known.hash, known.seq, sender=known.signer, meta=text)
