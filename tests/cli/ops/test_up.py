"""`penstock gateway start` rejects bad arguments before it does anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.cli import main


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--port", "high"], "high"),
        (["--port", "70000"], "`70000` is not a port from 0 to 65535"),
        (["--port", "-1"], "-1"),
        (["--host", "a b"], "`a b` is not a host name or an address"),
        (["--log-level", "loud"], "loud"),
        (["--space-config", "nowhere.yaml"], "nowhere.yaml`: No such file or directory"),
        (["--wrong"], "--wrong"),
    ],
)
def test_wrong_usage_is_reported_and_leaves_nothing_behind(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    (folder / "space.yaml").write_text("participants: {sam: {}}")
    assert main(["gateway", "start", *words]) == 2
    assert said in capsys.readouterr().err
    assert [path.name for path in folder.iterdir()] == ["space.yaml"]


@pytest.mark.promise(
    "Configuration of a space",
    "an invalid file is rejected with every problem, its path and line, and no default replaces it",
)
def test_every_problem_of_the_file_is_reported_and_no_default_replaces_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "space.yaml").write_text("space: {id: 5}\nparticipants:\n  sam: {tokens: [5], capabilities: [chat]}")
    assert main(["gateway", "start", "-p", "70000"]) == 2
    told = capsys.readouterr().err.splitlines()
    assert [line.startswith("error: ") for line in told] == [True, True, True, True, False]
    assert told[3].endswith("participants.sam.capabilities[0]: got `chat`, expected a mapping (line 3)")
    assert told[-1].startswith("hint: ")


@pytest.mark.promise(
    "Configuration of a space",
    "`penstock gateway start` accepts upstream's options, drains, and serves Courier to the operator only",
)
def test_the_help_names_every_flag_of_upstream(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gateway", "start", "--help"]) == 0
    shown = capsys.readouterr().out
    for flag in (
        "--port",
        "-p",
        "--space-config",
        "-s",
        "--log-level",
        "-l",
        "--no-auto-start",
        "8080",
        "info",
    ):
        assert flag in shown
    assert main(["gateway", "start", "--wrong", "--json"]) == 2
    assert "error" in json.loads(capsys.readouterr().out)
