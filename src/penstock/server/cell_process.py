"""A process of cells: `python -m penstock.server.cell_process` reads a task from stdin and serves its shards to the front.

It exits when stdin closes, so it never outlives the server. Each shard is a cell with a journal of its own.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import msgspec

from penstock.core.errors import PenstockError
from penstock.hide_pandas import hide_pandas
from penstock.journal.disk import RealDisk
from penstock.journal.segments import DamageError
from penstock.server.cell import Cell
from penstock.server.cells.cell_requests import CellServices
from penstock.server.cells.hosted_link import HostedLink
from penstock.server.cells.link import CellLink
from penstock.server.cells.messages import (
    CellConfig,
    CellDrain,
    CellDrained,
    CellHello,
    CellTask,
    FromCell,
    ToCell,
)
from penstock.server.config.load import Config
from penstock.server.engine.garbage import GarbageCollector
from penstock.server.engine.schedulers import LoopScheduler
from penstock.server.journal.lifecycle import JournalLifecycle, LockedError
from penstock.server.journal.seal_process import shard_config, shard_dir
from penstock.server.logging import logs
from penstock.server.open_cell import adopt_config, open_shard, suffixed

LOOK_S = 1.0
"""How often the disk of the journals is looked at."""
EXIT_UNABLE = 3
"""Exit code when a shard cannot be opened; a retry does not help."""
UNLOCKED_S, POLL_S = 10.0, 0.05
"""How long, and how often, the journals of the shards are tried while another process holds them."""


class ShardHost:
    """The shards of this process, and what the front asks of them."""

    def __init__(self, task: CellTask, scheduler: LoopScheduler) -> None:
        self._task = task
        self._config = task.config
        self._scheduler = scheduler
        self.link: CellLink[ToCell] = CellLink(ToCell)
        self.cells: dict[int, Cell] = {}
        self.archives: dict[int, JournalLifecycle] = {}
        self._services: dict[int, CellServices] = {}
        self._hosted = HostedLink(self._post, self._services.__getitem__)

    def _post(self, message: FromCell, size: int) -> None:
        self.link.post(message, size)

    def open(self) -> None:
        """Recover every shard."""
        for shard in self._task.shards:
            archive, config = None, self._config
            if self._task.data is not None:
                data = Path(self._task.data)
                config = shard_config(config, data)
                shard_dir(data, shard).mkdir(mode=0o700, parents=True, exist_ok=True)
                archive = self.archives[shard] = JournalLifecycle(shard_dir(data, shard), config)
            self.cells[shard], self._services[shard] = open_shard(shard, config, archive, self._scheduler)

    def received(self, message: ToCell) -> None:
        if self._hosted.received(message):
            return
        if isinstance(message, CellConfig):
            self._adopt(message.config)
        else:
            assert isinstance(message, CellDrain)
            self._drain()

    def _adopt(self, config: Config) -> None:
        logs.set_level(config.logs.level)
        for shard, cell in self.cells.items():
            mine = config if self._task.data is None else shard_config(config, Path(self._task.data))
            self._services[shard].config = mine
            adopt_config(cell.runtime, self.archives.get(shard), mine)

    def _drain(self) -> None:
        left = len(self.cells)
        given_up = 0

        def drained(abandoned: int) -> None:
            nonlocal left, given_up
            left, given_up = left - 1, given_up + abandoned
            if left == 0:
                self.link.post(CellDrained(given_up))

        for cell in self.cells.values():
            cell.runtime.drain(drained)

    async def watch_disks(self) -> None:
        """Notice a full disk, and that it has room again."""
        while True:
            for shard, archive in self.archives.items():
                self.cells[shard].runtime.note_trouble(archive.journal.trouble)
                archive.journal.check()
            await asyncio.sleep(LOOK_S)

    async def close(self) -> None:
        """Write what is pending."""
        for shard, archive in self.archives.items():
            flushed = asyncio.Event()
            self.cells[shard].runtime.flushed(flushed.set)
            await flushed.wait()
            await archive.close()
        for cell in self.cells.values():
            if cell.runtime.events is not None:
                await asyncio.to_thread(cell.runtime.events.close)


def await_locks(task: CellTask) -> None:
    """Wait for the processes of a server that was killed: they write what is pending and exit."""
    until_s = time.monotonic() + UNLOCKED_S
    folders = [] if task.data is None else [shard_dir(Path(task.data), shard) for shard in task.shards]
    for folder in folders:
        disk = RealDisk(folder / "journal")
        while not disk.lock() and time.monotonic() < until_s:
            time.sleep(POLL_S)
        disk.unlock()


async def _run(task: CellTask) -> int:
    loop = asyncio.get_running_loop()
    scheduler = LoopScheduler(loop)
    host = ShardHost(task, scheduler)
    host.open()
    ended = asyncio.Event()
    # The front stops its processes in order; a signal for the whole group must not.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, lambda: None)
    loop.add_reader(0, lambda: ended.set() if not os.read(0, 4_096) else None)
    host.link.received, host.link.lost = host.received, ended.set
    await loop.create_unix_connection(lambda: host.link, task.socket)
    host.link.post(CellHello(task.index, task.secret, os.getpid()))
    garbage = GarbageCollector()
    garbage.start()
    scheduler.turns.start()
    watching = asyncio.ensure_future(host.watch_disks())
    await ended.wait()
    loop.remove_reader(0)
    watching.cancel()
    await host.close()
    return 0


def main() -> int:
    line = bytearray()
    while not line.endswith(b"\n"):  # unbuffered: what follows the task is nothing but the end
        if not (piece := os.read(0, 65_536)):
            return EXIT_UNABLE
        line += piece
    task = msgspec.json.decode(line, type=CellTask)
    hide_pandas()
    writer = logs.setup(suffixed(task.config.logs, f"cells-{task.index}"))
    await_locks(task)
    try:
        import uvloop

        return int(uvloop.run(_run(task)))
    except ImportError:
        return asyncio.run(_run(task))
    except (LockedError, DamageError, PenstockError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_UNABLE
    finally:
        writer.close()


if __name__ == "__main__":
    sys.exit(main())
