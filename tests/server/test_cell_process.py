"""The process of cells: its shards, and what the front asks of them. `tests/integration/test_cells.py` runs it as a process."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import msgspec

from penstock.core.scopes import ANONYMOUS
from penstock.dialects.courier.sessions.front.legs import LegHello
from penstock.dialects.courier.sessions.front.lines import shard_of_stream
from penstock.journal.disk import RealDisk
from penstock.server.cell_process import ShardHost, await_locks
from penstock.server.cells.messages import (
    CellAnswer,
    CellConfig,
    CellDrain,
    CellDrained,
    CellRequest,
    CellTask,
    LegClosed,
    LegEnded,
    LegIdentified,
    LegInput,
    LegOpened,
    LegOutput,
    LegRead,
    RequestCancelled,
)
from penstock.server.config.load import Config
from penstock.server.engine.schedulers import LoopScheduler
from penstock.server.journal.seal_process import shard_config, shard_dir
from penstock.server.open_cell import suffixed

STREAM = "jobs/a"
SHARD = shard_of_stream(STREAM)


def test_a_front_asks_and_the_shards_answer() -> None:
    async def talk() -> None:
        host = ShardHost(CellTask(Config(), None, 0, (0, SHARD), "", ""), LoopScheduler(asyncio.get_running_loop()))
        host.open()
        posted: asyncio.Queue[Any] = asyncio.Queue()
        host.link.post = lambda message, size=0: posted.put_nowait(message)  # type: ignore[method-assign]
        host.received(LegOpened(1, SHARD, LegHello(ANONYMOUS, "127.0.0.1", None, "-b")))
        host.received(LegInput(1, b'{"type":"pull","stream":"jobs/a","waitMs":60000,"reqId":1}\n'))
        body = b'{"to":"jobs/a","envelope":{"id":"a","ts":"2026-01-01T00:00:00Z","type":"t","payload":1}}'
        host.received(CellRequest(2, SHARD, "enqueue", (), {}, "127.0.0.1", ANONYMOUS, body, False))
        kinds = {type(message := await posted.get()): message for _ in range(2)}
        assert msgspec.json.decode(kinds[CellAnswer].body) == {"id": "a", "seq": 1}
        (line,) = kinds[LegOutput].messages
        lease = msgspec.json.decode(line)["result"]["deliveries"][0]["leaseId"]
        assert lease.endswith(f"-{SHARD:x}"), "a lease id names its shard"
        host.received(LegRead(1, len(line)))
        host.received(LegIdentified(1, ANONYMOUS, "sam"))
        waiting = b'{"stream":"jobs/a","wait_ms":60000}'
        host.received(CellRequest(3, SHARD, "pull", (), {}, "127.0.0.1", ANONYMOUS, waiting, False))
        await asyncio.sleep(0)
        host.received(RequestCancelled(3))
        host.received(
            CellConfig(msgspec.structs.replace(Config(), limits=msgspec.structs.replace(Config().limits, name_max=99)))
        )
        assert host.cells[0].machine.limits.name_max == 99
        settle = msgspec.json.encode({"id": "a", "op": "ack", "leaseId": lease})
        host.received(CellRequest(4, SHARD, "settle", (), {}, "127.0.0.1", ANONYMOUS, settle, False))
        assert isinstance(await posted.get(), CellAnswer)
        host.received(CellDrain())
        seen = [await posted.get()]
        while not isinstance(seen[-1], CellDrained):
            seen.append(await posted.get())
        assert seen[-1] == CellDrained(0)
        while not any(isinstance(one, LegEnded) for one in seen):
            seen.append(await posted.get())
        host.received(LegClosed(1))
        await host.close()

    asyncio.run(talk())


def test_a_shard_is_opened_when_the_process_before_has_let_go(tmp_path: Path) -> None:
    disk = RealDisk(shard_dir(tmp_path, 3) / "journal")
    assert disk.lock()
    waiting = threading.Thread(target=await_locks, args=(CellTask(Config(), str(tmp_path), 0, (3,), "", ""),))
    waiting.start()
    assert waiting.is_alive()
    disk.unlock()
    waiting.join(10)
    assert not waiting.is_alive()


def test_each_process_and_shard_has_log_files_of_its_own() -> None:
    section = msgspec.structs.replace(Config().logs, file="a.log", events="b.log")
    own = suffixed(section, "shard-3")
    assert (own.file, own.events) == ("a.log.shard-3", "b.log.shard-3")
    assert suffixed(Config().logs, "shard-3") == Config().logs


def test_shards_share_the_lake_of_the_directory(tmp_path: Path) -> None:
    assert shard_dir(tmp_path, 3) == tmp_path / "shards" / "3"
    assert shard_config(Config(), tmp_path).lake == str(tmp_path / "lake")
    assert shard_config(Config(lake="s3://bucket/x"), tmp_path).lake == "s3://bucket/x"
