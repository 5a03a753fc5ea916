"""The copy of a log at a node: whose directory it takes, and how it goes on after a trouble of its disk."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from penstock.core.cluster.reader import LogEnd
from penstock.core.errors import PenstockError
from penstock.journal.disk import RealDisk
from penstock.journal.open_and_repair import IDENTITY, replace_file
from penstock.journal.replicated.replicated_journal import ReplicatedJournal
from penstock.server.journal.seal_process import shard_dir
from tests.nats_servers import NatsServers
from tests.server.cluster.conftest import SHARD, cluster, eventually, fill, pulled, run, served


def test_a_directory_of_another_journal_is_refused(servers: NatsServers, tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(servers, "foreign", tmp_path) as nodes:
            folder = shard_dir(tmp_path / "a", SHARD) / "journal"
            folder.mkdir(parents=True)
            replace_file(RealDisk(folder), IDENTITY, [b'{"id":"%b"}' % (b"0" * 32)])
            with pytest.raises(PenstockError, match="belongs to another journal"):
                await nodes.start("a")

    run(work)


@pytest.mark.more  # a shard changes its owner by silence
def test_a_spool_that_takes_nothing_ends_the_cell_and_is_opened_again(servers: NatsServers, tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(servers, "spool", tmp_path) as nodes:
            a = await nodes.start("a")
            await served(a)
            await fill(a, "one")
            shard = a.shards[SHARD]
            before = shard.journal
            assert before is not None
            before._end("the spool does not take a commit that was kept: the disk is full")
            shard.look()
            assert (a.finding().state, shard.is_owner) == ("degraded", False)
            assert a.finding().reason.endswith("the disk is full"), "the reason stays until it is open again"
            await eventually(lambda: shard.journal not in (None, before) and shard.cell is not None, "another cell")
            assert await pulled(a, 1) == ["one"]
            assert shard.takeovers >= 2
            shard._note("behind", "the log begins later")
            assert a.status().halted == [], "it is late, and nothing is damaged"
            assert a.finding().state == "degraded" and a.finding().reason.endswith("the log begins later")

    run(work)


def test_a_report_says_what_the_spool_has_where_the_log_ends_before(servers: NatsServers, tmp_path: Path) -> None:
    """A repair is for the node with the longest spool; after a restart a log that lost its end shows less."""

    async def work() -> None:
        async with cluster(servers, "reports", tmp_path) as nodes:
            a = await nodes.start("a")
            await served(a)
            await fill(a, "one", "two")
            shard = a.shards[SHARD]
            assert shard.journal is not None
            kept = shard.journal.offset
            assert kept >= 2
            shard.journal.ownership.reader.whole = LogEnd()
            shard._note("owning")
            assert shard.report.offset == kept
            shard.journal._end("the disk is full")
            shard.look()
            assert shard.report.reason == "the disk is full", "it stays until the spool is open again"
            assert a.finding().state == "degraded" and a.finding().reason.endswith("the disk is full")

    run(work)


def test_a_shard_that_is_opened_twice_at_once_has_one_journal(servers: NatsServers, tmp_path: Path) -> None:
    """A switch to another stream may meet an opening after an error: two spools would write one directory."""

    async def work() -> None:
        async with cluster(servers, "twice", tmp_path) as nodes:
            a = await nodes.start("a")
            await served(a)
            await fill(a, "one")
            shard = a.shards[SHARD]
            assert shard.journal is not None
            await asyncio.gather(shard.open(), shard.open())
            journals = [one for one in gc.get_objects() if isinstance(one, ReplicatedJournal)]
            used = [one for one in journals if one._spool._disk is shard.disk and not one.is_closed]
            assert used == [shard.journal]
            await eventually(lambda: shard.cell is not None, "a cell")

    run(work)


def test_what_comes_late_changes_nothing(servers: NatsServers, tmp_path: Path) -> None:
    """An older setting, which a watch that begins again may deliver, and an answer behind the end of its question."""

    async def work() -> None:
        async with cluster(servers, "late", tmp_path) as nodes:
            shard = (await nodes.start("a")).shards[SHARD]
            settings = shard.settings
            shard.switch(msgspec.structs.replace(settings, generation=settings.generation - 1))
            assert shard.settings == settings
            answers: list[Callable[[str], None]] = []
            task = asyncio.create_task(shard.asked(answers.append))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            answers[0]("too late")
            assert task.cancelled()

    run(work)
