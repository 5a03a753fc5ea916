"""A server from its config, in process: files in `run/`, starts that fail, reloads, and connections without a token."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from penstock.core.errors import Refusal
from penstock.core.limits import Limits
from penstock.server.admin.reload import ReloadedReply
from penstock.server.assembly import Service
from penstock.server.config.load import Config, ConfigError, load
from penstock.server.config.sections import ConsoleSection, ListenSection, RelaySection, StreamsSection
from penstock.server.engine.garbage import THRESHOLDS
from tests.integration.serving import Http

QUIET = Config(
    listen=ListenSection(http="127.0.0.1:0", control="127.0.0.1:0"),
    relay=RelaySection(enabled=False),
    console=ConsoleSection(enabled=False),
)
PATIENCE_S = 20


@pytest.fixture
def collector() -> Iterator[None]:
    """A server tunes the garbage collector of its process, which here is that of the tests."""
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


@asynccontextmanager
async def assembled(
    config: Config, data: Path | None = None, reread: Callable[[], Config] | None = None
) -> AsyncIterator[Service]:
    """A server that has not started, and is drained at the end."""
    service = Service(config, data, lambda: 0, reread)
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield service
    finally:
        await service.drain()


def test_a_start_writes_the_endpoints_and_a_drain_removes_them(tmp_path: Path, collector: None) -> None:
    async def run() -> None:
        async with assembled(QUIET, tmp_path / "data") as service:
            run_dir = tmp_path / "data/run"
            assert not (run_dir / "endpoints.json").exists()
            endpoints = await service.start()
            written = json.loads((run_dir / "endpoints.json").read_text())
            assert written == {
                "pid": os.getpid(),
                "version": endpoints.version,
                "http": endpoints.http,
                "control": endpoints.control,
                "pub": None,
                "pull": None,
                "console": None,
                "ws": None,
            }
            assert (run_dir / "operator.token").read_text().strip() == service.operator_token
            for name in ("endpoints.json", "operator.token"):
                assert (run_dir / name).stat().st_mode & 0o777 == 0o600
            assert gc.get_threshold() == THRESHOLDS
            health = await asyncio.to_thread(Http(endpoints.http).get, "/health")
            assert (health.status, health.json["status"]) == (200, "ok")
            assert service.pipeline_status() is None
        assert not (run_dir / "endpoints.json").exists() and (tmp_path / "data/journal").is_dir()

    asyncio.run(run())


def test_a_server_in_memory_removes_its_run_directory() -> None:
    async def run() -> Path:
        async with assembled(QUIET) as service:
            assert service.run_dir.is_dir() and service.archive is None
            return service.run_dir

    assert not asyncio.run(run()).exists()


def test_a_start_that_fails_leaves_the_operator_token_alone(tmp_path: Path) -> None:
    run_dir = tmp_path / "data/run"
    run_dir.mkdir(parents=True)
    (run_dir / "operator.token").write_text("of another start")

    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            listen = ListenSection(http="127.0.0.1:0", control=f"127.0.0.1:{taken.getsockname()[1]}")
            async with assembled(replace(QUIET, listen=listen), tmp_path / "data") as service:
                with pytest.raises(OSError, match="address already in use"):
                    await service.start()

    asyncio.run(run())
    assert (run_dir / "operator.token").read_text() == "of another start"
    assert not (run_dir / "endpoints.json").exists()


def test_a_public_address_without_tokens_is_refused_before_anything_is_opened() -> None:
    async def run() -> None:
        config = replace(QUIET, listen=ListenSection(http="0.0.0.0:0", control="off"))
        async with assembled(config) as service:
            with pytest.raises(ConfigError):
                await service.start()
            assert service._listeners == []

    asyncio.run(run())


class TestReload:
    def test_a_server_without_a_config_refuses(self) -> None:
        async def run() -> None:
            async with assembled(QUIET) as service:
                refusal = service.reload()
                assert isinstance(refusal, Refusal) and refusal.code == "Unsupported"

        asyncio.run(run())

    def test_an_invalid_config_changes_nothing(self) -> None:
        def reread() -> Config:
            raise ConfigError(["one", "two"])

        async def run() -> None:
            async with assembled(QUIET, reread=reread) as service:
                refusal = service.reload()
                assert isinstance(refusal, Refusal)
                assert (refusal.code, refusal.message) == ("InvalidConfig", "one; two")
                assert service._config is QUIET

        asyncio.run(run())

    def test_streams_limits_and_triggers_are_adopted_and_addresses_wait_for_a_restart(self, tmp_path: Path) -> None:
        file = tmp_path / "config.yaml"
        file.write_text("triggers: [{id: copies, when: {to: a}, do: [{action: route, to: b}]}]\n")
        changed = replace(
            QUIET,
            streams=StreamsSection(max_depth=7),
            limits=Limits(pull_max=5),
            triggers=load(file, {}).triggers,
            listen=ListenSection(http="127.0.0.1:1", control="127.0.0.1:0"),
        )

        async def run() -> None:
            async with assembled(QUIET, reread=lambda: changed) as service:
                report = service.reload()
                assert isinstance(report, ReloadedReply) and report.closed == 0
                assert any("listen" in setting for setting in report.restart)
                machine = service.runtime.machine
                assert machine.policy_for("jobs").max_depth == 7 and machine.limits.pull_max == 5
                assert [rule.id for rule in machine.triggers.rules.values()] == ["copies"]
                assert service._config.listen == QUIET.listen, "what needs a restart is not in effect"

        asyncio.run(run())
