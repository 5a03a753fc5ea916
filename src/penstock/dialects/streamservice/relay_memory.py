"""The relay's memory across restarts: registrations as rows of the journal, and back.

Topics are stored as hashes only, because the name of a topic is enough to subscribe to it. Every change is made by applying its row, in a
running relay and after a restart alike, so the two cannot differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from penstock.core.records import Entry
from penstock.core.relay.topic import Remembered
from penstock.core.rows import Row, row_of
from penstock.dialects.streamservice.nonces import AGE_MAX_MS, NONCES_MAX, SKEW_MAX_MS, UsedNonce

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
