"""The journal commands on a real server: tail, check, export, import and replay."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from penstock.cli import main
from penstock.journal import named_readers
from penstock.journal.audit import audit
from penstock.journal.disk import RealDisk
from tests.integration.serving import Http, until
from tests.server_process import environment

WAIT_S = 20


def copied(busy, tmp_path):
    """The directory of a server that is gone, whatever the running one writes meanwhile."""
    until(lambda: not audit(busy.data).notes, "the end of a commit that is on its way to the disk")
    target = tmp_path / "copy"
    target.mkdir()
    for part in ("journal", "lake"):
        shutil.copytree(busy.data / part, target / part)
    return target


# Looking


@pytest.mark.promise("Journal", "`penstock log ls`, `cat`, `check`, `seal` and `readers` work")
def test_the_events_of_an_envelope_are_shown_across_sealed_and_new_rows(cli, story):
    rows = cli("log", "cat", "--id", "b", "--json", *story)
    assert [row["event"] for row in rows] == ["enqueue", "nack", "ack"]
    (bounds,) = cli("log", "ls", "--json")
    assert rows[0]["offset"] < bounds["sealed_end"] <= rows[2]["offset"]
    assert rows[0]["body"] == {**rows[0]["body"], "id": "b", "payload": "b"}
    assert rows[1]["reason"] == "busy" and rows[2]["ref_offset"] == rows[0]["offset"]
    dead = [(row["event"], row["channel"]) for row in cli("log", "cat", "--id", "c", "--json", *story)]
    assert sorted(dead) == [("dead", "jobs/a"), ("enqueue", "dlq/jobs/a"), ("enqueue", "jobs/a")]


def test_people_see_a_table(cli, story):
    head, *lines = cli("log", "cat", "--id", "b", *story).splitlines()
    assert head.split()[:4] == ["offset", "recorded_at", "event", "channel"]
    assert [line.split()[2] for line in lines] == ["enqueue", "nack", "ack"]
    assert '"payload":"b"' in cli("log", "cat", "--id", "b", "--limit", "1", "--columns", "id,body")


@pytest.mark.promise("Journal", "`penstock log ls`, `cat`, `check`, `seal` and `readers` work")
def test_files_are_listed_with_their_offsets_and_cover_the_journal(cli):
    (listed,) = cli("log", "ls", "--json")
    kinds = {kind: [file for file in listed["files"] if file["kind"] == kind] for kind in ("sealed", "segment")}
    ends = [(file["first"], file["end"], file["rows"]) for file in kinds["sealed"] + kinds["segment"]]
    assert ends[0][0] == 0 and ends[-1][1] == listed["end"]
    assert all(earlier[1] == later[0] for earlier, later in pairwise(ends))
    assert all(end - first == rows for first, end, rows in ends)
    assert all(file["bytes"] > 0 and file["at"].endswith("Z") for file in listed["files"])
    assert "journal/live-" in cli("log", "ls")


# Checking


def test_a_sound_journal_passes_beside_its_server_and_after_it(busy, cli, tmp_path):
    assert "sound: " in cli("log", "check")
    (report,) = cli("log", "check", "--json", data=copied(busy, tmp_path))
    (bounds,) = cli("log", "ls", "--json")
    assert report["ok"] and report["findings"] == report["notes"] == []
    assert report["sealed_rows"] + report["segment_rows"] == report["end"] <= bounds["end"]
    assert report["live_offset"] == report["sealed_end"] and report["live_rows"] > 0


def flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(data)


def parquet(data):
    return next((data / "lake" / "events").glob("date=*/*.parquet"))


def newest(data, kind):
    return max((data / "journal").glob(f"{kind}-*.seg"))


DAMAGE = {
    "a segment's header": (lambda data: flip(newest(data, "log"), 30), "log-"),
    "a segment's frame": (lambda data: flip(newest(data, "log"), -100), "log-"),
    "the live file": (lambda data: flip(newest(data, "live"), -100), "live-"),
    "no live file": (lambda data: newest(data, "live").unlink(), "log-"),
    "the watermark": (lambda data: flip(data / "journal" / "watermark", 0), "watermark"),
    "the identity": (lambda data: (data / "journal" / "journal.json").write_text("{"), "journal.json"),
    "a sealed file": (
        lambda data: parquet(data).write_bytes(parquet(data).read_bytes()[:-40]),
        "lake/events/date=",
    ),
    "no sealed file": (lambda data: parquet(data).unlink(), "lake/events/date="),
    "the table": (lambda data: shutil.rmtree(data / "lake"), "log-"),
    "a reader": (lambda data: (data / "journal" / "reader-x.json").write_text("?"), "reader-x.json"),
}


@pytest.mark.promise("Journal", "`penstock log ls`, `cat`, `check`, `seal` and `readers` work")
@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_found_and_its_place_named(busy, cli, tmp_path, what):
    data = copied(busy, tmp_path)
    harm, place = DAMAGE[what]
    harm(data)
    (report,) = cli("log", "check", "--json", data=data, code=3)
    assert not report["ok"]
    assert any(finding["place"].startswith(place) for finding in report["findings"]), report["findings"]
    assert "damaged: " in cli("log", "check", data=data, code=3)


def test_a_torn_tail_is_a_note_and_no_damage(busy, cli, tmp_path):
    data = copied(busy, tmp_path)
    with newest(data, "log").open("ab") as file:
        file.write(b"\x40\x00\x00\x00half a frame")
    (report,) = cli("log", "check", "--json", data=data)
    (note,) = report["notes"]
    assert report["ok"] and note["place"].startswith("log-") and "16 bytes" in note["what"]


def test_damage_that_a_reader_meets_is_named_by_file(busy, tmp_path, capsys):
    data = copied(busy, tmp_path)
    flip(newest(data, "log"), -100)
    assert main(["log", "cat", "--data", str(data), "--json"]) == 1
    shown = capsys.readouterr()
    assert "JournalDamaged" in shown.err and newest(data, "log").name in shown.err


# Sealing, readers


@pytest.mark.promise("Journal", "`penstock log ls`, `cat`, `check`, `seal` and `readers` work")
def test_sealing_without_a_server_moves_everything_and_changes_no_row(busy, cli, tmp_path):
    data = copied(busy, tmp_path)
    before = cli("log", "cat", "--json", data=data)
    (report,) = cli("log", "seal", "--json", data=data)
    assert report["sealedEnd"] == report["liveOffset"] == len(before) and report["sealedRows"] > 0
    assert cli("log", "cat", "--json", data=data) == before
    (again,) = cli("log", "seal", "--json", data=data)
    assert again["sealedRows"] == 0
    assert cli("log", "check", data=data).startswith("sound: ")


def test_sealing_keeps_out_of_a_directory_that_another_process_writes(busy, tmp_path, capsys):
    data = copied(busy, tmp_path)
    disk = RealDisk(data / "journal")
    assert disk.lock()
    try:
        assert main(["log", "seal", "--data", str(data)]) == 1
    finally:
        disk.unlock()
    assert "another process writes" in capsys.readouterr().err


@pytest.mark.promise("Journal", "`penstock log ls`, `cat`, `check`, `seal` and `readers` work")
def test_readers_are_listed_and_forgotten(busy, cli, tmp_path):
    data = copied(busy, tmp_path)
    disk = RealDisk(data / "journal")
    named_readers.advance(disk, "nightly", 2, 1_700_000_000_000_000)
    (listed,) = cli("log", "readers", "--json", data=data)
    (reader,) = listed["readers"]
    assert (reader["name"], reader["offset"], reader["holds"]) == ("nightly", 2, True) and reader["behind"] > 0
    assert "nightly" in cli("log", "readers", data=data)
    assert cli("log", "readers", "--forget", "nightly", "--json", data=data) == [{"readers": []}]


# Following


def follow(*words):
    return subprocess.Popen(
        [sys.executable, "-m", "penstock.cli", "tail", "--json", *words],
        stdout=subprocess.PIPE,
        env=environment(),
        text=True,
    )


@pytest.mark.promise("Journal", "`penstock tail` filters rows")
@pytest.mark.parametrize("kind", ["directory", "server"])
def test_tail_shows_what_was_and_then_what_comes(busy, kind):
    rows = followed(busy, kind, f"tail/{kind}")
    if any(row["event"] == "gauge" for row in rows):  # a minute ended meanwhile: the next one is a minute away
        rows = followed(busy, kind, f"tail/{kind}/again")
    old, new, ack = rows
    assert (old["id"], new["body"]["payload"], ack["event"]) == ("old", "new", "ack")


def followed(busy, kind, stream):
    """The first three rows that `tail` prints of a stream while it is used."""
    where = ["--data", str(busy.data), *(["--url", busy.http] if kind == "server" else [])]
    http = Http(busy.http)
    http.enqueue(stream, "old")
    process = follow("--channel", stream, "--since", "1h", "--limit", "3", *where)
    try:
        rows = [json.loads(process.stdout.readline())]
        http.enqueue(stream, "new")  # it is known to follow by now
        rows.append(json.loads(process.stdout.readline()))
        (got,) = http.pull(stream, max=1)
        http.settle("old", "ack", leaseId=got["leaseId"])
        rows.append(json.loads(process.stdout.readline()))
        assert process.wait(WAIT_S) == 0
        return rows
    finally:
        process.kill()
        process.communicate()


def test_tail_may_stop_at_the_end(cli, busy):
    bounds, after = {}, None
    while after != bounds:  # a tick may come in between
        (bounds,) = cli("log", "ls", "--json")
        rows = cli("tail", "--no-follow", "--back", "2", "--json")
        same = cli("tail", "--no-follow", "--back", "2", "--json", "--url", busy.http)
        (after,) = cli("log", "ls", "--json")
    assert [row["offset"] for row in rows] == [bounds["end"] - 2, bounds["end"] - 1]
    assert same == rows


# Moving


@pytest.mark.promise("Journal", "no row contains a token")
def test_no_token_is_in_any_row(busy, cli):
    token = (busy.data / "run" / "operator.token").read_text().strip()
    files = [path for path in busy.data.rglob("*") if path.is_file() and path.parent.name != "run"]
    assert files and not any(token.encode() in path.read_bytes() for path in files)
    assert token not in json.dumps(cli("log", "cat", "--json"))
    assert Path(busy.data / "journal").stat().st_mode & 0o077 == 0
