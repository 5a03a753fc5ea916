"""The journal commands on a real server: tail, check, export, import and replay."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from penstock.cli import main
from penstock.cli.history.replay import _play
from penstock.journal import named_readers
from penstock.journal.disk import RealDisk
from tests.integration.serving import Http
from tests.server_process import ServerProcess, environment

WAIT_S = 20


@pytest.fixture(scope="module")
def busy(tmp_path_factory):
    """A server with something of everything, part of it sealed: `b` was enqueued before the seal, and acked after it."""
    process = ServerProcess(tmp_path_factory.mktemp("busy"))
    http = Http(process.http)
    http.enqueue("jobs/a", "a", "b", "c")
    http.post("/v1/enqueue", {"to": "mail", "envelope": {**envelope("m", "mail.new"), "corr": "k1", "from": "sam"}})
    a, b, c = http.pull("jobs/a", max=3)
    http.settle("a", "ack", leaseId=a["leaseId"])
    http.settle("b", "nack", leaseId=b["leaseId"], reason="busy")
    http.settle("c", "term", leaseId=c["leaseId"], reason="broken")
    assert main(["log", "seal", "--data", str(process.data)]) == 0
    (b,) = http.pull("jobs/a", max=1)
    http.settle("b", "ack", leaseId=b["leaseId"])
    yield process
    process.kill()


@pytest.fixture
def cli(busy, capsys, monkeypatch):
    """A command on that server's directory; with `--json`, what it printed as values."""
    monkeypatch.delenv("PENSTOCK_URL", raising=False)
    monkeypatch.delenv("PENSTOCK_TOKEN", raising=False)

    def run(*words, data=busy.data, code=0):
        capsys.readouterr()
        where = [] if data is None else ["--data", str(data)]
        assert main([*words, *where]) == code, capsys.readouterr()
        out = capsys.readouterr().out
        return [json.loads(line) for line in out.splitlines()] if "--json" in words else out

    return run


@pytest.fixture
def story(cli):
    """The part of the journal that the fixture wrote, whatever other tests add behind it."""
    rows = cli("log", "cat", "--id", "b", "--channel", "jobs/a", "--json")
    return ["--to", str(rows[-1]["offset"] + 1)]


def envelope(id_, kind="note"):
    return {"id": id_, "ts": "2026-01-01T00:00:00Z", "type": kind, "payload": {"n": 1}}


def copied(busy, tmp_path):
    """The directory of a server that is gone, whatever the running one writes meanwhile."""
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


@pytest.mark.promise("Journal", "`penstock tail` filters rows")
def test_rows_are_chosen_by_every_filter(cli, story):
    def ids(*words):
        return [row["id"] for row in cli("log", "cat", "--event", "enqueue", "--json", *story, *words)]

    assert ids("--channel", "jobs/*", "--limit", "2") == ["a", "b"]
    assert ids("--channel", "mail") == ids("--corr", "k1") == ids("--kind", "mail.*") == ["m"]
    assert ids("--door", "mew") == [] and "a" in ids("--door", "courier")
    assert ids("--since", "1h", "--id", "a") == ["a"]
    assert ids("--until", "2026-01-01T00:00:00Z") == ids("--since", "0s") == []
    (first,) = cli("log", "cat", "--id", "a", "--limit", "1", "--json")
    (same,) = cli("log", "cat", "--since", first["recorded_at"], "--limit", "1", "--json")
    assert same["recorded_at"] == first["recorded_at"] and same["offset"] <= first["offset"]
    part = cli("log", "cat", "--from", "1", "--to", "3", "--columns", "offset,event", "--json")
    assert [list(row) for row in part] == [["offset", "event"]] * 2
    assert [row["offset"] for row in part] == [1, 2]


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


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["log", "cat", "--since", "yesterday"], "InvalidRequest"),
        (["log", "cat", "--columns", "colour"], "InvalidRequest"),
        (["tail", "--url", "tcp://127.0.0.1:1"], "InvalidRequest"),
        (["tail", "--url", "http://127.0.0.1:1"], "Unreachable"),
        (["replay", "--speed", "fast"], "InvalidRequest"),
        (["log", "readers", "--forget", "nobody"], "InvalidRequest"),
        (["export", "--format", "parquet", "-o", "-"], "InvalidRequest"),
        (["export", "-o", "no/such/folder/x.jsonl"], "InvalidRequest"),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, list) else part,
)
def test_a_wrong_wish_is_an_error_with_a_hint(busy, capsys, words, code):
    assert main([*words, "--data", str(busy.data), "--json"]) == 1
    shown = capsys.readouterr()
    assert json.loads(shown.out)["error"]["code"] == code and "hint: " in shown.err


@pytest.mark.parametrize("words", [["ls"], ["cat"], ["check"], ["seal"], ["readers"]], ids=lambda words: words[0])
def test_a_directory_without_a_journal_is_reported_and_left_alone(tmp_path, capsys, words):
    assert main(["log", *words, "--data", str(tmp_path)]) == 1
    assert "there is no journal" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


# Checking


def test_a_sound_journal_passes_beside_its_server_and_after_it(busy, cli, tmp_path):
    assert cli("log", "check").startswith("sound: ")
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
    where = ["--data", str(busy.data), *(["--url", busy.http] if kind == "server" else [])]
    stream, http = f"tail/{kind}", Http(busy.http)
    http.enqueue(stream, "old")
    process = follow("--channel", stream, "--since", "1h", "--limit", "3", *where)
    try:
        assert json.loads(process.stdout.readline())["id"] == "old"
        http.enqueue(stream, "new")  # it is known to follow by now
        assert json.loads(process.stdout.readline())["body"]["payload"] == "new"
        (got,) = http.pull(stream, max=1)
        http.settle("old", "ack", leaseId=got["leaseId"])
        assert json.loads(process.stdout.readline())["event"] == "ack"
        assert process.wait(WAIT_S) == 0
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


@pytest.mark.promise("Journal", "export and import work with JSONL and Parquet")
def test_what_is_exported_is_what_cat_shows_in_both_formats(cli, tmp_path):
    lines, table = tmp_path / "x.jsonl", tmp_path / "x.parquet"
    (told,) = cli("export", "-o", str(lines), "--to", "8", "--json")
    cli("export", "-o", str(table), "--to", "8")
    shown = cli("log", "cat", "--to", "8", "--json")
    assert told["rows"] == len(shown) == 8
    assert [json.loads(line) for line in lines.read_text().splitlines()] == shown
    again = pq.read_table(table)
    assert again.column("offset").to_pylist() == list(range(8))
    assert [body and json.loads(body) for body in again.column("body").to_pylist()] == [
        row.get("body") for row in shown
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.jsonl", "x.parquet"]


@pytest.mark.promise("Journal", "export and import work with JSONL and Parquet")
def test_an_export_fills_another_server_with_the_same_bytes(cli, story, start_server, tmp_path):
    other = start_server()
    files = [tmp_path / "x.jsonl", tmp_path / "x.parquet"]
    for file in files:
        cli("export", "-o", str(file), "--channel", "*", *story)
    known = {row["id"]: row for row in cli("log", "cat", "--event", "enqueue", "--json", *story)}
    to = ["--url", other.control, "--json"]
    (first,) = cli("import", str(files[0]), *to, data=None)
    assert first["stored"] == 4 and first["duplicates"] == first["refused"] == 0
    assert first["skipped"] > 0  # settles, and the dead letter
    (second,) = cli("import", str(files[1]), *to, data=None)
    assert (second["stored"], second["duplicates"]) == (0, 4)
    (moved,) = cli("import", str(files[1]), "--prefix", "copy/", *to, data=None)
    assert moved["stored"] == 4
    rows = cli("log", "cat", "--event", "enqueue", "--json", data=other.data)
    assert {row["id"] for row in rows} == {"a", "b", "c", "m"}
    assert all(row["body"] == known[row["id"]]["body"] for row in rows[:4] if row["id"] != "c")
    assert all(row["body"]["to"] == row["channel"] for row in rows)


@pytest.mark.parametrize("content", [b"nonsense\n", b'["row"]\n', b"PAR1 nonsense"])
def test_a_file_that_holds_no_rows_is_refused(busy, tmp_path, capsys, content):
    file = tmp_path / "bad"
    file.write_bytes(content)
    assert main(["import", str(file), "--url", busy.control]) == 1
    assert "error: Invalid" in capsys.readouterr().err


@pytest.mark.promise("Journal", "`penstock replay` enqueues history again")
def test_replay_stores_again_only_what_is_not_known(cli, story, busy):
    part = [*story, "--json"]
    (same,) = cli("replay", *part)
    assert (same["stored"], same["duplicates"], same["refused"]) == (0, 4, 0)
    (moved,) = cli("replay", "--prefix", "again/", "--channel", "jobs/*", "--speed", "1000", *part)
    assert (moved["stored"], moved["duplicates"]) == (3, 0)
    (fresh,) = cli("replay", "--kind", "mail.new", "--new-ids", "--to-url", busy.control, *part)
    assert fresh["stored"] == 1
    rows = cli("log", "cat", "--kind", "mail.new", "--event", "enqueue", "--json")
    assert len({row["id"] for row in rows}) == len(rows) == 2
    assert [row["body"]["payload"] for row in rows] == [{"n": 1}] * 2
    assert [row["sender"] for row in rows] == ["sam"] * 2


@pytest.mark.promise("Journal", "`penstock replay` enqueues history again")
def test_replay_keeps_the_pauses_scaled_by_its_speed():
    class Clocked:
        def __init__(self):
            self.times = []

        async def put(self, *row):
            self.times.append(asyncio.get_running_loop().time())

        async def flush(self):
            return None

    rows = [{"recorded_at": at_us, "event": "enqueue", "channel": "c", "body": b"{}"} for at_us in (0, 0, 80_000)]
    feed = Clocked()
    asyncio.run(_play(iter(rows), feed, 2.0))
    first, second, third = feed.times
    assert second - first < third - second and third - first >= 0.039


@pytest.mark.promise("Journal", "no row contains a token")
def test_no_token_is_in_any_row(busy, cli):
    token = (busy.data / "run" / "operator.token").read_text().strip()
    files = [path for path in busy.data.rglob("*") if path.is_file() and path.parent.name != "run"]
    assert files and not any(token.encode() in path.read_bytes() for path in files)
    assert token not in json.dumps(cli("log", "cat", "--json"))
    assert Path(busy.data / "journal").stat().st_mode & 0o077 == 0
