"""A cell from a config: policies, schemas, rates and quotas, in memory or recovered from a journal."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.core.queue.policy import Policy
from penstock.core.records import Record
from penstock.core.scopes import ANONYMOUS
from penstock.journal.disk import RealDisk
from penstock.journal.port import MemoryJournal
from penstock.server.cell import Cell
from penstock.server.config.load import Config, load, policy_for
from penstock.server.engine.schedulers import LoopScheduler
from penstock.server.journal.lifecycle import JournalLifecycle
from penstock.server.open_cell import configured_machine, open_cell, policies, version
from tests.journal.histories import START_US, publish, put, reopened

FILE = """
streams:
  autoCreate: false
  maxDepth: 9
  perStreamCaps: {"jobs/*": {maxDepth: 3}}
tenants: {acme: {streams_max: 2}}
triggers: [{id: copies, when: {to: jobs/a}, do: [{action: route, to: copies}]}]
"""


@pytest.fixture
def config(tmp_path: Path) -> Config:
    file = tmp_path / "config.yaml"
    file.write_text(FILE)
    return load(file, {})


def opened(config: Config, data: Path | None, work: Callable[[Cell], None]) -> None:
    async def run() -> None:
        archive = None if data is None else JournalLifecycle(data, config)
        scheduler = LoopScheduler(asyncio.get_running_loop())
        work(open_cell(config, archive, scheduler, authenticate=lambda token: ANONYMOUS))
        if archive is not None:
            await archive.close()

    asyncio.run(run())


def test_the_policy_of_a_stream_is_computed_once(config: Config) -> None:
    find = policies(config)
    assert find("jobs/a") is find("jobs/a")
    assert (find("jobs/a").max_depth, find("other").max_depth) == (3, 9)
    assert find("jobs/a") == policy_for(config, "jobs/a")


def test_the_cache_of_policies_is_bounded(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[str] = []

    def noted(config: Config, name: str) -> Policy:
        computed.append(name)
        return policy_for(config, name)

    monkeypatch.setattr("penstock.server.open_cell.POLICY_CACHE_MAX", 2)
    monkeypatch.setattr("penstock.server.open_cell.policy_for", noted)
    find = policies(config)
    for name in "abaca":
        assert find(name).max_depth == 9
    assert computed == ["a", "b", "c", "a"], "a full cache starts over"


def test_a_machine_has_the_policies_and_schemas_of_its_config(config: Config, tmp_path: Path) -> None:
    machine = configured_machine(config)
    assert not machine.auto_create and machine.policy_for("jobs/a").max_depth == 3
    assert machine.schemas is None
    (tmp_path / "schemas/acme").mkdir(parents=True)
    (tmp_path / "schemas/acme/note@v1.json").write_text('{"type": "object"}')
    file = tmp_path / "with.yaml"
    file.write_text(f"schemas: {{dir: {tmp_path / 'schemas'}}}\n")
    assert configured_machine(load(file, {})).schemas is not None


def test_without_a_directory_a_cell_is_in_memory(config: Config) -> None:
    def work(cell: Cell) -> None:
        assert isinstance(cell.runtime.journal, MemoryJournal)
        assert cell.machine.tenants.quota_for("acme").streams_max == 2
        assert [rule.id for rule in cell.machine.triggers.rules.values()] == ["copies"]

    opened(config, None, work)


def test_a_cell_goes_on_from_its_journal(config: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = tmp_path / "data"
    disk = RealDisk(data / "journal")
    log, _ = reopened(disk)
    log.commit([[put("a", seq=1), put("b", seq=2)]], START_US)
    log.close()
    publish(disk, 2)
    caplog.set_level(logging.INFO, "penstock")

    def work(cell: Cell) -> None:
        assert list(cell.machine.channels["jobs"].live) == ["a", "b"]
        assert cell.machine.live == 2
        again = cell.machine.enqueue(cell.runtime.scheduler.now(), "jobs", [Record("a", "note", b"{}")])
        assert cell.machine.live == 2, again

    opened(config, data, work)
    assert "journal.recovered" in caplog.text and "journal.erasure" not in caplog.text


def test_an_unfinished_erasure_is_logged(config: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "data" / "journal").mkdir(parents=True)
    (tmp_path / "data" / "journal" / "erase.json").write_text('{"agent":["sam"]}')
    opened(config, tmp_path / "data", lambda cell: None)
    assert "journal.erasure" in caplog.text


def test_a_new_directory_is_no_recovery(config: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "penstock")
    opened(config, tmp_path / "data", lambda cell: None)
    assert "journal.recovered" not in caplog.text


def test_the_version_is_that_of_the_package() -> None:
    assert version()[0].isdecimal()
