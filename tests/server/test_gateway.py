"""`penstock gateway start` in process: its config, its refusals, and the lines that scripts wait for."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from penstock.client.address import ServerEndpoints
from penstock.server.config.spaces.space_yaml import load_space
from penstock.server.files.yaml_tree import ConfigError
from penstock.server.gateway import GatewayOptions, _announce, configure, main


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_flags_have_upstreams_names_and_defaults(folder: Path) -> None:
    (folder / "mine.yaml").write_text("space: {id: x}")
    config = configure(GatewayOptions(Path("mine.yaml"), 8080, "localhost", "warn"))
    assert (config.listen.http, config.listen.control) == ("localhost:8080", "off")
    assert config.logs.level == "warning"
    assert config.spaces == (str(folder / "mine.yaml"),)
    assert not config.pipeline.enabled and not config.serves_courier
    assert configure(GatewayOptions(Path("mine.yaml"), 0, "::", "info")).listen.http == "[::]:0"


@pytest.mark.promise("Configuration of a space", "`penstock gateway start --config FILE` accepts limits")
def test_a_config_file_gives_limits_and_nothing_else(folder: Path) -> None:
    (folder / "mine.yaml").write_text("space: {id: x}")
    options = GatewayOptions(Path("mine.yaml"), 0, "localhost", "info", config=folder / "limits.yaml")
    with pytest.raises(ConfigError, match=r"limits\.yaml"):
        configure(options)
    (folder / "limits.yaml").write_text("limits: {space_envelope_max: 9000000}")
    assert configure(options).limits.space_envelope_max == 9_000_000
    for text, problem in (
        ("limits: {space_envelope_mux: 1}", "space_envelope_mux"),
        ("limits: {space_envelope_max: 0}", "limits.space_envelope_max"),
        ("limits: {}\nstreams: {maxDepth: 5}\nlogs: {level: error}", "has `streams`, `logs`"),
    ):
        (folder / "limits.yaml").write_text(text)
        with pytest.raises(ConfigError) as caught:
            configure(options)
        assert any(problem in each for each in caught.value.errors), caught.value.errors


def test_errors_of_the_flags_and_of_the_file_are_reported_together(folder: Path) -> None:
    (folder / "mine.yaml").write_text("space: {id: 5}")
    with pytest.raises(ConfigError) as caught:
        configure(GatewayOptions(Path("mine.yaml"), 70_000, "localhost", "info"))
    port, file = caught.value.errors
    assert "`70000` is not a port" in port
    assert "space.id" in file and not file.startswith("spaces[0]"), "the gateway has one space, so it has no index"


def test_an_invalid_file_ends_the_command_before_it_writes_anything(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(GatewayOptions(Path("absent.yaml"), 0, "localhost", "info")) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and [line.split(":")[0] for line in printed.err.splitlines()] == ["error", "hint"]
    assert list(folder.iterdir()) == []


SPACE = """\
space: {id: demo}
participants:
  human: {tokens: [human-token]}
  bot: {type: local, command: node, auto_start: true}
"""


def test_the_announcement_names_ports_tokens_and_what_is_not_started(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / ".mew").mkdir()
    (folder / "space.yaml").write_text(SPACE)
    options = GatewayOptions(folder / "space.yaml", 8080, "localhost", "info")
    endpoints = ServerEndpoints(1, "t", "http://localhost:8080")
    _announce(endpoints, load_space(options.space_config, {}), options)
    assert capsys.readouterr().out.splitlines() == [
        "Space ID: demo",
        "Participants configured: 2",
        "Gateway listening on port 8080",
        "Health endpoint: http://localhost:8080/health",
        "WebSocket endpoint: ws://localhost:8080",
        f"Tokens: {folder / '.mew' / 'tokens'}",
        "Generated new tokens for bot",
        "Participants are not started from here: start bot yourself",
    ]
    again = msgspec.structs.replace(options, auto_start=False)
    _announce(endpoints, load_space(options.space_config, {}), again)
    assert "bot" not in capsys.readouterr().out, "its token exists, and `--no-auto-start` asks for no process"
