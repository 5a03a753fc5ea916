"""One journal into shards and back: the ledger before equals the ledger after, whenever the command is killed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.core.clock import Now
from penstock.core.errors import PenstockError
from penstock.core.scopes import OPERATOR
from penstock.core.steps import Steps
from penstock.dialects.courier.operations.enqueue import EnqueueRequest, enqueue_steps
from penstock.dialects.courier.sessions.pull import PullSession
from penstock.dialects.courier.triggers import admin
from penstock.dialects.courier.triggers.config import Trigger
from penstock.server.config.load import Config, policy_for
from penstock.server.engine.connections import NoWire
from penstock.server.engine.machines import Machines, make_machine
from penstock.server.engine.schedulers import LoopScheduler, real_now
from penstock.server.journal.lifecycle import JournalLifecycle
from penstock.server.journal.shard_migration import FLOOR_CHANNEL, _is_rule, divide, is_interrupted, join
from penstock.server.open_cell import open_cell
from tests.server_process import environment

STREAMS = ["jobs/a", "jobs/b", "{red}/c", "agents/sam/inbox", "t/acme/x", "dlq/jobs/a"]
TS = "2026-01-01T00:00:00Z"
KILLED = 9
RUN = """
import os, sys
from pathlib import Path
from penstock.server.journal import shard_migration
def hook(event, args):
    if event == "os.rename" and sys.argv[3] in (f"{args[0]} moves", f"to {args[1]}"):
        os._exit(9)
sys.addaudithook(hook)
getattr(shard_migration, sys.argv[1])(Path(sys.argv[2]))
"""


async def _fill(data: Path) -> None:
    """Envelopes in every state, remembered ids, a rule, and a view."""
    config = Config()
    archive = JournalLifecycle(data, config)
    cell = open_cell(config, archive, LoopScheduler(asyncio.get_running_loop()), authenticate=lambda token: None)
    machine, runtime = cell.machine, cell.runtime

    async def flush() -> None:
        runtime.apply(real_now())
        flushed = asyncio.Event()
        runtime.flushed(flushed.set)
        await flushed.wait()

    for name in STREAMS:
        env = [msgspec.Raw(msgspec.json.encode({"id": f"{n}", "ts": TS, "type": "t", "payload": n})) for n in range(6)]
        asked = EnqueueRequest(name, envelopes=env, delay_ms=3_600_000 if name == "jobs/b" else None)
        Steps(enqueue_steps(machine, real_now(), OPERATOR, asked, assign=False, address="")).all(real_now())
    rule = msgspec.convert({"id": "r", "when": {"to": "x"}, "do": [{"action": "notify", "to": "x"}]}, Trigger)
    admin.put(machine, real_now(), OPERATOR, "r", rule)
    await flush()
    for name in ("jobs/a", "{red}/c", "t/acme/x"):
        session = PullSession(runtime, lambda body: None)
        connection = runtime.peers.open(session, NoWire(), OPERATOR, "test")
        consumer = machine.pull(real_now(), connection.link, name, 4, 0, 0)
        runtime.apply(real_now())
        machine.ack(real_now(), consumer, ["0", "1"])
        machine.nack(real_now(), consumer, machine.held(consumer, "2", None), 3_600_000_000, "later", backoff=False)
        machine.nack(real_now(), consumer, machine.held(consumer, "3", None), None, "again", backoff=False)
        await flush()
    await archive.close()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("migration") / "data"
    data.mkdir()
    asyncio.run(_fill(data))
    return data


@pytest.fixture
def data(filled: Path, tmp_path: Path) -> Path:
    subprocess.run(["cp", "-a", str(filled), str(tmp_path / "data")], check=True)
    return tmp_path / "data"


def _machines(folders: Iterable[Path]) -> list[Machines]:
    found = []
    for folder in folders:
        machines = Machines(make_machine(Config().limits, _policy, os.urandom))
        archive = JournalLifecycle(folder, Config())
        archive.recover(machines, real_now())
        archive._disk.unlock()
        found.append(machines)
    return found


def _policy(name: str) -> Any:
    return policy_for(Config(), name)


def ledger(data: Path) -> dict[str, Any]:
    """What a migration must keep."""
    shards = [data / "shards" / str(shard) for shard in range(16)] if (data / "shards").is_dir() else []
    now: Now = real_now()
    found: dict[str, dict[Any, Any]] = {"live": {}, "seen": {}, "counters": {}, "view": {}, "rules": {}}
    for one in _machines([data, *shards]):
        for row in one.queue.snapshot(now):
            if row.door != "courier":
                found["rules"][row.meta] = _is_rule(row)
            elif row.event == "gauge" and row.channel != FLOOR_CHANNEL:
                found["counters"][row.channel] = (row.seq, msgspec.json.decode(row.meta or "{}")["counters"])
            elif row.event == "seen":
                found["seen"][row.channel, row.id] = (row.seq, row.reason, row.meta)
            elif row.event == "view":
                found["view"][row.channel] = row.body
            elif row.event == "enqueue":
                about = (row.id, row.attempt, row.meta, row.recorded_at, row.first_at, row.body)
                found["live"][row.channel, row.seq] = about
    return found


@pytest.mark.promise("Cells", "a data directory is divided into shards and joined again, and its ledger stays the same")
def test_the_ledger_is_the_same_in_shards_and_joined_again(data: Path) -> None:
    before = ledger(data)
    assert len(before["live"]) == 30 and len(before["seen"]) == 6 and before["rules"] and before["view"]
    counted = divide(data, is_dry=True)
    assert not (data / "shards").exists()
    report = divide(data)
    assert (report.envelopes, report.ids, report.rules) == (30, 6, 1)
    assert (counted.envelopes, counted.shards) == (report.envelopes, report.shards)
    assert len(report.shards) >= 4
    assert ledger(data) == before
    with pytest.raises(PenstockError, match="divided already"):
        divide(data)
    assert join(data, is_dry=True).envelopes == 30
    assert join(data).envelopes == 30
    assert ledger(data) == before
    with pytest.raises(PenstockError, match="not divided"):
        join(data)
    assert len(list(data.glob("journal-*"))) == 2 and len(list(data.glob("shards-*"))) == 1


MORE = pytest.mark.more


@pytest.mark.parametrize(
    ("work", "at", "interrupted"),
    [
        pytest.param("divide", "to {}/shards.part/7/journal/journal.json", None, marks=MORE),
        pytest.param("divide", "to {}/shards", None, marks=MORE),
        ("divide", "{}/journal moves", "import"),
        pytest.param("divide", "to {}/journal", "import", marks=MORE),
        pytest.param("join", "to {}/journal.joined", None, marks=MORE),
        pytest.param("join", "{}/shards moves", "export", marks=MORE),
        pytest.param("join", "{}/journal moves", "export", marks=MORE),
        pytest.param("join", "to {}/journal", "export", marks=MORE),
    ],
)
def test_a_killed_command_is_run_again(data: Path, work: str, at: str, interrupted: str | None) -> None:
    before = ledger(data)
    if work == "join":
        divide(data)
    command = [sys.executable, "-c", RUN, work, str(data), at.format(data)]
    killed = subprocess.run(command, env=environment(), check=False, capture_output=True)
    assert killed.returncode == KILLED, killed.stderr.decode()
    assert is_interrupted(data) == interrupted
    {"divide": divide, "join": join}[work](data)
    assert is_interrupted(data) is None
    assert (data / "shards").is_dir() == (work == "divide")
    assert ledger(data) == before


def test_a_directory_that_a_server_uses_is_refused(data: Path) -> None:
    archive = JournalLifecycle(data, Config())
    machines = Machines(make_machine(Config().limits, _policy, os.urandom))
    archive.recover(machines, real_now())
    with pytest.raises(PenstockError) as refused:
        divide(data, is_dry=True)
    assert refused.value.code == "JournalUnavailable"
    archive._disk.unlock()
    with pytest.raises(PenstockError, match="no journal"):
        divide(data / "elsewhere")
