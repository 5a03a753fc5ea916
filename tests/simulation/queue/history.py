"""The journal's rows, folded by the simplest code that can be right.

It shares nothing with the machine or its recovery, so that the two can be compared.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.core.rows import Row

TERMINAL = frozenset({"ack", "dead", "drop", "purge", "move"})
"""Events after which a record is no longer in its channel."""

Place = tuple[str, int]
"""A record's channel and number: never used twice."""


class History:
    """Rows, and the questions a check asks about them."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self.ids: dict[Place, str] = {}
        """Every record that ever was."""
        self.live: dict[Place, str] = {}
        self.settled: dict[Place, str] = {}
        """How each record that is no more ended."""
        self.counts: dict[str, int] = {}
        """Records that came into each channel."""
        self.delayed: set[Place] = set()
        """Records that their producer scheduled."""
        self.known: dict[tuple[str, str], int] = {}
        """The newest number of each id in each channel."""
        self.settled_ids: set[str] = set()
        self.fated: set[Place] = set()
        """Records that wait for room among the dead letters: given up, and never to be delivered again."""
        self.latest: dict[str, bytes] = {}
        """What arrived last in each agent's inbox, the one that was silent longest first."""
        self.nacks: dict[Place, int] = {}
        """How often each live record was nacked."""
        self.abandoned: dict[Place, int] = {}
        """How many connections were lost with it, as far as that was not too much to write down."""
        self.recorded: dict[tuple[str, int], int] = {}
        """The times of the enqueue rows."""
        self.add(rows)

    def add(self, rows: Iterable[Row]) -> None:
        for row in rows:
            place = (row.channel, row.seq)
            if row.event == "enqueue":
                assert row.id is not None
                self.ids[place] = self.live[place] = row.id
                self.recorded[place] = row.recorded_at
                self.counts[row.channel] = self.counts.get(row.channel, 0) + 1
                self.known[row.channel, row.id] = row.seq
                meta = row.meta or ""
                if "due" in meta:
                    self.delayed.add(place)
                parts = row.channel.split("/")
                if len(parts) == 3 and parts[0] == "agents" and parts[2] == "inbox" and "moved" not in meta:
                    self.latest.pop(row.channel, None)
                    self.latest[row.channel] = row.body or b""
            elif row.event == "nack" and row.meta is not None and "fate" in row.meta:
                self.fated.add(place)
            elif row.event == "nack":
                self.nacks[place] = self.nacks.get(place, 0) + 1
            elif row.event == "release" and row.reason == "abandoned":
                self.abandoned[place] = self.abandoned.get(place, 0) + 1
            elif row.event in TERMINAL:
                self.live.pop(place, None)
                self.nacks.pop(place, None)
                self.abandoned.pop(place, None)
                self.settled[place] = row.event
                if row.id is not None:
                    self.settled_ids.add(row.id)
