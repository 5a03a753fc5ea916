"""`penstock print`: every file unchanged on stdout, or inside JSON."""

from __future__ import annotations

import json
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
