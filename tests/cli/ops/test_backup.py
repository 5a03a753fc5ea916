"""`penstock backup` and `restore`: what they print, and what they refuse."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest

from penstock.cli import main
from tests.cli.journals import write_journal
from tests.journal.histories import JOURNAL

ROWS = 5


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_journal(tmp_path / "data", ROWS)


@pytest.mark.parametrize("name", ["copy", "copy.tar", "copy.tar.gz"])
def test_a_copy_is_made_and_restored_with_figures_for_programs(
    data: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target, again = tmp_path / name, tmp_path / "again"
    assert main(["backup", str(target), "--data", str(data), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["target"], made["journal"], made["end"]) == (str(target), JOURNAL, ROWS)
    assert made["files"] > 0 and made["bytes"] > 0
    assert main(["restore", str(target), "--data", str(again), "--json"]) == 0
    restored = json.loads(capsys.readouterr().out)
    assert (restored["data"], restored["journal"], restored["files"]) == (str(again), JOURNAL, made["files"])
    assert restored["end"] == ROWS == restored["sealedRows"] + restored["segmentRows"]
    assert datetime.fromisoformat(restored["madeAt"]).tzinfo is not None


def test_people_get_a_line_each(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, again = tmp_path / "copy", tmp_path / "again"
    assert main(["backup", str(target), "--data", str(data)]) == 0
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("copied ") and line.endswith(f"to `{target}`: rows before {ROWS}")
    assert main(["restore", str(target), "--data", str(again)]) == 0
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith(f"restored `{again}` as of ") and line.endswith(f"rows before {ROWS}, sound")


def test_nothing_is_overwritten(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "copy"
    assert main(["backup", str(target), "--data", str(data), "--json"]) == 0
    before = sorted(target.rglob("*"))
    capsys.readouterr()
    for words in (["backup", str(target), "--data", str(data)], ["restore", str(target), "--data", str(data)]):
        assert main([*words, "--json"]) == 1
        shown = capsys.readouterr()
        assert json.loads(shown.out)["error"]["code"] == "InvalidRequest" and "hint: " in shown.err
    assert sorted(target.rglob("*")) == before


def test_what_is_no_backup_is_not_restored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other").mkdir()
    for source in ("other", "absent"):
        assert main(["restore", str(tmp_path / source), "--data", str(tmp_path / "again")]) == 1
        assert "error: " in capsys.readouterr().err
    assert not (tmp_path / "again").exists()
    assert main(["backup", str(tmp_path / "copy"), "--data", str(tmp_path / "absent")]) == 1
    assert not (tmp_path / "copy").exists()
