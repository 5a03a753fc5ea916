"""`penstock up` in process: flags over the config, failures as exit codes with hints, signals, the banner."""

from __future__ import annotations

import asyncio
import errno
import io
import logging
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.client.address import ServerEndpoints
from penstock.journal.segments import DamageError
from penstock.server.assembly import Service
from penstock.server.config.load import Config, ConfigError
from penstock.server.journal.lifecycle import LockedError
from penstock.server.logging.logs import LogWriter
from penstock.server.up import (
    EXIT_ERROR,
    EXIT_USAGE,
    Options,
    StartHints,
    _banner,
    check_join,
    configure,
    main,
    run,
    stop_signals,
)

FILE = """
listen: {http: "127.0.0.1:1", control: "127.0.0.1:2"}
logs: {level: debug}
relay: {enabled: %s}
"""


def written(folder: Path, relay: str = "true") -> Path:
    file = folder / "config.yaml"
    file.write_text(FILE % relay)
    return file


def test_a_flag_overrides_the_config_and_an_absent_one_does_not(tmp_path: Path) -> None:
    config = configure(Options(config=written(tmp_path), http="127.0.0.1:3", pub="tcp://127.0.0.1:4"), {})
    assert (config.listen.http, config.listen.control, config.logs.level) == ("127.0.0.1:3", "127.0.0.1:2", "debug")
    assert (config.relay.pub, config.relay.pull) == ("tcp://127.0.0.1:4", Config().relay.pull)
    assert config.pipeline.enabled and not configure(Options(no_pipeline=True), {}).pipeline.enabled


@pytest.mark.parametrize(
    ("in_file", "flag", "is_on"), [("true", False, True), ("true", True, False), ("false", False, False)]
)
def test_the_relay_runs_unless_the_file_or_the_flag_turns_it_off(
    tmp_path: Path, in_file: str, flag: bool, is_on: bool
) -> None:
    assert configure(Options(config=written(tmp_path, in_file), no_relay=flag), {}).relay.enabled is is_on
    assert configure(Options(), {}).relay.enabled is True, "it is on by default"


def test_flags_are_checked_like_the_config() -> None:
    with pytest.raises(ConfigError) as caught:
        configure(Options(pub="inproc://x", pull="nonsense"), {})
    assert [text.split(":")[0] for text in caught.value.errors] == ["relay.pub", "relay.pull"]


def test_what_several_cells_cannot_do_is_refused_with_a_hint(tmp_path: Path) -> None:
    rule = "{id: r, when: {to: a}, do: [{action: notify, to: b}]}"
    path = tmp_path / "config.yaml"
    path.write_text(f"triggers: [{rule}]")
    with pytest.raises(ConfigError) as refused:
        configure(Options(config=path, data="none", cells=2), {})
    assert "different shards: `a`, `b`; " in refused.value.errors[0] and "None" not in refused.value.errors[0]
    with pytest.raises(ConfigError, match="--demo"):
        configure(Options(data="none", cells=2, demo=True), {})


def test_an_invalid_config_ends_the_command_with_every_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("listen: {http: 5}\nlogs: {level: loud}\n")
    assert main(Options(config=file, data=str(tmp_path / "data"))) == EXIT_USAGE
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[0] for line in lines] == ["error", "error", "hint"]
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("failure", "code", "said"),
    [
        (ConfigError(["one", "two"]), EXIT_USAGE, ["error: one", "error: two"]),
        (ValueError("wrong"), EXIT_USAGE, ["error: wrong"]),
        (LockedError("locked\nhint: stop it"), EXIT_ERROR, ["error: locked", "hint: stop it"]),
        (
            DamageError("log-1", 7, "torn"),
            EXIT_ERROR,
            ["error: `log-1` is damaged at byte 7: torn", "hint: `penstock log"],
        ),
        (OSError(errno.EADDRINUSE, "in use"), EXIT_ERROR, ["error: in use", "hint: another program listens there"]),
        (OSError(errno.ENOSPC, "full", "/x"), EXIT_ERROR, ["error: `/x`: full", "hint: the disk is full"]),
        (
            OSError(errno.EACCES, "denied", "/x"),
            EXIT_ERROR,
            ["error: `/x`: denied", "hint: choose a directory or port"],
        ),
        (
            OSError(errno.ENOTDIR, "no", "/x"),
            EXIT_ERROR,
            ["error: `/x`: no", "hint: choose another directory with THERE"],
        ),
        (OSError(errno.EIO, "odd"), EXIT_ERROR, ["error: odd", "hint: `penstock doctor`"]),
    ],
    ids=repr,
)
def test_every_failure_has_an_exit_code_and_a_hint(
    capsys: pytest.CaptureFixture[str], failure: Exception, code: int, said: list[str]
) -> None:
    async def work() -> int:
        raise failure

    writer = log_writer()
    assert run(work, writer, StartHints(directory="THERE")) == code
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(said) and all(map(str.startswith, lines, said)), lines
    assert writer not in logging.getLogger().handlers, "the log is closed, whatever happened"


def log_writer() -> LogWriter:
    writer = LogWriter(io.StringIO(), logging.Formatter())
    writer.attach(logging.WARNING)
    return writer


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_stops_the_server(number: signal.Signals) -> None:
    async def work() -> None:
        stopping = stop_signals(writer)
        assert not stopping.is_set()
        os.kill(os.getpid(), number)
        async with asyncio.timeout(10):
            await stopping.wait()

    writer = log_writer()
    writer.close()
    asyncio.run(work())


@pytest.mark.usefixtures("signals")
def test_a_hangup_reloads_a_server_that_can_reload() -> None:
    async def work() -> None:
        reloaded = asyncio.Event()
        stopping = stop_signals(writer, reloaded.set)
        os.kill(os.getpid(), signal.SIGHUP)
        async with asyncio.timeout(10):
            await reloaded.wait()
        assert not stopping.is_set()

    writer = log_writer()
    writer.close()
    asyncio.run(work())


def test_the_banner_shows_what_is_on() -> None:
    config = configure(Options(no_relay=True, no_pipeline=True), {})

    async def work() -> list[str]:
        service = Service(config, None, lambda: 0)
        shutil.rmtree(service.run_dir)
        endpoints = ServerEndpoints(1, "t", "http://127.0.0.1:1")
        return _banner(service, config, None, endpoints, Options()).splitlines()

    title, *lines = asyncio.run(work())
    assert title.startswith("penstock ") and title.endswith(" is up")
    shown = dict(line.split(maxsplit=1) for line in lines)
    assert list(shown) == ["http", "control", "journal", "pipeline", "run"], "no relay, space, console or demo"
    assert shown["control"] == shown["pipeline"] == "off" and shown["journal"].startswith("memory")


def test_the_banner_of_a_node_with_its_own_servers_shows_how_another_one_joins_them(tmp_path: Path) -> None:
    config = configure(Options(no_relay=True, no_pipeline=True), {})
    options = Options(join="nats://127.0.0.1:1", nats_creds=tmp_path / "creds", creates_cluster=True)

    async def work() -> str:
        service = Service(config, None, lambda: 0)
        shutil.rmtree(service.run_dir)
        return _banner(service, config, tmp_path, ServerEndpoints(1, "t", "http://127.0.0.1:1"), options)

    asked = f"penstock up --join nats://127.0.0.1:1 --nats-creds {tmp_path}/creds --node NAME --data DIR"
    assert asked in asyncio.run(work())


def test_a_node_has_a_cluster_and_servers_of_this_machine_give_it_a_name() -> None:
    local, elsewhere = Options(join="local"), Options(join="nats://a", node="b")
    check_join(local)
    check_join(elsewhere)
    assert (local.cluster, local.node, elsewhere.cluster) == ("penstock", "a", "penstock")
    with pytest.raises(ConfigError, match="--node"):
        check_join(Options(join="nats://a"))


@pytest.mark.promise("Cluster", "a server that is in no cluster loads no client of NATS")
def test_a_server_alone_loads_no_client_of_nats() -> None:
    script = "import sys, penstock.server.up; print([name for name in sys.modules if name.split('.')[0] == 'nats'])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
