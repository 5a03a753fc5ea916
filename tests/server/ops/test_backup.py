"""Backups of a data directory: what they hold, in which order, and rejections."""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from deltalake import DeltaTable

from penstock.cli import main
from penstock.core.errors import PenstockError
from penstock.journal.audit import audit
from penstock.journal.disk import RealDisk
from penstock.journal.open_and_repair import read_identity, read_watermark
from penstock.journal.reader import JournalReader
from penstock.server.ops import backup
from penstock.server.ops.backup import restore
from penstock.server.ops.backup_format import MANIFEST, BackupManifest
from tests.tiers import first_of


def ids(data: Path) -> set[str]:
    """The envelopes in a journal."""
    reader = JournalReader(data)
    bounds = reader.bounds()
    return {row["id"] for batch in reader.batches(bounds.first, bounds.end, ["id"]) for row in batch.to_pylist()}


@pytest.fixture
def written(quiet, tmp_path):
    """A directory that a running server has locked: this process."""
    data = Path(shutil.copytree(quiet, tmp_path / "data"))
    (data / "run/endpoints.json").write_text(f'{{"pid":{os.getpid()},"control":null}}')
    writer = RealDisk(data / "journal")
    assert writer.lock()
    yield data
    writer.unlock()


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
    assert ids(data) == {"a", "b", "c", "d"}
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
def test_a_commit_under_way_is_no_part_of_the_copy(written, tmp_path):
    """The bytes after the watermark belong to an unacknowledged commit; the disk may still reject it."""
    disk = RealDisk(written / "journal")
    end = read_watermark(disk)[0]
    [segment] = (written / "journal").glob("log-*.seg")
    whole = segment.read_bytes()
    scan = backup.Scan(whole, segment.name, is_last=True)
    last = list(scan.frames())[-1]
    with segment.open("ab") as file:  # half a frame, as a writer leaves it between two writes
        file.write(whole[last.position : last.end - 7])
    backup.backup(written, tmp_path / "copy", "t")
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


def test_progress_ends_at_the_size_of_the_copy(quiet, tmp_path):
    seen = []
    manifest = backup.backup(quiet, tmp_path / "copy", "t", lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen) and all(done < total for done, total in seen[:-1])
    assert seen[-1] == (seen[-1][1],) * 2 and seen[-1][1] >= sum(file.bytes for file in manifest.files.values())


def test_a_journal_without_a_watermark_is_refused_and_the_partial_copy_removed(quiet, tmp_path):
    data = Path(shutil.copytree(quiet, tmp_path / "data"))
    (data / "journal/watermark").unlink()
    with pytest.raises(PenstockError, match="no readable watermark") as caught:
        backup.backup(data, tmp_path / "copy", "t")
    assert (caught.value.code, bool(caught.value.refusal.hint)) == ("InvalidRequest", True)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_a_segment_without_a_committed_row_is_reported_as_damage(written, tmp_path):
    [segment] = (written / "journal").glob("log-*.seg")
    os.truncate(segment, segment.stat().st_size - 5)
    with pytest.raises(PenstockError, match="are missing") as caught:
        backup.backup(written, tmp_path / "copy", "t")
    assert caught.value.code == "JournalDamaged"
    assert not list(tmp_path.glob("copy*"))


# A damaged or hostile directory


def _put(data: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "empty": _put(b""),
    "half": lambda path: os.truncate(path, path.stat().st_size // 2),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "flipped": lambda path: path.write_bytes(bytes([path.read_bytes()[0] ^ 0x20]) + path.read_bytes()[1:]),
    "gone": Path.unlink,
    "directory": lambda path: (path.unlink(), path.mkdir()),
    "link": lambda path: (path.unlink(), path.symlink_to("/etc/passwd")),
    "pipe": lambda path: (path.unlink(), os.mkfifo(path)),
}
PLACES = ("journal/*", "lake/events/_delta_log/*", "lake/events/*/*.parquet", "lake/mine/_delta_log/*", "lake/mine/*/*")


@pytest.mark.promise("Operations", "a backup or restore of a damaged directory succeeds or says why, and never hangs")
@pytest.mark.parametrize("how", first_of(("all", *DAMAGES), 1))
def test_a_damaged_directory_is_copied_and_restored_or_refused(how, quiet, tmp_path, capsys):
    files = [path for place in PLACES for path in sorted(quiet.glob(place)) if path.is_file()]
    assert len(files) > 10
    cases = zip(files, [how] * len(files), strict=True) if how in DAMAGES else zip(files, DAMAGES, strict=False)
    results = set()
    for number, (file, damage) in enumerate(cases):
        case = tmp_path / str(number)
        shutil.copytree(quiet, case / "data")
        DAMAGES[damage](case / "data" / file.relative_to(quiet))
        codes = [main(["backup", str(case / "copy"), "--data", str(case / "data")])]
        if codes == [0]:
            codes.append(main(["restore", str(case / "copy"), "--data", str(case / "new")]))
        shown = capsys.readouterr().err
        results.add(tuple(codes))
        if codes[-1] != 0:
            assert shown.startswith("error: ") and "hint: " in shown, (file, shown)
        # What fails leaves nothing behind, and what was restored is sound.
        expected = {(1,): ["data"], (0, 1): ["copy", "data"], (0, 0): ["copy", "data", "new"]}[tuple(codes)]
        assert sorted(path.name for path in case.iterdir()) == expected
        assert codes != [0, 0] or audit(case / "new").is_sound
    assert (1,) in results and (0, 0) in results


def test_a_table_whose_file_was_cut_is_refused(quiet, tmp_path, capsys):
    data = shutil.copytree(quiet, tmp_path / "data")
    DAMAGES["half"](next(data.glob("lake/mine/*/*.parquet")))
    assert main(["backup", str(tmp_path / "copy"), "--data", str(data)]) == 1
    assert "changed during the copy, or it is damaged" in capsys.readouterr().err


@pytest.mark.parametrize("place", ["journal/log-*.seg", "lake/mine/_delta_log", "lake/theirs", "spaces/workshop"])
def test_no_file_is_copied_through_a_planted_link(place, quiet, tmp_path, capsys):
    """Backups may run as root, and a link in the directory of a server must not fetch what only root reads."""
    data = shutil.copytree(quiet, tmp_path / "data")
    secret = tmp_path / "secret"
    (secret / "_delta_log").mkdir(parents=True)
    for name in ("_delta_log/00000000000000000000.json", "shadow"):
        (secret / name).write_text("root only")
    planted = next(data.glob(place), data / place)
    shutil.rmtree(planted) if planted.is_dir() else planted.unlink(missing_ok=True)
    planted.symlink_to(secret / "shadow" if planted.suffix == ".seg" else secret)
    code = main(["backup", str(tmp_path / "copy"), "--data", str(data)])
    assert code == 0 or "symbolic links" in capsys.readouterr().err
    copied = [path.read_bytes() for path in (tmp_path / "copy").rglob("*") if path.is_file()]
    assert not any(b"root only" in content for content in copied)


@pytest.mark.promise("Operations", "a restore keeps every row and starts an epoch that readers notice")
def test_a_restored_journal_begins_an_epoch_that_readers_notice(quiet, tmp_path):
    main(["backup", str(tmp_path / "copy"), "--data", str(quiet)])
    main(["restore", str(tmp_path / "copy"), "--data", str(tmp_path / "data")])
    old, new = (read_identity(RealDisk(path / "journal")) for path in (quiet, tmp_path / "data"))
    assert new.id == old.id and new.epoch == old.epoch + 1
    assert read_watermark(RealDisk(tmp_path / "data/journal"))[1] == new.epoch


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


@pytest.mark.promise("Operations", "a restore keeps every row and starts an epoch that readers notice")
def test_envelopes_survive_the_way_through_a_backup_byte_for_byte(quiet, tmp_path):
    main(["backup", str(tmp_path / "copy"), "--data", str(quiet)])
    main(["restore", str(tmp_path / "copy"), "--data", str(tmp_path / "data")])

    def rows(data):
        reader = JournalReader(data)
        bounds = reader.bounds()
        return [batch.drop_columns(["epoch"]).to_pylist() for batch in reader.batches(bounds.first, bounds.end)]

    assert rows(tmp_path / "data") == rows(quiet)
    assert any(row["id"] == "d" for part in rows(quiet) for row in part)


def test_a_manifest_of_another_journal_is_rejected(quiet, tmp_path):
    manifest = backup.backup(quiet, tmp_path / "copy", "t")
    manifest.journal = "cd" * 16
    (tmp_path / "copy" / MANIFEST).write_bytes(msgspec.json.encode(manifest))
    with pytest.raises(PenstockError, match="another journal"):
        restore(tmp_path / "copy", tmp_path / "data")
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


def test_a_journal_that_was_damaged_before_its_backup_is_rejected(quiet, tmp_path):
    """Every digest matches, but the rows are not those that the watermark promises."""
    data = Path(shutil.copytree(quiet, tmp_path / "data"))
    [segment] = (data / "journal").glob("log-*.seg")
    os.truncate(segment, segment.stat().st_size - 5)
    backup.backup(data, tmp_path / "copy", "t")
    with pytest.raises(PenstockError, match="journal of the backup is damaged") as caught:
        restore(tmp_path / "copy", tmp_path / "restored")
    assert caught.value.code == "JournalDamaged"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "data"]


def test_progress_reaches_the_size_of_the_backup(quiet, tmp_path):
    total = sum(file.bytes for file in backup.backup(quiet, tmp_path / "copy", "t").files.values())
    seen = []
    restore(tmp_path / "copy", tmp_path / "data", lambda done, of: seen.append((done, of)))
    assert seen == sorted(seen) and seen[-1] == (total, total)
    assert (tmp_path / "data/journal").stat().st_mode & 0o777 == 0o700
