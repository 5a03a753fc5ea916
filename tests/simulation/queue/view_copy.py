"""A follower's copy of a view, built by the simplest code that can be right.

It checks what a follower can see: messages follow one another, and they fit the rows it has.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tests.simulation.queue.checks import VIEWS, Broken


class ViewCopy:
    """One follower's copy of `latestPerAgent`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows: dict[str, bytes] = {}
        self.version: int | None = None
        """The version of its last message."""
        self.is_resumed = False
        """It resumed from a version: a change may concern a row that it does not have."""
        self.deltas = 0
        self.snapshots = 0

    def apply(self, message: dict[str, Any]) -> None:
        """Take one message that is a snapshot or a delta."""
        if "snapshot" in message:
            table = message["snapshot"]
            self.rows = {row["addr"]: msgspec.json.encode(row["env"]) for row in table["rows"]}
            self.version = table["watermark"]
            self.snapshots += 1
            self.is_resumed = False
            return
        delta = message["delta"]
        addr = delta["addr"]
        self.deltas += 1
        if delta["prev"] != self.version or delta["version"] <= delta["prev"]:
            raise Broken(VIEWS, f"`{self.name}` is at {self.version} and hears {delta}")
        if not self.is_resumed and (delta["op"] == "add") == (addr in self.rows):
            raise Broken(VIEWS, f"`{self.name}` has {list(self.rows)} and hears {delta}")
        self.version = delta["version"]
        if delta["op"] == "remove":
            self.rows.pop(addr, None)
        else:
            self.rows[addr] = msgspec.json.encode(delta["env"])
