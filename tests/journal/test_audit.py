"""The audit of a journal: a sound one has no findings, and damage is found where it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.journal.audit import Audit, audit
from penstock.journal.disk import RealDisk
from penstock.journal.open_and_repair import IDENTITY, WATERMARK, segments
from tests.journal.histories import START_US, sealer


def names(report: Audit) -> list[str]:
    return [finding.place for finding in report.findings]


def test_a_sound_journal_is_read_whole(sealed: Path) -> None:
    steps: list[tuple[int, int]] = []
    report = audit(sealed, lambda done, total: steps.append((done, total)))
    assert report.is_sound, report.findings
    assert (report.first, report.end, report.segment_rows, report.sealed_rows) == (0, 10, 10, 0)
    assert steps == sorted(steps) and steps[-1][0] == steps[-1][1]


def test_sealed_rows_and_segments_count_once(sealed: Path) -> None:
    sealer(sealed).seal(START_US + 99, wants_live=True)
    report = audit(sealed)
    assert report.is_sound, report.findings
    assert report.sealed_rows == report.sealed_end > 0
    assert report.sealed_rows + report.segment_rows >= report.end == 10


def test_an_audit_changes_nothing(sealed: Path) -> None:
    before = {path: path.read_bytes() for path in sealed.rglob("*") if path.is_file()}
    audit(sealed)
    assert {path: path.read_bytes() for path in sealed.rglob("*") if path.is_file()} == before


def test_a_directory_without_a_journal_is_one_finding(tmp_path: Path) -> None:
    report = audit(tmp_path)
    assert not report.is_sound and names(report) == [IDENTITY]


def test_a_changed_byte_is_found_in_its_segment(sealed: Path) -> None:
    first = segments(RealDisk(sealed / "journal"))[0].name
    path = sealed / "journal" / first
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)
    assert first in names(audit(sealed))


def test_a_missing_segment_leaves_a_gap(sealed: Path) -> None:
    middle = segments(RealDisk(sealed / "journal"))[1].name
    (sealed / "journal" / middle).unlink()
    assert not audit(sealed).is_sound


def test_a_broken_watermark_is_found(sealed: Path) -> None:
    (sealed / "journal" / WATERMARK).write_bytes(b"nonsense")
    assert WATERMARK in names(audit(sealed))


def test_the_number_of_findings_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.journal.audit.FINDINGS_MAX", 2)
    report = Audit()
    for number in range(5):
        report.find("place", f"{number}")
    assert [finding.what for finding in report.findings] == ["0", "1"]
