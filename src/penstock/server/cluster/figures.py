"""What `/health` and `/metrics` say of a cluster and of its node."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from penstock.core.health import PartHealth
from penstock.server.cluster.shard import SUSPENDED
from penstock.server.metrics.metric_names import families, labelled

if TYPE_CHECKING:
    from penstock.server.cluster.node import ClusterNode


def metrics(node: ClusterNode) -> list[Metric]:
    """The metrics of the group `cluster`."""
    shards, links = node.shards.values(), node.links
    owned = [shard for shard in shards if shard.is_owner]
    states = Counter(shard.report.state for shard in shards)
    dropped = {
        "forged": 0 if links is None else links.pipes.forged,
        "repeated": 0 if links is None else links.pipes.repeated,
        "unknown": 0 if links is None else links.pipes.dropped,
        "unsent": 0 if links is None else links.frames_dropped,
    }
    return [
        *labelled(states.items(), {"cluster_shards": float}),
        *labelled([(str(one.shard), one.report.epoch) for one in shards], {"cluster_epoch": float}),
        *labelled(dropped.items(), {"cluster_frames_dropped": float}),
        *families(
            {
                "penstock_cluster_takeovers": sum(shard.takeovers for shard in shards),
                "penstock_cluster_unowned": len(node.view.status().unowned),
                "penstock_cluster_suspended": sum(not shard.may_serve for shard in owned),
                "penstock_cluster_lease_age_seconds": max((shard.lease_age_s for shard in owned), default=0.0),
                "penstock_cluster_seals_failed": sum(shard.history.seals_failed for shard in shards),
                "penstock_cluster_nats_errors": node.notices.errors,
            }
        ),
    ]


def finding(node: ClusterNode) -> PartHealth:
    """How the cluster is, as this node sees it."""
    status = node.view.status()
    if status.halted:
        action = (
            "`penstock cluster status` says why; `penstock cluster repair SHARD` writes a new log from what is kept"
        )
        return PartHealth("failed", f"the logs of shards {status.halted} are damaged", action)
    shards = node.shards.items()
    if late := {number: one.report.reason for number, one in shards if not one.is_owner and one.report.reason}:
        action = "look at the disk of this node and at the NATS servers: it goes on by itself"
        reason = f"this node does not follow the logs of shards {[*late]}: {next(iter(late.values()))}"
        return PartHealth("degraded", reason, action)
    if status.unowned:
        return PartHealth("degraded", f"shards {status.unowned} have no owner", "`penstock cluster status`")
    if suspended := [number for number, one in shards if one.is_owner and one.report.reason == SUSPENDED]:
        action = "look at the NATS servers: the shards go on by themselves"
        return PartHealth("degraded", f"the NATS servers do not keep the frames of shards {suspended}", action)
    if gone := [one.node for one in status.nodes if one.state == "gone"]:
        return PartHealth("degraded", f"the nodes {', '.join(gone)} are gone", "start them again")
    note = "" if node.verified is None else f"; unverified: {node.verified}"
    return PartHealth("ok", f"every shard has an owner{note}")
