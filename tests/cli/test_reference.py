"""Shells can read the scripts, and bash completes with its own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from penstock.cli import main

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
