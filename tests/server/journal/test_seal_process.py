"""The sealing process of a shard. `test_lifecycle.py` runs it for a server."""

import asyncio
from pathlib import Path

import msgspec

from penstock.journal.lake_location import lake_of
from penstock.journal.parquet_table import EventsTable
from penstock.journal.seal import SealReport
from penstock.server.config.load import Config
from penstock.server.engine.schedulers import LoopScheduler
from penstock.server.journal.lifecycle import JournalLifecycle
from penstock.server.journal.seal_process import SHARDS_DIR, SealTask, run
from penstock.server.open_cell import open_cell


async def _noted(data: Path, config: Config) -> str:
    """A journal with one row and a closed segment."""
    archive = JournalLifecycle(data, config)
    cell = open_cell(config, archive, LoopScheduler(asyncio.get_running_loop()), authenticate=lambda token: None)
    cell.runtime.note("start")
    flushed = asyncio.Event()
    cell.runtime.flushed(flushed.set)
    await flushed.wait()
    rotated: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    archive.journal.rotate(rotated.set_result)
    await rotated
    await archive.close()
    return archive.journal.id


def test_shards_seal_into_one_table_one_after_the_other(tmp_path: Path) -> None:
    config = Config(lake=str(tmp_path / "lake"))
    for shard in ("3", "4"):
        data = tmp_path / SHARDS_DIR / shard
        data.mkdir(parents=True)
        journal = asyncio.run(_noted(data, config))
        task = SealTask(str(data), config.streams, config.limits, config.journal.retention)
        report = msgspec.json.decode(run(task), type=SealReport)
        assert report.sealed_rows >= 1
        assert EventsTable(lake_of(data)).sealed_end(journal, 0) == report.sealed_end
        assert (tmp_path / SHARDS_DIR / "sealing").exists(), "they share a lock"
    assert lake_of(tmp_path / SHARDS_DIR / "3") == lake_of(tmp_path / SHARDS_DIR / "4")
