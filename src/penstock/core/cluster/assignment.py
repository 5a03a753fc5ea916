"""Assignment: which node should own which shard. A function of the live nodes, so no controller is elected.

Every node ranks all nodes for each shard by a hash (rendezvous hashing), and a shard goes to the first in its ranking that has room:
no node owns more than its share. When a node joins or leaves, few other shards move. Nodes may disagree for a moment about who lives;
then a shard waits or moves twice, and the log keeps it safe.

A shard without an owner is taken at once. A *planned* move waits until the set of live nodes has been the same for `SETTLED_US`, and
until no other shard is on its way. What an operator has decided waits for the second only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import blake2b

NO_MOVES: Mapping[int, str] = {}
ALIVE_US = 5_000_000
"""A node that did not refresh its key for this long, while others did, is not given shards."""
SETTLED_US = 10_000_000
"""Live nodes must be the same for this long before a shard moves: a node that restarts keeps its shards."""


def assign(
    nodes: Iterable[str], shards: int, moves: Mapping[int, str] = NO_MOVES, drains: Collection[str] = ()
) -> list[str]:
    """The node that should own each shard; an empty list without nodes.

    `moves` are shards whose node an operator has named, as long as it is one of these. Nodes of `drains` own nothing while there is another.
    """
    all_names = sorted(set(nodes))
    names = [name for name in all_names if name not in drains] or all_names
    if not names:
        return []
    share = -(-shards // len(names))
    named = {shard: node for shard, node in moves.items() if node in names}
    held = dict.fromkeys(names, 0)
    for node in named.values():
        held[node] += 1
    owners: list[str] = []
    for shard in range(shards):
        if (owner := named.get(shard)) is None:
            ranked = sorted(names, key=lambda name: _weight(name, shard), reverse=True)
            owner = next(name for name in ranked if held[name] < share)
            held[owner] += 1
        owners.append(owner)
    return owners


def _weight(node: str, shard: int) -> bytes:
    return blake2b(f"{shard}/{node}".encode(), digest_size=8).digest()


class LiveNodes:
    """The nodes that live, as one node sees them."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}
        self._newest_us = 0
        self._nodes: tuple[str, ...] = ()
        self._since_us = 0

    def refreshed(self, now_us: int, node: str) -> None:
        """A node wrote its key."""
        self._seen[node] = self._newest_us = now_us
        self._note(now_us)

    def left(self, now_us: int, node: str) -> None:
        """A node removed its key, or the key expired."""
        self._seen.pop(node, None)
        self._note(now_us)

    def _note(self, now_us: int) -> None:
        # Compared with the newest refresh, not with the clock: while the servers do not answer, every node lives on as it was.
        nodes = tuple(sorted(node for node, us in self._seen.items() if self._newest_us - us < ALIVE_US))
        if nodes != self._nodes:
            self._nodes, self._since_us = nodes, now_us

    @property
    def nodes(self) -> tuple[str, ...]:
        return self._nodes

    def is_settled(self, now_us: int) -> bool:
        """Whether planned moves may begin."""
        return bool(self._nodes) and now_us - self._since_us >= SETTLED_US


def may_take(
    node: str,
    shard: int,
    live: Sequence[str],
    shards: int,
    *,
    silent: str | None,
    moves: Mapping[int, str] = NO_MOVES,
    drains: Collection[str] = (),
) -> bool:
    """Whether a shard without an owner is this node's to take; `silent` is an owner that ended without a release."""
    others = [name for name in live if name != silent] or list(live)
    return bool(others) and assign(others, shards, moves, drains)[shard] == node


def shard_to_release(
    node: str,
    live: Sequence[str],
    owners: Mapping[int, str | None],
    shards: int,
    *,
    moves: Mapping[int, str] = NO_MOVES,
    drains: Collection[str] = (),
    is_settled: bool = True,
) -> int | None:
    """The shard that a node should hand over now. `owners` has None for a shard that waits for its next owner, and no shard that is halted.

    While the nodes are not settled, only what an operator has decided is done.
    """
    if not live or None in owners.values():
        return None  # one move at a time, as far as this node can see
    wanted = assign(live, shards, moves, drains)
    mine = [shard for shard in sorted(owners) if owners[shard] == node and wanted[shard] != node]
    decided = [shard for shard in mine if moves.get(shard) == wanted[shard] or node in drains]
    return next(iter(decided or (mine if is_settled else ())), None)
