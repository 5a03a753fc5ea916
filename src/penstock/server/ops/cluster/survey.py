"""`penstock cluster check`: whether the servers, the streams, the nodes and who may publish are as a cluster needs them.

A server that the command cannot reach, or that does not describe itself, is a finding and no success: what is not checked is said.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from typing import Literal

import msgspec
from nats.aio.client import Client
from nats.js.api import StreamInfo
from nats.js.errors import NotFoundError

from penstock.core.cluster.status import ClusterStatus
from penstock.core.cluster.stream_space import SETTLES_PERCENT
from penstock.core.errors import PenstockError, Refusal
from penstock.journal.replicated.cluster_keys import settings_of
from penstock.journal.replicated.connection import NatsServersAddress, connect_servers, server_name
from penstock.journal.replicated.jetstream import ANSWER_S, FAILURES, REPLICAS, stream_config, stream_name
from penstock.journal.replicated.server_check import ask_servers, server_problem
from penstock.server.ops.cluster.operator import ClusterOperator, find_buckets, patiently
from penstock.server.ops.cluster.permissions import CONNECTIONS

FULL_SOON_PERCENT = 70
SETTINGS = ("num_replicas", "storage", "discard", "max_age", "deny_delete", "allow_direct", "max_bytes", "subjects")
"""What of a stream's configuration a shard's log depends on."""
CONNECTIONS_MAX = 1024
"""Connections of the account that are looked at."""
PREFIX = "penstock "
"""Begins the names of the connections of nodes and commands."""
OWN = PREFIX + "check"
PROBE_S = 1.0
"""How long a message of a stranger may take to arrive."""

Level = Literal["ok", "warning", "error"]


class ClusterFinding(msgspec.Struct, omit_defaults=True):
    """One thing that was checked."""

    level: Level
    about: str
    message: str
    hint: str = ""


async def survey(client: Client, address: NatsServersAddress, cluster: str) -> AsyncIterator[ClusterFinding]:
    """Everything that can be checked, in the order of what depends on what."""
    async for finding in _servers(client, address):
        yield finding
    async for finding in _strangers(client, address, cluster):
        yield finding
    try:
        found = ClusterOperator(client, cluster, await find_buckets(client, cluster))
    except PenstockError as error:
        yield _refused("cluster", error.refusal)
        return
    async for finding in _streams(found):
        yield finding
    for finding in _nodes(await found.status()):
        yield finding


async def _servers(client: Client, address: NatsServersAddress) -> AsyncIterator[ClusterFinding]:
    names: dict[str, str] = {}
    for url in address.urls:
        try:
            one = await connect_servers(msgspec.structs.replace(address, urls=(url,)), OWN)
        except PenstockError as error:
            yield _refused("servers", error.refusal)
            continue
        names[url] = server_name(one) or url
        await one.close()
    if len(set(names.values())) < REPLICAS:
        message = f"`--join` names {len(set(names.values()))} servers that answer"
        hint = f"name {REPLICAS} or more, so that nodes start while one of them is down"
        yield ClusterFinding("warning", "servers", message, hint)
    known = await ask_servers(client)
    if not known:
        message = "no server describes itself to this user, so sync, versions and sizes are unverified"
        hint = "let the account import `VARZ`, as `penstock cluster create --print-permissions` shows"
        yield ClusterFinding("warning", "servers", message, hint)
        return
    if problem := server_problem(known):
        yield _refused("servers", problem)
    else:
        versions = ", ".join(sorted({server.version for server in known}))
        listed = ", ".join(sorted(server.server_name for server in known))
        yield ClusterFinding("ok", "servers", f"{listed}: every write is synced, version {versions}")
    described = {server.server_name for server in known}
    for url, name in names.items():
        if name not in described:
            message = f"`{url}` is the server `{name}`, which does not belong to the cluster of the others"
            yield ClusterFinding("error", "servers", message, "name servers of one NATS cluster")


async def _strangers(client: Client, address: NatsServersAddress, cluster: str) -> AsyncIterator[ClusterFinding]:
    """Who else may publish on the subjects of the cluster."""
    subject = f"pen.{cluster}.check.{secrets.token_hex(8)}"
    subscription = await client.subscribe(subject)
    await client.flush()
    try:
        stranger = await connect_servers(NatsServersAddress(address.urls, ca=address.ca), OWN)
    except PenstockError:
        yield ClusterFinding("ok", "access", "a client without credentials is refused")
    else:
        await stranger.publish(subject, b"")
        await stranger.flush()
        try:
            await subscription.next_msg(timeout=PROBE_S)
        except TimeoutError:
            yield ClusterFinding(
                "ok", "access", "a client without credentials may not publish on the subjects of the cluster"
            )
        else:
            hint = "give the cluster an account of its own, with users: `penstock cluster create --print-permissions`"
            message = "every client of these servers may publish on the subjects of the cluster"
            yield ClusterFinding("warning", "access", message, hint)
        await stranger.close()
    await subscription.unsubscribe()
    others = sorted({name for name in await _connections(client) if not name.startswith(PREFIX)})
    if others:
        names = ", ".join(f"`{name}`" for name in others[:8])
        message = f"{len(others)} other clients use the account of the cluster and may publish on its subjects: {names}"
        yield ClusterFinding("warning", "access", message, "give them an account of their own")


class _Connection(msgspec.Struct):
    name: str = ""
    ip: str = ""
    cid: int = 0


class _Page(msgspec.Struct):
    connections: list[_Connection] = []


class _PageAnswer(msgspec.Struct):
    data: _Page = msgspec.field(default_factory=_Page)


async def _connections(client: Client) -> list[str]:
    """The names of the connections of our account, at every server that answers."""
    inbox = client.new_inbox()
    subscription = await client.subscribe(inbox)
    await client.publish(CONNECTIONS, msgspec.json.encode({"limit": CONNECTIONS_MAX}), reply=inbox)
    names: list[str] = []
    try:
        while True:
            message = await subscription.next_msg(timeout=PROBE_S)
            if not message.data:
                break
            page = msgspec.json.decode(message.data, type=_PageAnswer).data
            names += [found.name or f"{found.ip}#{found.cid}" for found in page.connections]
    except (TimeoutError, msgspec.DecodeError):
        pass
    await subscription.unsubscribe()
    return [name for name in names if name != OWN]


async def _streams(found: ClusterOperator) -> AsyncIterator[ClusterFinding]:
    js = found.client.jetstream(timeout=ANSWER_S)
    settings = await patiently(lambda: settings_of(found.buckets))
    assert settings is not None
    is_good = True
    for shard in range(settings.shards):
        current = await patiently(lambda shard=shard: found.buckets.shard(shard))  # type: ignore[misc]
        if current is None:
            is_good = False
            yield ClusterFinding("error", f"shard {shard}", "it has no stream", "run `penstock cluster create` again")
            continue
        name = stream_name(found.cluster, shard, current[0].generation)
        try:
            info = await patiently(lambda name=name: js.stream_info(name))  # type: ignore[misc]
        except NotFoundError:
            is_good = False
            hint = f"`penstock cluster repair {shard}` makes a new one from the spools: docs/how-to/repair-a-shard.md"
            yield ClusterFinding("error", f"shard {shard}", f"its stream `{name}` is gone", hint)
            continue
        for finding in _stream(shard, info, stream_config(name, settings.bytes_max)):
            is_good = is_good and finding.level == "ok"
            yield finding
    for bucket in ("KV_{}-live", "KV_{}-config", "OBJ_{}-live-files"):
        name = bucket.format(found.cluster)
        try:
            kept = await js.stream_info(name)
        except (NotFoundError, *FAILURES):
            is_good = False
            yield ClusterFinding("error", "buckets", f"`{name}` does not answer", "run `penstock cluster create` again")
            continue
        if (kept.config.num_replicas or 1) < REPLICAS:
            is_good = False
            hint = f"`nats stream update {name} --replicas {REPLICAS}`"
            yield ClusterFinding("error", "buckets", f"`{name}` has {kept.config.num_replicas} replicas", hint)
    if is_good:
        yield ClusterFinding(
            "ok", "streams", f"{settings.shards} shards: three replicas each, configured as they must be"
        )


def _stream(shard: int, info: StreamInfo, wanted: object) -> list[ClusterFinding]:
    about, name = f"shard {shard}", info.config.name
    found: list[ClusterFinding] = []
    differing = [one for one in SETTINGS if not _is_same(getattr(info.config, one), getattr(wanted, one))]
    if differing:
        hint = "change it back with `nats stream edit`; a log with other settings may lose records"
        found.append(ClusterFinding("error", about, f"`{name}` was changed: {', '.join(differing)}", hint))
    replicas = (info.cluster and info.cluster.replicas) or []
    behind = [peer.name for peer in replicas if peer.offline or not peer.current]
    if info.cluster is None or not info.cluster.leader:
        found.append(ClusterFinding("error", about, f"`{name}` has no leader", "start the NATS servers that are down"))
    elif behind:
        hint = "start them, or wait until they have caught up: until then one more failure stops the shard"
        found.append(ClusterFinding("warning", about, f"`{name}` lacks {', '.join(map(str, behind))}", hint))
    percent = 100 * info.state.bytes // (info.config.max_bytes or 1)
    if percent >= FULL_SOON_PERCENT:
        level: Level = "error" if percent >= SETTLES_PERCENT else "warning"
        hint = "settle or drop envelopes, or raise `max_bytes` with `nats stream edit`: docs/how-to/cluster-broker.md"
        found.append(ClusterFinding(level, about, f"`{name}` is {percent} % full", hint))
    return found


def _is_same(one: object, other: object) -> bool:
    """Unset and zero are one for a server."""
    return (one or None) == (other or None)


def _nodes(status: ClusterStatus) -> list[ClusterFinding]:
    found: list[ClusterFinding] = []
    up = [node for node in status.nodes if node.state != "gone"]
    versions = sorted({node.version for node in up})
    if not up:
        found.append(ClusterFinding("warning", "nodes", "no node is up", "start one with `penstock up --join`"))
    elif len(versions) > 1:
        message = f"the nodes have different versions: {', '.join(versions)}"
        found.append(ClusterFinding("warning", "nodes", message, "finish the upgrade: one node after the other"))
    for node in up:
        if not node.verified:
            hint = "it runs with servers that it could not check; let its account import `VARZ`, then restart it"
            found.append(ClusterFinding("warning", "nodes", f"`{node.node}` is unverified", hint))
    if up and status.unowned:
        hint = "`penstock cluster status` says why; wait 20 s after a failure"
        message = f"no node owns {', '.join(map(str, status.unowned))}"
        found.append(ClusterFinding("error", "shards", message, hint))
    for row in status.shards:
        for name, reason in row.troubles.items():
            hint = "docs/how-to/repair-a-shard.md says what to do"
            found.append(
                ClusterFinding("error", f"shard {row.shard}", f"`{name}` cannot follow its log: {reason}", hint)
            )
    if up and not any(finding.level == "error" for finding in found):
        found.append(ClusterFinding("ok", "nodes", f"{', '.join(node.node for node in up)}: every shard has an owner"))
    return found


def _refused(about: str, refusal: Refusal) -> ClusterFinding:
    return ClusterFinding("error", about, refusal.message, refusal.hint or refusal.kind.hint)
