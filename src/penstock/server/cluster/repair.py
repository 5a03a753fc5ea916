"""Repair of a shard whose log is damaged: a new generation of its stream, from what one node has kept.

The spool of a node is a prefix of the log, so it has every row that was kept and that this node has read. Its state becomes the live file
of a new stream, whose first frame begins an epoch above all others; then `shard.<n>` is switched by its revision, and all nodes reopen the
shard. The old stream stays. A repair that is interrupted leaves a stream that no key names, and may be asked for again.
"""

from __future__ import annotations

import secrets
from functools import partial
from typing import TYPE_CHECKING

from nats.js.errors import NotFoundError

from penstock.core.cluster.messages import cut
from penstock.core.cluster.reader import LogEnd
from penstock.core.cluster.writer import Kept, Publish
from penstock.core.errors import PenstockError, Refusal
from penstock.journal.open_and_repair import live_name
from penstock.journal.replicated.jetstream import JetStreamLiveStore, JetStreamLog, stream_name
from penstock.journal.replicated.membership import ShardSettings
from penstock.journal.replicated.shard_log import StoredLive
from penstock.journal.replicated.spool import Spool, begin_again
from penstock.journal.seal import write_live
from penstock.journal.segments import KIND_LIVE, SHARD, Header
from penstock.server.cluster.log_copy import unsealed
from penstock.server.engine.machines import Machines
from penstock.server.open_cell import configured_machine
from penstock.server.ops.cluster.operator import patiently

if TYPE_CHECKING:
    from penstock.server.cluster.node import ClusterNode
    from penstock.server.cluster.shard import ClusterShard


async def repair(node: ClusterNode, shard: ClusterShard) -> ShardSettings:
    """Write a new stream of this shard from its spool at this node; returns the settings that name it. Raises PenstockError."""
    number = shard.shard
    found = await patiently(partial(node.buckets.shard, number))
    assert found is not None
    before, revision = found
    epoch = max(
        [report.shards[number].epoch for report in node.view.reports.values() if number in report.shards], default=0
    )
    await shard.pause()
    newest = await shard.asked(shard.store.newest)
    stored = newest if isinstance(newest, StoredLive) else None
    if stored is not None and stored.end.offset > shard.report.offset:
        data = await shard.asked(partial(shard.store.get, stored))
        if not isinstance(data, bytes):
            raise _failed("the newest live file cannot be read")

        def reach_live_file() -> None:
            with unsealed(shard.disk.directory):
                begin_again(shard.disk, shard.report.offset, data, stored.end)

        await shard.on_thread(reach_live_file)
    base, live = await shard.on_thread(partial(_write_live, node, shard))
    generation, log = await _new_stream(node, number, before.generation + 1)
    end = await _begin(node, shard, log, base, epoch + 1)
    if live is not None:
        store = JetStreamLiveStore(node.objects, number, generation)
        if not await shard.asked(partial(store.put, StoredLive(f"{base}-{secrets.token_hex(8)}", end), live)):
            raise _failed("the live file was not stored")
    after = ShardSettings(before.journal, generation, base)
    if not await patiently(partial(node.buckets.set_shard, number, after, revision)):
        raise _failed("another node has repaired it meanwhile")
    return after


def _failed(why: str) -> PenstockError:
    return PenstockError(Refusal("JournalUnavailable", f"the shard is not repaired: {why}", hint="ask for it again"))


def _write_live(node: ClusterNode, shard: ClusterShard) -> tuple[int, bytes | None]:
    """The state of the spool as a live file, which stays in it too."""
    with unsealed(shard.disk.directory):
        return _write_live_of_spool(node, shard)


def _write_live_of_spool(node: ClusterNode, shard: ClusterShard) -> tuple[int, bytes | None]:
    spool = Spool(shard.disk, shard.settings.journal)
    machine = configured_machine(node.config)
    machines, now = Machines(machine), node.scheduler.now()
    for is_state, row in spool.rows():
        (machines.resume if is_state else machines.restore)(now, row)
    base, recorded_us = spool.offset, spool.recorded_us
    spool.close()
    if base == 0:
        return 0, None
    header = Header(shard.settings.journal, SHARD, 0, base, KIND_LIVE)
    write_live(shard.disk, header, machines.snapshot(now), recorded_us)
    return base, shard.disk.read(live_name(base))


async def _new_stream(node: ClusterNode, number: int, generation: int) -> tuple[int, JetStreamLog]:
    """A stream that has never been there."""
    while True:
        name = stream_name(node.cluster, number, generation)
        try:
            await patiently(partial(_find, node, name))
        except LookupError:
            log = JetStreamLog(node.client, name)
            await patiently(partial(log.create, node.settings.bytes_max))
            return generation, log
        generation += 1


async def _find(node: ClusterNode, name: str) -> None:
    try:
        await node.client.jetstream().stream_info(name)
    except NotFoundError:
        raise LookupError(name) from None


async def _begin(node: ClusterNode, shard: ClusterShard, log: JetStreamLog, base: int, epoch: int) -> LogEnd:
    """The first frames: an epoch that begins behind the live file, and that is released at once."""
    owner = f"{node.name} {secrets.token_hex(8)}".encode()
    [marker] = cut("epoch", owner, epoch=epoch, number=0, first=base, previous=0)
    [released] = cut("released", b"", epoch=epoch, number=1, first=base, previous=marker.check)
    for after, message in enumerate((marker, released)):
        outcome = await shard.asked(partial(log.publish, Publish(message, after)))
        if outcome != Kept(after + 1):
            raise _failed("its first frames were not kept")
    return LogEnd(2, epoch, 1, base, released.check, node.name, is_released=True)
