"""How a command reaches a cluster: through NATS with `--join`, or over HTTP through any of its nodes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

from cyclopts import Parameter

from penstock.cli.options import Output, http_server, token_option
from penstock.core.errors import PenstockError, Refusal

if TYPE_CHECKING:
    from penstock.core.cluster.status import ClusterStatus
    from penstock.journal.replicated.connection import NatsServersAddress
    from penstock.server.ops.cluster.operator import ClusterOperator

R = TypeVar("R")
ASK_EVERY_S = 0.25


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class NatsPlace(Output):
    """Options that find the NATS servers of a cluster."""

    join: Annotated[
        str | None,
        Parameter(env_var="PENSTOCK_JOIN", help="The NATS servers: nats://[user:password@]host:port,host:port,…"),
    ] = None
    cluster: Annotated[str, Parameter(env_var="PENSTOCK_CLUSTER", help="The name of the cluster.")] = "penstock"
    nats_creds: Annotated[
        Path | None,
        Parameter(
            env_var="PENSTOCK_NATS_CREDS", help="A file with a JWT and its seed, an nkey seed, or user:password."
        ),
    ] = None
    nats_ca: Annotated[
        Path | None, Parameter(env_var="PENSTOCK_NATS_CA", help="The certificate of the authority, for tls:// URLs.")
    ] = None


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ClusterPlace(NatsPlace):
    """Options that find a cluster: with --join through NATS, else over HTTP through one of its nodes."""

    url: Annotated[
        str | None,
        Parameter(env_var="PENSTOCK_URL", help="http://host:port of any node; default: the one on ./penstock-data."),
    ] = None
    token: Annotated[str | None, token_option("Default: the local operator token.")] = None


THERE = NatsPlace()
ANYWHERE = ClusterPlace()


def servers_of(place: NatsPlace) -> NatsServersAddress:
    """The NATS servers that are meant. Raises PenstockError."""
    _require_nats()
    from penstock.journal.replicated.connection import parse_servers

    if not place.join:
        hint = "add --join nats://host:4222,host:4222,host:4222, or set PENSTOCK_JOIN"
        raise PenstockError(Refusal("InvalidRequest", "no NATS servers are given", hint=hint))
    return parse_servers(place.join, place.nats_creds, place.nats_ca)


def _require_nats() -> None:
    try:
        import nats  # noqa: F401 - only whether it is there
    except ImportError:
        hint = "`pip install 'penstock[cluster]'` brings it"
        raise PenstockError(Refusal("Unsupported", "the client of NATS is not installed", hint=hint)) from None


def operate(place: NatsPlace, work: Callable[[ClusterOperator], Awaitable[R]]) -> R:
    """Connect to the cluster through NATS, do the work, close."""
    address = servers_of(place)
    from penstock.server.ops.cluster.operator import operated

    async def go() -> R:
        async with operated(address, place.cluster) as found:
            return await work(found)

    return asyncio.run(go())


class ClusterAccess:
    """What the commands ask of a cluster, either way."""

    def __init__(self, place: ClusterPlace) -> None:
        self._place = place

    def status(self) -> ClusterStatus:
        """Who owns what."""
        if self._place.join:
            return operate(self._place, lambda found: found.status())
        return self._remote().status()

    def move(self, shard: int, node: str | None) -> None:
        """Have a node own a shard; None leaves it to the cluster."""
        if self._place.join:
            operate(self._place, lambda found: found.move(shard, node))
        else:
            self._remote().move(shard, node)

    def drain(self, node: str, *, on: bool) -> None:
        """Have a node own nothing, or let it own shards again."""
        if self._place.join:
            operate(self._place, lambda found: found.drain(node, on=on))
        else:
            self._remote().drain(node, on=on)

    def until(self, is_reached: Callable[[ClusterStatus], bool], seconds: float) -> ClusterStatus | None:
        """The first status for which this holds; None if it does not come in time."""
        if self._place.join:
            return operate(self._place, lambda found: found.until(is_reached, seconds))
        end = time.monotonic() + seconds
        remote = self._remote()
        while not is_reached(status := remote.status()):
            if time.monotonic() >= end:
                return None
            time.sleep(ASK_EVERY_S)
        return status

    def _remote(self) -> RemoteCluster:
        from penstock.client.admin import RemoteCluster

        url, token = http_server(self._place.url, self._place.token)
        return RemoteCluster(url, token)


if TYPE_CHECKING:
    from penstock.client.admin import RemoteCluster
