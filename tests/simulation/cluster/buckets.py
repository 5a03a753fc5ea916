"""The two buckets of a cluster, simulated: keys that end by themselves, revisions, and watches that lag and begin again.

A change needs a majority of the servers. A watch reads from one server, which may be behind the others or cut off from them, so what a
node knows of its cluster is old: by moments as a rule, by seconds now and then. A watch that begins again first shows every key as it
was last changed, also those of nodes that are gone and whose keys have not ended yet.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from penstock.testing.clock import Clock
from tests.simulation.cluster.servers import MAJORITY, SERVERS, SimServers

KEY_TTL_US = 15_000_000
"""How long a key `node.<name>` lives."""


class Change(msgspec.Struct, frozen=True):
    """A key has another value, or None when it was removed or has ended. Its revision is its place in the history, from 1."""

    key: str
    value: bytes | None
    us: int


class SimBuckets:
    """The keys on the servers: the history of both buckets, and how much of it each server has."""

    def __init__(self, servers: SimServers, clock: Clock) -> None:
        self._servers = servers
        self._clock = clock
        self.history: list[Change] = []
        self.revisions: dict[str, int] = {}
        """The newest revision of each key."""
        self._known = [0] * SERVERS

    def put(self, home: int, key: str, value: bytes | None, *, revision: int | None = None) -> bool:
        """Change a key, if it has this revision; 0 means that there is none yet. False when it has not changed."""
        peers = self._servers.peers(home)
        if len(peers) < MAJORITY or (revision is not None and revision != self.revisions.get(key, 0)):
            return False
        self._change(key, value)
        for server in peers:
            self._known[server] = len(self.history)
        return True

    def _change(self, key: str, value: bytes | None) -> None:
        self.history.append(Change(key, value, self._clock.us))
        self.revisions[key] = len(self.history)

    def end_keys(self) -> None:
        """Remove the keys of nodes that did not refresh them; without a majority, no key ends."""
        if not any(len(self._servers.peers(server)) >= MAJORITY for server in range(SERVERS)):
            return
        for key, revision in list(self.revisions.items()):
            change = self.history[revision - 1]
            if key.startswith("node.") and change.value is not None and self._clock.us - change.us > KEY_TTL_US:
                self._change(key, None)

    def known(self, home: int) -> int:
        """The newest revision that a server shows."""
        if len(self._servers.peers(home)) >= MAJORITY:
            self._known[home] = len(self.history)
        return self._known[home]

    def value(self, key: str) -> bytes | None:
        """What a key is now, for checks and operators."""
        revision = self.revisions.get(key, 0)
        return self.history[revision - 1].value if revision else None


class Watch:
    """What one node has seen of the buckets."""

    def __init__(self, buckets: SimBuckets) -> None:
        self._buckets = buckets
        self._home: int | None = None
        self._next = 0

    def end(self) -> None:
        """The connection was lost: the next read begins again."""
        self._home = None

    def read(self, home: int, until_us: int) -> Iterator[Change]:
        """The changes up to this time that the node has not seen."""
        buckets = self._buckets
        history, end = buckets.history, buckets.known(home)
        while end > self._next and history[end - 1].us > until_us:
            end -= 1
        if home != self._home:
            self._home, self._next = home, 0
            newest = {change.key: number for number, change in enumerate(history[:end])}
            found = [history[number] for number in sorted(newest.values())]
        else:
            found = history[self._next : end]
        self._next = max(self._next, end)
        yield from found
