"""How a node joins a cluster: it connects to the servers, checks them, and reads what the cluster is."""

from __future__ import annotations

import asyncio
import time

import msgspec
from nats.aio.client import Client
from nats.js.errors import KeyNotFoundError
from nats.js.object_store import ObjectStore

from penstock.core.errors import PenstockError, Refusal
from penstock.core.placement import SHARDS
from penstock.journal.replicated import cluster_keys
from penstock.journal.replicated.cluster_keys import ClusterSettings
from penstock.journal.replicated.connection import NatsServersAddress
from penstock.journal.replicated.jetstream import REPLICAS, JetStreamLiveStore
from penstock.journal.replicated.membership import NODE, ClusterBuckets
from penstock.journal.replicated.server_check import ServerAbout, ask_servers, server_problem
from penstock.server.cluster.nats_client import NatsNotices, connect, until_answered
from penstock.server.logging import logs

LOOK_S = 0.1
SAME_NAME_S = 3.0
"""A key of this name that is written again within this time belongs to a node that runs."""
SLOW_S = 0.5
"""After an answer that took longer, the wait begins again."""
UNDESCRIBED = "the servers do not describe themselves to this user; `penstock cluster check` says what to do"


class JoinOptions(msgspec.Struct, frozen=True):
    """What `--join` and the options with it say."""

    servers: NatsServersAddress
    cluster: str
    node: str
    system: NatsServersAddress | None = None
    """The same servers, for a user that may ask them about themselves."""
    advertise: str | None = None
    creates: bool = False
    """Whether the cluster is made if it is missing."""
    is_unsafe: bool = False
    """Whether servers are accepted that may lose what they acknowledge."""


class Joined(msgspec.Struct, frozen=True):
    """A cluster, as a node reaches it."""

    client: Client
    buckets: ClusterBuckets
    settings: ClusterSettings
    objects: ObjectStore
    unverified: str | None
    """Why the servers were not checked, or are accepted all the same."""


async def join(options: JoinOptions, notices: NatsNotices) -> Joined:
    """Join a cluster. Raises PenstockError."""
    for name, what in ((options.cluster, "a cluster"), (options.node, "a node")):
        if problem := cluster_keys.name_problem(name, what):
            raise PenstockError(problem)
    client = await connect(options.servers, f"penstock {options.node}", notices)
    try:
        return await _join(client, options, notices)
    except BaseException:
        await client.close()
        raise


async def _join(client: Client, options: JoinOptions, notices: NatsNotices) -> Joined:
    cluster = options.cluster
    known = await _describe_servers(client, options, notices)
    if options.creates:  # buckets are made where they are missing
        _check_servers(known, options, is_made=False)
    buckets = await until_answered(lambda: ClusterBuckets.open(client, cluster))
    settings = await until_answered(lambda: cluster_keys.settings_of(buckets))
    if settings is None and not options.creates:
        hint = f"`penstock cluster create --join {options.servers.shown} --cluster {cluster}` makes it"
        raise PenstockError(Refusal("InvalidRequest", f"there is no cluster `{cluster}`", hint=hint))
    unverified = _check_servers(known, options, is_made=settings is not None)
    # A creation that was interrupted is completed; nothing that is there changes.
    settings = await until_answered(lambda: cluster_keys.create(client, cluster))
    if settings.shards != SHARDS:
        message = f"the cluster has {settings.shards} shards, and this version knows {SHARDS}"
        raise PenstockError(Refusal("Unsupported", message, hint="upgrade this node"))
    objects = await until_answered(lambda: JetStreamLiveStore.open(client, cluster))
    await _check_name(buckets, options.node)
    return Joined(client, buckets, settings, objects, unverified)


async def _describe_servers(client: Client, options: JoinOptions, notices: NatsNotices) -> list[ServerAbout]:
    """What the servers say of themselves, if this user may ask them."""
    known = await ask_servers(client)  # an account may import the service that answers
    if known or options.system is None:
        return known
    system = await connect(options.system, f"penstock {options.node} check", notices)
    try:
        return await ask_servers(system)
    finally:
        await system.close()


def _check_servers(known: list[ServerAbout], options: JoinOptions, *, is_made: bool) -> str | None:
    """Why the servers are not known to keep what they acknowledge. Raises PenstockError if they are known not to."""
    wanted = max([REPLICAS, *(server.peers for server in known)])
    # The logs of a cluster have three replicas: a node starts while one of their servers is down.
    missing = wanted - len(known) if known and is_made else 0
    problem = server_problem(known + known[:1] * max(missing, 0)) if known else None
    if problem is not None and not options.is_unsafe:
        raise PenstockError(problem)
    unverified = None if problem is None else problem.message
    if not known:
        unverified = UNDESCRIBED
    elif missing > 0:
        unverified = f"{missing} of {wanted} NATS servers did not answer when this node started"
    if unverified is not None:
        logs.warning("cluster.unverified", reason=unverified)
    return unverified


async def _check_name(buckets: ClusterBuckets, node: str) -> None:
    """Two processes must not have one name."""

    async def revision() -> int | None:
        try:
            return (await buckets.live.get(NODE + node)).revision
        except KeyNotFoundError:
            return None

    before = await until_answered(revision)
    until_s = time.monotonic() + SAME_NAME_S
    while before is not None and time.monotonic() < until_s:
        await asyncio.sleep(LOOK_S)
        asked_s = time.monotonic()
        now = await until_answered(revision)
        if (
            answered_s := time.monotonic()
        ) - asked_s > SLOW_S:  # servers that are slow to answer are slow to write as well
            until_s = answered_s + SAME_NAME_S
        if now is not None and now != before:
            hint = "give each node its own `--node`; a node that was stopped may start again at once"
            raise PenstockError(Refusal("InvalidRequest", f"a node `{node}` runs already", hint=hint))
