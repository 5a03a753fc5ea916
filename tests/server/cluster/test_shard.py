"""One shard at a node: without its lease it lets nothing out, and it goes on with it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.server.cluster.shard import SUSPENDED, CellScheduler
from penstock.server.engine.schedulers import LoopScheduler
from tests.nats_servers import NAMES, NatsServers
from tests.server.cluster.conftest import SHARD, cluster, eventually, fill, pulled, run, served


def test_what_a_cell_has_scheduled_ends_with_it() -> None:
    async def work() -> None:
        scheduler = CellScheduler(LoopScheduler(asyncio.get_running_loop()))
        called: list[int] = []
        scheduler.soon(lambda: called.append(1))
        await asyncio.sleep(0)
        scheduler.soon(lambda: called.append(2))
        scheduler.at(0, lambda: called.append(3))
        scheduler.is_over = True
        scheduler.at(0, lambda: called.append(4)).cancel()
        later = asyncio.Event()
        asyncio.get_running_loop().call_later(0.01, later.set)
        await later.wait()
        assert called == [1]

    run(work)


def test_a_shard_that_cannot_move_stays_for_a_while(servers: NatsServers, tmp_path: Path) -> None:
    """The log did not take its newest frame: it takes its epoch again, and a node that ends asks again."""

    async def work() -> None:
        async with cluster(servers, "stays", tmp_path) as nodes:
            a = await nodes.start("a")
            await served(a)
            await fill(a, "one")
            shard = a.shards[SHARD]
            assert shard.journal is not None
            ownership = shard.journal.ownership
            await eventually(
                lambda: not ownership.writer.is_busy, "a pause"
            )  # else the outcome of a frame ends this state
            ownership.state = "taking"
            await shard.release()
            assert (shard.report.state, shard.cell is None) == ("owning", False)
            assert not shard.may_release(is_leaving=False)
            ownership.state = "owning"
            await a.drain(1.0)
            await eventually(lambda: not any(one.is_owner for one in a.shards.values()), "a hand-over of every shard")

    run(work)


@pytest.mark.more  # servers that are killed need seconds to elect a leader
@pytest.mark.promise(
    "Cluster", "without a majority of NATS servers nothing is answered, and all goes on when it is back"
)
def test_a_suspended_shard_goes_on_by_itself(tmp_path: Path) -> None:
    (tmp_path / "nats").mkdir()
    servers = NatsServers(tmp_path / "nats")

    async def work() -> None:
        async with cluster(servers, "suspended", tmp_path) as nodes:
            a = await nodes.start("a")
            await served(a)
            await fill(a, "one")
            for name in NAMES[1:]:
                servers.kill(name)
            shard = a.shards[SHARD]
            await eventually(lambda: shard.report.reason == SUSPENDED, "a suspension")
            assert (shard.is_open, shard.may_serve, a.finding().state) == (False, False, "degraded")
            waiting = asyncio.create_task(fill(a, "two"))
            for name in NAMES[1:]:
                servers.start(name)
            await eventually(lambda: shard.may_serve, "a lease")
            await waiting
            assert await pulled(a, 2) == ["one", "two"]
            assert shard.report.epoch == 1 or shard.takeovers > 1

    try:
        run(work)
    finally:
        servers.close()
