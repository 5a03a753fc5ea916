"""The status of a cluster: who owns each shard, as the reports of the nodes say. One rule for every place that shows it.

A node writes a report each second and at each change. Only the report of an owner makes it the owner, so a shard whose owner died has
none until the next one reports; of two that both think they own a shard, the higher epoch is right.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

import msgspec

from penstock.core.cluster.assignment import ALIVE_US

ShardState: TypeAlias = Literal["following", "taking", "recovering", "owning", "moving", "halted", "behind"]
OWNERS = ("recovering", "owning", "moving")
"""States of the node that writes the log of a shard."""
NO_OWNER = "no node owns it"


class ShardReport(msgspec.Struct, omit_defaults=True):
    """What a node does about a shard."""

    state: ShardState
    epoch: int = 0
    offset: int = 0
    """The next row."""
    since: int = 0
    """Microseconds since 1970."""
    reason: str = ""
    """Why it is halted, behind, or serves no client although it owns the shard."""


class NodeReport(msgspec.Struct):
    """The key `node.<name>`."""

    id: str
    """Random, one for each start: two processes must not have one name."""
    version: str = ""
    http: str = ""
    control: str | None = None
    """Where clients of this node connect."""
    pid: int = 0
    started: int = 0
    """Microseconds since 1970, as `at`."""
    at: int = 0
    verified: bool = False
    """Whether its NATS servers were found to keep what they acknowledge."""
    leaving: bool = False
    """Whether it hands over its shards, to end."""
    shards: dict[int, ShardReport] = {}


class ShardStatus(msgspec.Struct):
    """One row of `penstock cluster status`."""

    shard: int
    owner: str | None
    state: str
    """That of the owner; else `taking`, or `none`."""
    epoch: int = 0
    offset: int = 0
    since: int = 0
    reason: str = ""
    wanted: str | None = None
    """The node that `cluster move` names."""
    troubles: dict[str, str] = {}
    """Why nodes stopped at damage of its log, by their names."""
    offsets: dict[str, int] = {}
    """The next row in the spool of each live node: a repair is for the one that has most."""


class NodeStatus(msgspec.Struct):
    """One row of `penstock cluster nodes`."""

    node: str
    state: Literal["up", "draining", "leaving", "gone"]
    version: str
    http: str
    control: str | None
    owns: list[int]
    verified: bool
    started: int
    at: int


class ClusterStatus(msgspec.Struct):
    """What `GET /v1/cluster` says."""

    cluster: str
    shards: list[ShardStatus]
    nodes: list[NodeStatus]

    @property
    def unowned(self) -> list[int]:
        return [shard.shard for shard in self.shards if shard.owner is None]

    @property
    def halted(self) -> list[int]:
        """Shards whose log is damaged, as some node found."""
        return [shard.shard for shard in self.shards if shard.troubles]


class OwnerMap(msgspec.Struct, frozen=True):
    """What a client of Control v1 learns: where the owner of each shard is."""

    shards: int
    nodes: dict[str, str]
    """The URL of each owner for Control v1."""
    map: list[str | None]


def live_reports(reports: Mapping[str, tuple[NodeReport, int]]) -> list[str]:
    """The nodes that live, of reports with the time at which the servers stored them: while none is refreshed, all of them do."""
    newest_us = max((us for _, us in reports.values()), default=0)
    return sorted(name for name, (_, us) in reports.items() if newest_us - us < ALIVE_US)


def owner_of(shard: int, reports: Mapping[str, NodeReport], live: Iterable[str]) -> tuple[str, ShardReport] | None:
    """The owner of a shard and what it reports."""
    found: tuple[str, ShardReport] | None = None
    for name in live:
        report = reports[name].shards.get(shard) if name in reports else None
        if report is None or report.state not in OWNERS:
            continue
        if found is None or report.epoch > found[1].epoch:
            found = (name, report)
    return found


def cluster_status(
    cluster: str,
    shards: int,
    reports: Mapping[str, NodeReport],
    live: Iterable[str],
    moves: Mapping[int, str] | None = None,
    drains: Iterable[str] = (),
) -> ClusterStatus:
    """The status by what the nodes report, and what the operator has decided."""
    live, drains = list(live), set(drains)
    rows = [_shard_status(shard, reports, live, (moves or {}).get(shard)) for shard in range(shards)]
    nodes: list[NodeStatus] = []
    for name, report in sorted(reports.items()):
        state: Literal["up", "draining", "leaving", "gone"] = "up" if name in live else "gone"
        if state == "up" and report.leaving:
            state = "leaving"
        elif state == "up" and name in drains:
            state = "draining"
        owns = [row.shard for row in rows if row.owner == name]
        about = (report.version, report.http, report.control, owns, report.verified, report.started, report.at)
        nodes.append(NodeStatus(name, state, *about))
    return ClusterStatus(cluster, rows, nodes)


def _shard_status(shard: int, reports: Mapping[str, NodeReport], live: list[str], wanted: str | None) -> ShardStatus:
    mine = {name: reports[name].shards[shard] for name in live if name in reports and shard in reports[name].shards}
    troubles = {name: report.reason for name, report in mine.items() if report.state == "halted"}
    offsets = {name: report.offset for name, report in mine.items()}
    owner = owner_of(shard, reports, live)
    if owner is not None:
        name, report = owner
        about = (report.state, report.epoch, report.offset, report.since, report.reason)
        return ShardStatus(shard, name, *about, wanted, troubles, offsets)
    newest = max(mine.values(), key=lambda report: (report.epoch, report.offset), default=ShardReport("following"))
    is_taken = any(report.state == "taking" for report in mine.values())
    behind = [report.reason for report in mine.values() if report.state == "behind"]
    reason = next(iter([*troubles.values(), *behind]), NO_OWNER)
    state = "halted" if troubles and not is_taken else "taking" if is_taken else "none"
    seen = (newest.epoch, newest.offset, newest.since, reason)
    return ShardStatus(shard, None, state, *seen, wanted, troubles, offsets)


def owner_map(shards: int, reports: Mapping[str, NodeReport], live: Iterable[str]) -> OwnerMap:
    """Where clients find the owner of each shard, as far as it has a URL."""
    live = list(live)
    owners: list[str | None] = []
    nodes: dict[str, str] = {}
    for shard in range(shards):
        owner = owner_of(shard, reports, live)
        url = None if owner is None else reports[owner[0]].control
        owners.append(None if owner is None or url is None else owner[0])
        if owner is not None and url is not None:
            nodes[owner[0]] = url
    return OwnerMap(shards, nodes, owners)
