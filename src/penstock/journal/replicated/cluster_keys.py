"""The keys of a cluster in its buckets: what was decided once, what an operator decides, what the nodes report.

    <cluster>-config    cluster          shards, secret, bytes of a stream
                        shard.<n>        journal and generation (`membership.py`)
                        move.<n>         the node that should own shard n
                        drain.<node>     the node should own nothing
                        repair.<n>       the node that should write a new stream of shard n from its spool
    <cluster>-live      node.<name>      `NodeReport`, each second and at each change

`create` makes a cluster and may be repeated. Streams are made only here and by a repair: a stream that is gone later was lost.
"""

from __future__ import annotations

import asyncio
import secrets
from datetime import UTC, datetime
from typing import Any

import msgspec
from nats.aio.client import Client
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError, NotFoundError
from nats.js.kv import KeyValue

from penstock.core.cluster.status import ClusterStatus, NodeReport, cluster_status, live_reports
from penstock.core.errors import PenstockError, Refusal
from penstock.core.placement import SHARDS
from penstock.journal.replicated.jetstream import JetStreamLiveStore, JetStreamLog, stream_name
from penstock.journal.replicated.membership import NODE, ClusterBuckets, ShardSettings

CLUSTER = "cluster"
MOVE, DRAIN, REPAIR = "move.", "drain.", "repair."
BYTES_MAX = 1024**3
"""Bytes of a stream by default: 16 of them, on each of three servers."""
SECRET_BYTES = 32


class ClusterSettings(msgspec.Struct, frozen=True):
    """The key `cluster`."""

    secret: str
    """Signs what nodes say to each other: 64 hex digits."""
    created: str
    shards: int = SHARDS
    bytes_max: int = BYTES_MAX
    version: int = 1


def name_problem(name: str, what: str) -> Refusal | None:
    """Why a cluster or a node cannot have this name: it is part of subjects, streams and keys."""
    if 0 < len(name) <= 32 and name.isascii() and all(char.isalnum() or char in "-_" for char in name):
        return None
    hint = "use up to 32 letters, digits, `-` and `_`"
    return Refusal("InvalidRequest", f"{what} cannot be named {name[:80]!r}", hint=hint)


async def settings_of(buckets: ClusterBuckets) -> ClusterSettings | None:
    """The settings of a cluster; None if it was not created."""
    try:
        entry = await buckets.config.get(CLUSTER)
    except KeyNotFoundError:
        return None
    settings = msgspec.json.decode(entry.value or b"", type=ClusterSettings)
    if settings.version != 1:
        hint = "upgrade this node"
        raise PenstockError(Refusal("Unsupported", f"the cluster has version {settings.version}", hint=hint))
    return settings


async def create(client: Client, cluster: str, *, bytes_max: int = BYTES_MAX) -> ClusterSettings:
    """Make a cluster: buckets, settings, and the stream of each shard. What is there stays as it is."""
    if problem := name_problem(cluster, "a cluster"):
        raise PenstockError(problem)
    buckets = await ClusterBuckets.open(client, cluster)
    settings = await settings_of(buckets)
    if settings is None:
        made = ClusterSettings(secrets.token_hex(SECRET_BYTES), datetime.now(UTC).isoformat(), bytes_max=bytes_max)
        try:
            await buckets.config.create(CLUSTER, msgspec.json.encode(made))
        except KeyWrongLastSequenceError:
            pass  # another node was first
        settings = await settings_of(buckets)
        assert settings is not None
    await JetStreamLiveStore.open(client, cluster)
    for shard in range(settings.shards):
        if await buckets.shard(shard) is None:
            await JetStreamLog(client, stream_name(cluster, shard, 1)).create(settings.bytes_max)
            await buckets.set_shard(shard, ShardSettings(secrets.token_hex(16)))
    return settings


async def entries(bucket: KeyValue) -> list[KeyValue.Entry]:
    """Every key of a bucket. A watch would leave a consumer behind, and may say that it has sent all before it has sent any."""
    js, stream, prefix = bucket._js, bucket._stream, bucket._pre
    subjects = (await js.stream_info(stream, subjects_filter=">")).state.subjects or {}

    async def read(subject: str) -> KeyValue.Entry | None:
        try:
            found = await js.get_last_msg(stream, subject)
        except NotFoundError:
            return None  # it has expired meanwhile
        if (found.headers or {}).get("KV-Operation"):
            return None  # a mark that it was removed
        key = subject.removeprefix(prefix)
        created: Any = found.time  # which nats-py declares as a number
        return KeyValue.Entry("", key, found.data, found.seq, None, created, None)

    return [entry for entry in await asyncio.gather(*map(read, sorted(subjects))) if entry is not None]


async def set_move(buckets: ClusterBuckets, shard: int, node: str | None) -> None:
    """Have this node own the shard, while it lives and is not drained; None leaves it to the assignment."""
    if node is None:
        await buckets.config.delete(f"{MOVE}{shard}")
    else:
        await buckets.config.put(f"{MOVE}{shard}", node.encode())


async def set_drain(buckets: ClusterBuckets, node: str, *, on: bool) -> None:
    """Have this node own nothing, or let it own shards again."""
    if on:
        await buckets.config.put(DRAIN + node, b"{}")
    else:
        await buckets.config.delete(DRAIN + node)


async def ask_repair(buckets: ClusterBuckets, shard: int, node: str) -> None:
    """Have this node write a new stream of a halted shard, from its spool; the node removes the key when it is done."""
    await buckets.config.put(f"{REPAIR}{shard}", node.encode())


async def end_repair(buckets: ClusterBuckets, shard: int) -> None:
    await buckets.config.delete(f"{REPAIR}{shard}")


class Decisions(msgspec.Struct):
    """What an operator has decided: the keys `move.<n>`, `drain.<node>` and `repair.<n>`."""

    moves: dict[int, str] = {}
    repairs: dict[int, str] = {}
    drains: set[str] = msgspec.field(default_factory=set)

    def note(self, key: str, value: bytes | None) -> bool:
        """A key has this value, None when it is gone. Whether that changes a decision: a watch that begins again says all of them."""
        kind, _, rest = key.partition(".")
        if f"{kind}." in (MOVE, REPAIR) and rest.isdecimal():
            named, shard = self.moves if f"{kind}." == MOVE else self.repairs, int(rest)
            before = named.pop(shard, None)
            if value is not None:
                named[shard] = value.decode(errors="replace")
            return named.get(shard) != before
        if key.startswith(DRAIN):
            name = key.removeprefix(DRAIN)
            was_drained = name in self.drains
            (self.drains.discard if value is None else self.drains.add)(name)
            return was_drained != (value is not None)
        return False


def decode_report(value: bytes | None) -> NodeReport | None:
    """What a node wrote; None if it is of another version."""
    try:
        return msgspec.json.decode(value or b"", type=NodeReport)
    except msgspec.DecodeError:
        return None


async def read_status(buckets: ClusterBuckets, cluster: str) -> ClusterStatus:
    """The status of a cluster, from its keys: for commands that run without a node."""
    settings = await settings_of(buckets)
    if settings is None:
        hint = "`penstock cluster create` makes it"
        raise PenstockError(Refusal("InvalidRequest", f"there is no cluster `{cluster}` on these servers", hint=hint))
    decisions = Decisions()
    for entry in await entries(buckets.config):
        decisions.note(entry.key, entry.value or b"")
    reports: dict[str, tuple[NodeReport, int]] = {}
    for entry in await entries(buckets.live):
        report, stored = decode_report(entry.value), entry.created
        if entry.key.startswith(NODE) and report is not None and isinstance(stored, datetime):
            reports[entry.key.removeprefix(NODE)] = (report, int(stored.timestamp() * 1_000_000))
    named = {name: report for name, (report, _) in reports.items()}
    return cluster_status(cluster, settings.shards, named, live_reports(reports), decisions.moves, decisions.drains)
