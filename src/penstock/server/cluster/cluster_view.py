"""The cluster as one node sees it: reports, decisions, who lives; and what follows for the shards of this node."""

from __future__ import annotations

from penstock.core.cluster.assignment import LiveNodes, may_take, shard_to_release
from penstock.core.cluster.status import ClusterStatus, NodeReport, OwnerMap, cluster_status, owner_map, owner_of
from penstock.core.placement import SHARDS
from penstock.journal.replicated.cluster_keys import Decisions


class ClusterView:
    """What a node knows of its cluster."""

    def __init__(self, cluster: str, node: str) -> None:
        self._cluster = cluster
        self._node = node
        self.nodes = LiveNodes()
        self.decisions = Decisions()
        self.reports: dict[str, NodeReport] = {}

    @property
    def alive(self) -> tuple[str, ...]:
        """Nodes that live. This one does, whatever the servers say."""
        nodes = self.nodes.nodes
        return nodes if self._node in nodes else (*nodes, self._node)

    @property
    def others(self) -> list[str]:
        """Nodes that may take what this one hands over."""
        return [name for name in self.nodes.nodes if name in self.reports and not self.reports[name].leaving]

    def status(self) -> ClusterStatus:
        """The status of the cluster."""
        decisions = self.decisions
        return cluster_status(self._cluster, SHARDS, self.reports, self.alive, decisions.moves, decisions.drains)

    def owners(self) -> list[str | None]:
        """The owner of each shard, if it serves clients."""
        found = [owner_of(shard, self.reports, self.alive) for shard in range(SHARDS)]
        return [one[0] if one is not None and one[1].state == "owning" else None for one in found]

    def owner_map(self) -> OwnerMap:
        return owner_map(SHARDS, self.reports, self.alive)

    @property
    def _drained(self) -> set[str]:
        return self.decisions.drains | {name for name, report in self.reports.items() if report.leaving}

    def may_take(self, shard: int, silent: str | None) -> bool:
        """Whether this node may take over a shard without an owner."""
        live, moves = self.nodes.nodes, self.decisions.moves
        return may_take(self._node, shard, live, SHARDS, silent=silent, moves=moves, drains=self._drained)

    def to_release(self, now_us: int) -> int | None:
        """The shard of this node that belongs elsewhere and may go now. One that is halted waits for an operator, not for a move."""
        halted = {row.shard for row in self.status().shards if row.state == "halted"}
        owners = {shard: owner for shard, owner in enumerate(self.owners()) if shard not in halted}
        return shard_to_release(
            self._node,
            self.nodes.nodes,
            owners,
            SHARDS,
            moves=self.decisions.moves,
            drains=self._drained,
            is_settled=self.nodes.is_settled(now_us),
        )
