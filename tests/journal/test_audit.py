"""The audit of a journal: a sound one has no findings, and damage is found where it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.journal.audit import Audit, audit
from penstock.journal.delta_log import SUMS
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


@pytest.mark.promise("Journal", "`penstock log check` finds a changed byte in the log of the table")
def test_every_changed_byte_in_the_log_of_the_table_is_found(sealed: Path) -> None:
    sealer(sealed).seal(START_US + 99, wants_live=True)
    for path in sorted((sealed / "lake/events/_delta_log").glob("*.json")):
        data = path.read_bytes()
        for position in range(0, len(data), 97):
            path.write_bytes(data[:position] + bytes((data[position] ^ 1,)) + data[position + 1 :])
            assert f"lake/events/_delta_log/{path.name}" in names(audit(sealed)), position
        path.write_bytes(data)
    assert audit(sealed).is_sound


def test_a_log_of_an_earlier_version_has_no_checksums_and_is_read_as_json(sealed: Path) -> None:
    sealer(sealed).seal(START_US + 99, wants_live=True)
    (sealed / "lake/events" / SUMS).unlink()
    assert audit(sealed).is_sound
    path = sealed / "lake/events/_delta_log" / f"{0:020d}.json"
    path.write_bytes(b"\xff" + path.read_bytes())
    assert f"lake/events/_delta_log/{path.name}" in names(audit(sealed))


def test_the_numbers_of_a_damaged_journal_are_those_that_can_be_read(sealed: Path) -> None:
    """Segments of 4, 3 and 3 rows; the last row of the second cannot be read."""
    path = sealed / "journal" / segments(RealDisk(sealed / "journal"))[1].name
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    report = audit(sealed)
    assert [(finding.place, finding.what.partition(": ")[2]) for finding in report.findings] == [
        (path.name, "a frame is broken and later segments exist")
    ]
    assert (report.segments, report.segment_rows, report.first, report.end) == (3, 9, 0, 10)


def test_a_table_that_cannot_be_opened_says_nothing_about_rows(sealed: Path) -> None:
    sealer(sealed).seal(START_US + 99, wants_live=True)
    for path in (sealed / "lake/events/_delta_log").glob("*.json"):
        path.write_bytes(b"{")
    report = audit(sealed)
    assert all(finding.place.startswith("lake/events") for finding in report.findings), report.findings
    assert (report.segment_rows, report.end) == (3, 10)


def test_the_number_of_findings_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.journal.audit.FINDINGS_MAX", 2)
    report = Audit()
    for number in range(5):
        report.find("place", f"{number}")
    assert [finding.what for finding in report.findings] == ["0", "1"]
