"""The relay's memory across restarts: registrations as rows of the journal, and back.

Topics are stored as hashes only, because the name of a topic is enough to subscribe to it. Every change is made by applying its row, in a
running relay and after a restart alike, so the two cannot differ.
"""
# size: one kind of row; the relay machine must not know the journal

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from penstock.core.records import Entry
from penstock.core.relay.topic import Remembered
from penstock.core.rows import Row, row_of

DOOR = "streamservice"


class RelayMemory:
    """Registrations, by the hash of their topic."""

    def __init__(self) -> None:
        self.registrations: dict[str, Remembered] = {}

    def apply(self, entry: Entry | Row) -> None:
        """Apply a fact or a row."""
        known = self.registrations.get(entry.channel)
        if entry.event == "register":
            exp = msgspec.json.decode(entry.meta or "{}").get("exp", 0)
            self.registrations[entry.channel] = Remembered(
                entry.channel, entry.sender or "", exp * 1_000_000, entry.seq if known is None else known.seq
            )
        elif entry.event == "expire":
            self.registrations.pop(entry.channel, None)
        elif entry.event in ("chunk", "chunk_counts") and known is not None:
            self.registrations[entry.channel] = msgspec.structs.replace(known, seq=max(known.seq, entry.seq))

    def restore(self, row: Row) -> None:
        """Apply one row of history or of a snapshot."""
        self.apply(row)

    def valid(self, wall_us: int) -> list[Remembered]:
        """The registrations that have not expired; the others are dropped."""
        for known in [each for each in self.registrations.values() if each.expires_us <= wall_us]:
            del self.registrations[known.hash]
        return list(self.registrations.values())

    def snapshot(self) -> Iterator[Row]:
        """The state as rows for `apply`."""
        for known in self.registrations.values():
            yield row_of(register_entry(known))


def register_entry(known: Remembered) -> Entry:
    """The fact of a registration."""
    meta = msgspec.json.encode({"exp": known.expires_us // 1_000_000, "signer": known.signer}).decode()
    return Entry(DOOR, "register", known.hash, known.seq, sender=known.signer, meta=meta)
