"""Backup and restore: of a loaded server, of a killed one, of tables and tokens; and rejections."""

from __future__ import annotations

import json
import shutil
import tarfile
import threading
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from penstock.cli import main
from penstock.journal.audit import audit
from penstock.journal.disk import RealDisk
from penstock.journal.open_and_repair import read_identity, read_watermark
from penstock.server.ops import backup
from penstock.server.ops.backup_format import MANIFEST, BackupManifest
from tests.integration.serving import Http, envelope, until
from tests.server_process import ServerProcess

CONFIG = """
journal: {seal_every_ms: 200}
spaces:
  - space: {id: workshop}
    participants: {ada: {capabilities: [{kind: chat}]}}
"""
"""It seals all the time, so that copying meets it."""
BALANCE = ("q.ack", "q.dead", "q.drop", "q.purged", "q.moved", "q.depth", "q.if", "q.delayed")


class Load:
    """Enqueues, and acks half of it, until it is stopped; records the answers."""

    def __init__(self, server: ServerProcess) -> None:
        self._http = Http(server.http)
        self._stop = threading.Event()
        self.sent: list[str] = []
        self.acked: list[str] = []
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        number = 0
        while not self._stop.is_set():
            ids = [f"e{number + step}" for step in range(20)]
            number += 20
            self._http.enqueue("jobs", *ids)
            self.sent += ids
            for one in self._http.pull("jobs", max=10):
                id_ = one["deliver"]["id"]
                assert self._http.settle(id_, "ack", leaseId=one["leaseId"]).status == 200
                self.acked.append(id_)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def states(data: Path) -> dict[str, list[str]]:
    """All journal events of each envelope."""
    from penstock.journal.reader import JournalReader

    reader = JournalReader(data)
    bounds = reader.bounds()
    found: dict[str, list[str]] = {}
    for batch in reader.batches(bounds.first, bounds.end, ["event", "id", "channel"]):
        for row in batch.to_pylist():
            if row["channel"] == "jobs" and row["id"]:
                found.setdefault(row["id"], []).append(row["event"])
    return found


@pytest.mark.promise(
    "Operations",
    "a backup of a server under load has everything acknowledged before it began, and balances",
)
def test_a_copy_made_under_load_has_everything_that_was_answered_before(tmp_path, capsys):
    folder = tmp_path / "server"
    folder.mkdir()
    server = ServerProcess(folder, config=CONFIG)
    load = Load(server)
    copies = []
    try:
        until(lambda: len(load.acked) > 100 and DeltaTable.is_deltatable(str(server.data / "lake/events")))
        for name in ("copy", "copy.tar"):
            sent, acked = list(load.sent), list(load.acked)
            assert main(["backup", str(tmp_path / name), "--data", str(server.data), "--json"]) == 0
            copies.append((name, sent, acked, json.loads(capsys.readouterr().out)))
            until(lambda sent=sent: len(load.sent) > len(sent))  # the server goes on
    finally:
        load.stop()
        server.kill()
    for name, sent, acked, made in copies:
        data = tmp_path / f"restored-{name}/penstock-data"
        assert main(["restore", str(tmp_path / name), "--data", str(data), "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["end"] == made["end"] and told["journal"] == made["journal"]
        report = audit(data)
        assert report.is_sound and report.notes == [] and report.end == made["end"]
        found = states(data)
        assert set(sent) <= set(found), "an answered envelope is missing"
        assert all("ack" in found[one] for one in acked)
        assert not (data / "run").exists()
        assert (data / "spaces/workshop/tokens/ada.token").is_file()

    again = ServerProcess(data.parent, config=CONFIG)
    try:
        http = Http(again.http)
        figures = http.counters()["jobs"]
        assert figures["q.in"] == len(found) == sum(figures[name] for name in BALANCE)
        assert figures["q.ack"] == sum("ack" in events for events in found.values())
        http.enqueue("jobs", "later")
    finally:
        again.kill()
    assert audit(data).is_sound


@pytest.fixture(scope="module")
def quiet(tmp_path_factory):
    """The directory of a server that was killed, with a table, and a token of a space."""
    folder = tmp_path_factory.mktemp("quiet")
    server = ServerProcess(folder, config=CONFIG)
    http = Http(server.http)
    http.enqueue("jobs", "a", "b", "c")
    assert main(["log", "seal", "--data", str(server.data)]) == 0
    http.enqueue("jobs", "d")
    server.kill()
    for number in range(3):
        write_deltalake(
            str(server.data / "lake/mine"),
            pa.table({"n": [number], "m": [0]}),
            mode="append",
            partition_by=["n"],
        )
    (server.data / "lake/_checkpoints").mkdir()
    (server.data / "lake/_checkpoints/state").write_text("can be lost")
    (server.data / "lake/mine/.draft.parquet").write_text("a draft")
    return server.data


@pytest.mark.promise(
    "Operations",
    "a backup has tables and tokens of spaces, nothing of `run`, and nothing ahead of the journal",
)
def test_a_directory_without_a_writer_is_copied_with_its_tables_and_tokens(quiet, tmp_path, capsys):
    (tmp_path / "data").mkdir()  # an empty directory is as good as none
    assert main(["backup", str(tmp_path / "copy.tar.gz"), "--data", str(quiet)]) == 0
    assert main(["restore", str(tmp_path / "copy.tar.gz"), "--data", str(tmp_path / "data")]) == 0
    assert "sound" in capsys.readouterr().out
    data = tmp_path / "data"
    assert sorted(DeltaTable(str(data / "lake/mine")).to_pyarrow_table()["n"].to_pylist()) == [0, 1, 2]
    assert set(states(data)) == {"a", "b", "c", "d"}
    tokens = sorted((quiet / "spaces").rglob("*"))
    assert [path.relative_to(quiet) for path in tokens] == [
        path.relative_to(data) for path in sorted((data / "spaces").rglob("*"))
    ]
    assert all(path.read_bytes() == (data / path.relative_to(quiet)).read_bytes() for path in tokens if path.is_file())
    with tarfile.open(tmp_path / "copy.tar.gz") as tar:
        names = tar.getnames()
    # What follows from the journal is never ahead of it, and a log speaks of files that were there before.
    first = next(index for index, name in enumerate(names) if name.startswith("journal/"))
    assert not [name for name in names[first:] if name.startswith(("lake/mine", "spaces"))]
    mine = [name for name in names if name.startswith("lake/mine/")]
    assert sorted(mine, key=lambda name: "_delta_log" not in name) == mine and names[-1] == MANIFEST
    for secret in ("run", "journal/lock", "journal/reserve", "lake/_checkpoints", "draft"):
        assert not [name for name in names if name.startswith(secret) or secret in name.split("/")], names
    assert (data.stat().st_mode & 0o777, (tmp_path / "copy.tar.gz").stat().st_mode & 0o777) == (0o700, 0o600)


@pytest.mark.promise("Operations", "a restore keeps every row and starts an epoch that readers notice")
def test_a_restored_journal_begins_an_epoch_that_readers_notice(quiet, tmp_path):
    main(["backup", str(tmp_path / "copy"), "--data", str(quiet)])
    main(["restore", str(tmp_path / "copy"), "--data", str(tmp_path / "data")])
    old, new = (read_identity(RealDisk(path / "journal")) for path in (quiet, tmp_path / "data"))
    assert new.id == old.id and new.epoch == old.epoch + 1
    assert read_watermark(RealDisk(tmp_path / "data/journal"))[1] == new.epoch


@pytest.mark.promise("Operations", "a backup or a restore overwrites nothing")
def test_nothing_is_written_over(quiet, tmp_path, capsys):
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "mine").write_text("precious")
    file = tmp_path / "taken.tar"
    file.write_text("precious")
    (tmp_path / "link").symlink_to(quiet)
    for target in (taken, file, quiet / "copy", quiet / "run/copy.tar", tmp_path / "link" / "copy"):
        assert main(["backup", str(target), "--data", str(quiet)]) == 1
    assert main(["backup", str(tmp_path / "copy"), "--data", str(tmp_path / "no-such")]) == 1
    assert main(["backup", str(tmp_path / "copy"), "--data", str(quiet)]) == 0
    assert main(["restore", str(tmp_path / "copy"), "--data", str(taken)]) == 1
    assert main(["restore", str(file), "--data", str(tmp_path / "data")]) == 1
    assert main(["restore", str(taken), "--data", str(tmp_path / "data")]) == 1
    errors = capsys.readouterr().err
    assert errors.count("hint: ") == 9 and "precious" not in errors
    assert (taken / "mine").read_text() == file.read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "link", "taken", "taken.tar"]


def damaged(copy: Path, how: str) -> None:
    manifest = msgspec.json.decode((copy / MANIFEST).read_bytes(), type=BackupManifest)
    segment = copy / next(name for name in manifest.files if name.startswith("journal/log-"))
    data = segment.read_bytes()
    match how:
        case "flipped":
            segment.write_bytes(data[:-5] + bytes([data[-5] ^ 1]) + data[-4:])
        case "short":
            segment.write_bytes(data[:-5])
        case "long":
            segment.write_bytes(data + b"x")
        case "missing":
            segment.unlink()
        case "outside":
            manifest.files["../escaped"] = next(iter(manifest.files.values()))
            (copy / MANIFEST).write_bytes(msgspec.json.encode(manifest))
        case "secret":
            manifest.files["run/operator.token"] = next(iter(manifest.files.values()))
            (copy / "run").mkdir()
            (copy / "run/operator.token").write_text("x")
            (copy / MANIFEST).write_bytes(msgspec.json.encode(manifest))
        case "less":
            del manifest.files[segment.relative_to(copy).as_posix()]
            (copy / MANIFEST).write_bytes(msgspec.json.encode(manifest))
        case "unfinished":
            (copy / MANIFEST).unlink()


@pytest.mark.promise("Operations", "a damaged backup is rejected and leaves nothing behind")
@pytest.mark.parametrize("how", ["flipped", "short", "long", "missing", "outside", "secret", "less", "unfinished"])
def test_a_damaged_backup_is_not_restored_and_leaves_nothing_behind(how, quiet, tmp_path, capsys):
    copy, data = tmp_path / "copy", tmp_path / "data"
    main(["backup", str(copy), "--data", str(quiet)])
    damaged(copy, how)
    assert main(["restore", str(copy), "--data", str(data)]) == 1
    assert "hint: " in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy"]


@pytest.mark.promise(
    "Operations",
    "a backup has tables and tokens of spaces, nothing of `run`, and nothing ahead of the journal",
)
def test_a_table_that_changes_under_the_copy_is_noticed(quiet, tmp_path, monkeypatch, capsys):
    data = tmp_path / "data"
    shutil.copytree(quiet, data)
    walk = backup._walk

    def vacuumed(folder, without):
        """A vacuum takes a file that the log has just spoken of."""
        if folder.name == "mine":
            next(folder.rglob("n=0/*.parquet")).unlink()
        return walk(folder, without)

    monkeypatch.setattr(backup, "_walk", vacuumed)
    assert main(["backup", str(tmp_path / "copy"), "--data", str(data)]) == 1
    assert "`mine` changed during the copy" in capsys.readouterr().err
    assert not list(tmp_path.glob("copy*"))


@pytest.mark.promise("Operations", "a backup excludes an unfinished commit, and nothing is sealed while it copies")
def test_a_commit_under_way_is_no_part_of_the_copy(start_server, tmp_path):
    """The bytes after the watermark belong to an unacknowledged commit; the disk may still reject it."""
    server = start_server()
    Http(server.http).enqueue("jobs", "a", "b")
    disk = RealDisk(server.data / "journal")
    end = read_watermark(disk)[0]
    [segment] = (server.data / "journal").glob("log-*.seg")
    whole = segment.read_bytes()
    scan = backup.Scan(whole, segment.name, is_last=True)
    last = list(scan.frames())[-1]
    with segment.open("ab") as file:  # half a frame, as a writer leaves it between two writes
        file.write(whole[last.position : last.end - 7])
    backup.backup(server.data, tmp_path / "copy", "t")
    assert (tmp_path / "copy/journal" / segment.name).read_bytes() == whole
    manifest = msgspec.json.decode((tmp_path / "copy" / MANIFEST).read_bytes(), type=BackupManifest)
    assert manifest.end == end


@pytest.mark.promise("Operations", "a backup excludes an unfinished commit, and nothing is sealed while it copies")
def test_nothing_is_sealed_while_the_journal_is_copied(quiet, tmp_path, monkeypatch):
    seen = []

    def copied(self, *words):
        seen.append(RealDisk(quiet / "journal").lock("sealing"))
        return original(self, *words)

    original = backup._Backup._quiet
    monkeypatch.setattr(backup._Backup, "_quiet", copied)
    backup.backup(quiet, tmp_path / "copy", "t")
    assert seen == [False]
    sealing = RealDisk(quiet / "journal")
    assert sealing.lock("sealing")
    sealing.unlock()


def test_history_that_retention_takes_while_it_is_copied_is_no_part_of_the_copy(quiet, tmp_path, monkeypatch):
    data = tmp_path / "data"
    shutil.copytree(quiet, data)
    extra = data / "lake/events/date=2020-01-01/part-of-another-day.parquet"
    extra.parent.mkdir()
    extra.write_bytes(b"old")
    original = backup._Backup._journal

    def retained(self, copied):
        extra.unlink()
        return original(self, copied)

    monkeypatch.setattr(backup._Backup, "_journal", retained)
    manifest = backup.backup(data, tmp_path / "copy", "t")
    assert not [name for name in manifest.files if "another-day" in name]
    assert (tmp_path / "copy/lake/events/date=2020-01-01/part-of-another-day.parquet").exists()
    assert main(["restore", str(tmp_path / "copy"), "--data", str(tmp_path / "restored")]) == 0
    assert not (tmp_path / "restored/lake/events/date=2020-01-01").exists()


@pytest.mark.promise("Operations", "a directory whose server is starting is not copied")
def test_a_server_that_is_still_starting_is_waited_for_by_the_operator(quiet, tmp_path, capsys):
    data = tmp_path / "data"
    shutil.copytree(quiet, data)
    (data / "run/endpoints.json").unlink()
    writer = RealDisk(data / "journal")
    assert writer.lock()
    try:
        assert main(["backup", str(tmp_path / "copy"), "--data", str(data)]) == 1
    finally:
        writer.unlock()
    assert "try again" in capsys.readouterr().err
    assert main(["backup", str(tmp_path / "copy"), "--data", str(data)]) == 0


@pytest.mark.promise("Operations", "a restore keeps every row and starts an epoch that readers notice")
def test_envelopes_survive_the_way_through_a_backup_byte_for_byte(quiet, tmp_path):
    from penstock.journal.reader import JournalReader

    main(["backup", str(tmp_path / "copy"), "--data", str(quiet)])
    main(["restore", str(tmp_path / "copy"), "--data", str(tmp_path / "data")])

    def rows(data):
        reader = JournalReader(data)
        bounds = reader.bounds()
        return [batch.drop_columns(["epoch"]).to_pylist() for batch in reader.batches(bounds.first, bounds.end)]

    assert rows(tmp_path / "data") == rows(quiet)
    assert any(envelope("d")["id"] == row["id"] for part in rows(quiet) for row in part)
