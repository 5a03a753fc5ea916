"""The streams and objects of real NATS servers as a shard's log and its live files."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from penstock.core.cluster.messages import cut
from penstock.core.cluster.reader import LogEnd
from penstock.core.cluster.writer import Found, Full, Kept, Passed, Publish, Seek, Unknown
from penstock.journal.replicated.jetstream import JetStreamLiveStore, JetStreamLog, stream_name, subject_of
from penstock.journal.replicated.membership import ClusterBuckets, ShardSettings
from penstock.journal.replicated.server_check import ask_servers, server_problem
from penstock.journal.replicated.shard_log import StoredLive
from tests.cluster_node import until
from tests.journal.replicated.conftest import connected
from tests.nats_servers import NatsServers


async def call(operation: Callable[..., None], *given: object) -> Any:
    """The answer of an operation that calls back."""
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    operation(*given, answer.set_result)
    return await answer


async def found(log: JetStreamLog) -> Found:
    """What a read finds, once the servers answer."""
    answer = await call(log.tail, Seek(0))
    if not isinstance(answer, Found):
        raise TimeoutError
    return answer


def test_a_stream_is_a_log(servers: NatsServers) -> None:
    asyncio.run(check_log(servers))


async def check_log(servers: NatsServers) -> None:
    async with connected(servers) as client:
        log = JetStreamLog(client, stream_name("one", 3, 1))
        assert await until(partial(found, log)) == Found([], 0), "a stream that is gone ends before all that was kept"
        await until(lambda: log.create(2_000_000))
        assert await call(log.tail, Seek(0)) == Found([], 0)
        [marker] = cut("epoch", b"a 00", epoch=1, number=0, first=0, previous=0)
        [idle] = cut("idle", b"", epoch=1, number=1, first=0, previous=marker.check)
        assert await call(log.publish, Publish(marker, 0)) == Kept(1)
        assert await call(log.publish, Publish(marker, 0)) == Passed(), "even the same message"
        assert await call(log.publish, Publish(idle, 7)) == Passed()
        assert await call(log.publish, Publish(idle, 1)) == Kept(2)
        assert await call(log.tail, Seek(0)) == Found([(1, marker), (2, idle)], 2)
        assert await call(log.tail, Seek(2)) == Found([], 2)
        await client.jetstream().publish(subject_of(log.stream), b"not ours")
        assert await call(log.tail, Seek(2)) == Found([(3, None)], 3)
        long = cut("rows", bytes(500_000), epoch=1, number=2, first=0, rows=1, previous=0)[0]
        outcomes = [await call(log.publish, Publish(long, after)) for after in range(3, 7)]
        assert outcomes == [Kept(4), Kept(5), Kept(6), Full()]
        assert await call(log.measure) > 1_500_000
        assert await call(log.forget, 4) is True
        assert await call(log.tail, Seek(0)) == Found([], 6, first=5)
        assert [seq for seq, _ in (await call(log.tail, Seek(4))).messages] == [5, 6]


def test_live_files_are_objects(servers: NatsServers) -> None:
    asyncio.run(check_store(servers))


async def check_store(servers: NatsServers) -> None:
    async with connected(servers) as client:
        objects = await until(lambda: JetStreamLiveStore.open(client, "one"))
        store, other = JetStreamLiveStore(objects, 1), JetStreamLiveStore(objects, 11)
        assert await call(store.newest) is None
        old = StoredLive("old", LogEnd(seq=9, epoch=2, offset=5, check=77, owner="a"))
        new = StoredLive("new", LogEnd(seq=11, epoch=2, offset=7, check=78, owner="a"))
        for file in (new, old):
            assert await call(store.put, file, file.name.encode() * 100_000) is True
        assert await call(store.newest) == new
        assert await call(store.get, new) == b"new" * 100_000
        assert await call(store.get, StoredLive("no", LogEnd())) == Unknown()
        assert await call(other.newest) is None


def test_settings_change_by_revision(servers: NatsServers) -> None:
    asyncio.run(check_settings(servers))


async def check_settings(servers: NatsServers) -> None:
    async with connected(servers) as client:
        buckets = await until(lambda: ClusterBuckets.open(client, "one"))
        assert await buckets.shard(4) is None
        first = ShardSettings("ab" * 16)
        assert await buckets.set_shard(4, first)
        assert not await buckets.set_shard(4, first), "there are some by now"
        found = await buckets.shard(4)
        assert found is not None
        assert found[0] == first
        assert await buckets.set_shard(4, ShardSettings("ab" * 16, 2), found[1])
        assert not await buckets.set_shard(4, ShardSettings("ab" * 16, 3), found[1])


def test_servers_that_sync_each_write_may_hold_a_cluster(servers: NatsServers) -> None:
    asyncio.run(check_servers(servers))


async def check_servers(servers: NatsServers) -> None:
    async with connected(servers) as client:
        await until(lambda: JetStreamLog(client, stream_name("warm", 0, 1)).create(1_000_000))
    async with connected(servers, "sys") as system:
        known = await ask_servers(system)
    assert sorted(server.server_name for server in known) == ["n1", "n2", "n3"]
    assert server_problem(known) is None
