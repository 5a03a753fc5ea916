"""What the relay remembers across restarts: who may publish on which topic until when, as rows of the journal and back.

Topics are known by their hashes alone, here as in the journal: a topic's name lets whoever knows it listen.
"""

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
        """Make the change that a row tells."""
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
        """Take one row of the past, or of a snapshot."""
        self.apply(row)

    def valid(self, wall_us: int) -> list[Remembered]:
        """Those that still count; the others are forgotten."""
        for known in [each for each in self.registrations.values() if each.expires_us <= wall_us]:
            del self.registrations[known.hash]
        return list(self.registrations.values())

    def snapshot(self) -> Iterator[Row]:
        """The state as rows that `apply` takes."""
        for known in self.registrations.values():
            yield row_of(register_entry(known))


def register_entry(known: Remembered) -> Entry:
    """Somebody may publish on a topic."""
    meta = msgspec.json.encode({"exp": known.expires_us // 1_000_000, "signer": known.signer}).decode()
    return Entry(DOOR, "register", known.hash, known.seq, sender=known.signer, meta=meta)
