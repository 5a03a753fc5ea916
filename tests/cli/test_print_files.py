"""`penstock print`: every file unchanged on stdout, or inside JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from penstock.cli import main
from penstock.cli.print_files import print_

NAMES = ["alerts", "container", "dashboard", "errors", "http", "metrics", "systemd"]
SLOW = ["cli"]
"""Takes seconds; `tests/server/ops/test_reference_pages.py` compares its text with the page of the docs."""


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["print", *words]) == 0
    return capsys.readouterr().out


def test_every_file_is_tested() -> None:
    assert sorted(NAMES + SLOW) == sorted(name for name in print_.resolved_commands() if not name.startswith("-"))


@pytest.mark.parametrize("name", NAMES)
def test_the_text_is_the_same_inside_json(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, name)
    assert text.endswith("\n") and text.strip()
    assert json.loads(printed(capsys, name, "--json")) == {"text": text}


def test_files_for_programs_can_be_read_by_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert yaml.safe_load(printed(capsys, "alerts"))["groups"]
    assert json.loads(printed(capsys, "dashboard"))["panels"]


def test_references_name_what_they_are_about(capsys: pytest.CaptureFixture[str]) -> None:
    assert "penstock_journal_" in printed(capsys, "metrics")
    assert "/v1/enqueue" in printed(capsys, "http")
    assert printed(capsys, "container").startswith(("FROM", "#"))


def test_a_unit_names_the_running_command_or_the_given_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert f"{Path(sys.executable).with_name('penstock')} up" in printed(capsys, "systemd")
    words = ["--program", "/opt/penstock", "--data", "/data", "--config", "/etc/p.yaml", "--user", "sam"]
    unit = printed(capsys, "systemd", *words)
    [start] = [line for line in unit.splitlines() if line.startswith("ExecStart=")]
    assert start.startswith("ExecStart=/opt/penstock up") and "/etc/p.yaml" in start and "/data" in start
    assert "User=sam" in unit


ASK = """
source "$1"; shift
COMP_WORDS=(penstock "$@"); COMP_CWORD=$#
_penstock
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from penstock.cli import build

    file = tmp_path_factory.mktemp("completion") / "penstock"
    file.write_text(build().generate_completion(shell="bash"))
    return file


@pytest.mark.promise("SDK and command line", "shells complete commands and options")
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_there_is_one_for_each_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    assert "pipeline" in text and "no-relay" in text


@pytest.mark.promise("SDK and command line", "shells complete commands and options")
@pytest.mark.parametrize(
    ("words", "wanted"),
    [(["pipel"], ["pipeline"]), (["pipeline", "reb"], ["rebuild"]), (["up", "--no-r"], ["--no-relay"])],
)
def test_bash_completes(script: Path, words: list[str], wanted: list[str]) -> None:
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
    done = subprocess.run(["bash", "-c", ASK, "bash", str(script), *words], capture_output=True, text=True, check=True)
    assert done.stdout.split() == wanted


def test_another_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "dos"]) == 2
    assert "bash" in capsys.readouterr().err
