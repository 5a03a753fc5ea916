"""`POST /v1/cluster/move` and `/v1/cluster/drain`: what an operator decides about the nodes of a cluster, at any of them."""

# size: two requests that one port carries out

from __future__ import annotations

from typing import Annotated, Protocol

import msgspec

from penstock.core.errors import PenstockError, Refusal

NO_CLUSTER = Refusal(
    "Unsupported",
    "this server is no node of a cluster",
    hint="`penstock up --join` makes a server one; see docs/how-to/cluster-broker.md",
)


class MoveRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a move."""

    shard: Annotated[int, msgspec.Meta(ge=0, le=4095)]
    node: str | None = None
    """The node that should own it; none leaves the shard to the cluster."""


class DrainRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a drain."""

    node: str
    drained: bool = True
    """False lets the node own shards again."""


class DecidedReply(msgspec.Struct):
    """The decision stands; `GET /v1/cluster` shows when it is carried out."""

    decided: bool = True


class ClusterDecider(Protocol):
    """Writes what was decided. Each method raises PenstockError for what cannot be done."""

    async def move(self, shard: int, node: str | None) -> None: ...

    async def drain(self, node: str, *, on: bool) -> None: ...


async def move(decider: ClusterDecider | None, asked: MoveRequest) -> DecidedReply | Refusal:
    """Have a node own a shard."""
    if decider is None:
        return NO_CLUSTER
    try:
        await decider.move(asked.shard, asked.node)
    except PenstockError as error:
        return error.refusal
    return DecidedReply()


async def drain(decider: ClusterDecider | None, asked: DrainRequest) -> DecidedReply | Refusal:
    """Have a node own nothing, or let it own shards again."""
    if decider is None:
        return NO_CLUSTER
    try:
        await decider.drain(asked.node, on=asked.drained)
    except PenstockError as error:
        return error.refusal
    return DecidedReply()
