"""The change feed of a table: the rows that each version changes, as another reader of Delta sees them too."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from penstock.journal.delta_log import CHANGES
from penstock.journal.lake_location import remove_tree
from penstock.spark.lake import commits, data_files, rewrite
from penstock.spark.lake.commits import FEED_COLUMNS, FEED_SETTINGS, ChangeFeed, feed_setting, last_of_each
from penstock.spark.lake.schemas import TABLES, TableDefinition
from penstock.spark.lake.table import LakeTable, Progress
from penstock.spark.lake.table_reader import LakeError
from tests.object_store import ObjectStore
from tests.spark.lakes import APP, COUNTS, NOTES, START, counted, counts, notes

Change = tuple[int, str, str, int]


def shown(rows: list[dict[str, Any]]) -> list[Change]:
    return sorted((row["_commit_version"], row["_change_type"], row["channel"], row["n"]) for row in rows)


def ours(table: LakeTable, first: int = 0) -> list[dict[str, Any]]:
    feed = ChangeFeed(table, has_updates=True)
    schema = pa.schema([*table.schema(), *FEED_COLUMNS])
    files = feed.files(range(first, (table.version() or 0) + 1))
    return [
        row for file in files for batch in data_files.batches(table.path, file, schema) for row in batch.to_pylist()
    ]


def theirs(table: LakeTable, first: int = 0) -> list[dict[str, Any]]:
    return pa.table(DeltaTable(str(table.path)).load_cdf(starting_version=first)).to_pylist()


def plain(rows: list[dict[str, Any]]) -> list[str]:
    at = "_commit_timestamp"  # delta-rs leaves the time zone out
    return sorted(repr(sorted({**row, at: row[at].replace(tzinfo=None)}.items())) for row in rows)


@pytest.mark.promise("The lake", "the change feed of a table whose rows are replaced, also for other readers of Delta")
def test_every_change_is_in_the_feed_once(tmp_path: Path) -> None:
    table = LakeTable(tmp_path, COUNTS)
    next_day = 2_000
    table.merge(counts({("a", 0): 1, ("b", 0): 1, ("c", next_day): 1}), {APP: Progress(0, 1)})
    table.merge(counts({("a", 0): 2, ("d", 0): 1, ("c", next_day): 3}), {APP: Progress(1, 2)})
    table.merge(counts({("e", 0): 2}), {APP: Progress(2, 3)}, counts({("b", 0): 0, ("none", 0): 0}))
    for number in range(4):
        table.append(counts({(f"f{number}", 0): 1}), {APP: Progress(3 + number, 4 + number)})
    assert table.compact_files(files_min=2) == (5, 1), "compaction is not a change"
    table.merge(counts({}), {APP: Progress(9, 10)})
    table.overwrite(counts({("q", 0): 7}), {})
    assert shown(ours(table, 1))[:10] == [
        (1, "insert", "a", 1), (1, "insert", "b", 1), (1, "insert", "c", 1),
        (2, "insert", "d", 1), (2, "update_postimage", "a", 2), (2, "update_postimage", "c", 3),
        (2, "update_preimage", "a", 1), (2, "update_preimage", "c", 1),
        (3, "delete", "b", 1), (3, "insert", "e", 2),
    ]  # fmt: skip
    assert [row[0] for row in shown(ours(table))][10:] == [4, 5, 6, 7] + [10] * 9
    assert plain(ours(table)) == plain(theirs(table))
    assert counted(table.rows()) == {("q", 0): 7} and counted(table.rows(version=8))[("a", 0)] == 2
    assert table.progress(APP) == 10 and [one.operation for one in table.history(2)] == ["overwrite", "merge"]


def test_commits_with_changes_write_checkpoints_and_overwrite_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "CHECKPOINT_EVERY", 3)
    table = LakeTable(tmp_path, COUNTS)
    for number in range(4):
        table.merge(counts({("a", 0): number}), {APP: Progress(number, number + 1)})
    assert sorted(table.log.checkpoints()) == [3] and (table.log.path / "_last_checkpoint").exists()
    (table.log.path / f"{0:020d}.json").unlink()
    assert counted(LakeTable(tmp_path, COUNTS).rows()) == {("a", 0): 3}
    with table.writing(), pytest.raises(LakeError, match=r"another program wrote version 4 .* one writer"):
        table._write_entry(4, [])
    assert not list(table.path.glob(".*.tmp")), "a commit that fails leaves no draft"


def test_a_lake_of_an_earlier_version_gets_the_feed_with_its_next_write(tmp_path: Path) -> None:
    earlier = TableDefinition("counts", COUNTS.schema, COUNTS.key, "append", COUNTS.partition_by)
    old = LakeTable(tmp_path, earlier)
    old.append(counts({("a", 0): 1}), {APP: Progress(0, 1)})
    old.overwrite(counts({("a", 0): 2}), {})
    table = LakeTable(tmp_path, COUNTS)
    table.merge(counts({("a", 0): 3}), {APP: Progress(1, 2)})
    assert (table.version(), DeltaTable(str(table.path)).protocol().min_writer_version) == (4, 4)
    LakeTable(tmp_path, COUNTS).merge(counts({("a", 0): 4}), {APP: Progress(2, 3)})
    assert table.version() == 5, "the property is set once"
    assert shown(ours(table, 3)) == shown(theirs(table, 3)) and len(ours(table, 3)) == 4
    with pytest.raises(LakeError, match=r"version 2 of table `counts` .* the change feed was off .* version is 3"):
        ours(table, 1)


def test_a_table_may_do_without(tmp_path: Path) -> None:
    table = LakeTable(tmp_path, COUNTS)
    table.merge(counts({("a", 0): 1}), {})
    DeltaTable(str(table.path)).alter.set_table_properties({FEED_SETTINGS[0]: "false"})
    table = LakeTable(tmp_path, COUNTS)
    table.merge(counts({("a", 0): 2}), {})
    assert not (table.path / CHANGES).exists()
    with pytest.raises(LakeError, match=r"the change feed was off .* the first readable version is 4"):
        ours(table, 3)
    mirror = TableDefinition("mirror", pa.schema([*COUNTS.schema, *FEED_COLUMNS]), COUNTS.key, "merge")
    assert feed_setting(tmp_path, mirror, {}) == {}, "its columns have the names of the feed's"
    assert feed_setting(tmp_path, NOTES, {}) == {}
    merged = {name for name, one in TABLES.items() if feed_setting(tmp_path, one, {})}
    assert merged == {name for name, one in TABLES.items() if one.write == "merge"}


def test_a_table_that_only_grows_needs_no_feed(tmp_path: Path) -> None:
    table = LakeTable(tmp_path, NOTES)
    table.append(notes(0, 2), {APP: Progress(0, 2)})
    table.append(notes(2, 5), {APP: Progress(2, 5)})
    for has_updates in (True, False):
        feed = ChangeFeed(table, has_updates=has_updates)
        found = feed.files(range(3))
        assert [file.partition["_change_type"] for file in found] == ["insert", "insert"]
    assert [file.partition["_commit_version"] for file in feed.snapshot(2)] == [2, 2]
    table.overwrite(notes(0, 1), {})
    with pytest.raises(LakeError, match=r"version 3 .* updates or deletes rows.*readChangeFeed.* version is 4"):
        feed.files(range(4))


def test_rows_that_expire_are_deleted_in_the_feed(tmp_path: Path) -> None:
    schema = pa.schema({"id": pa.string(), "channel": pa.string(), "n": pa.int64(), "at": pa.timestamp("us", tz="UTC")})
    now = START + timedelta(days=30)

    def rows(ages: dict[str, int]) -> pa.Table:
        some = [{"id": one, "channel": one, "n": age, "at": now - timedelta(days=age)} for one, age in ages.items()]
        return pa.Table.from_pylist(some, schema)

    for write in ("merge", "append"):
        table = LakeTable(tmp_path / write, TableDefinition("own", schema, ("id",), write), now.timestamp)  # type: ignore[arg-type]
        table.append(rows({"old": 20, "new": 1}), {})
        table.append(rows({"gone": 19}), {})
        assert table.expire("7d") == 2
        first = 3 if write == "merge" else 1
        expected = [(4, "delete", "gone", 19), (5, "delete", "old", 20)] if write == "merge" else []
        found = [one for one in shown(ours(table, first)) if one[0] > 3]
        assert found == expected, "of a table without the feed only inserted rows are shown"
        if write == "merge":
            assert plain(ours(table)) == plain(theirs(table))


@pytest.mark.promise("The lake", "changes that are no longer kept are an error that names the first readable version")
def test_what_is_vacuumed_or_erased_is_an_error_that_names_the_first_readable_version(tmp_path: Path) -> None:
    table = LakeTable(tmp_path, COUNTS)
    for number in range(6):
        table.merge(counts({("a", 0): number}), {APP: Progress(number, number + 1)})
        if number == 3:
            table.log.checkpoint()
    table.log.shorten(kept_versions=1)
    swept, _ = table.log.sweep(table.clock() + 7_200)
    assert swept == 2 + 3 and table.log.kept() == range(4, 7)
    feed = ChangeFeed(table, has_updates=True)
    assert feed.first() == 4 and len(ours(table, 4)) == 6
    with pytest.raises(
        LakeError,
        match=r"version 3 .* has versions 4 to 6.*first readable version is 4: with a new checkpoint, set `startingV",
    ):
        ours(table, 3)
    with table.writing():
        table._commit(table._ready(), "erase", {}, [], table.live(table._ready()))
    table.merge(counts({("b", 0): 1}), {APP: Progress(6, 7)})
    with pytest.raises(LakeError, match=r"version 7 .* it erased rows.* version is 8"):
        ours(table, 4)
    assert shown(ours(table, 8)) == [(8, "insert", "b", 1)]


def test_paths_of_other_writers_are_removed_as_the_log_spells_them(tmp_path: Path) -> None:
    there = pa.table({"k": ["a", "b"], "p": ["x y", "ü%~"], "v": [1, 2]})
    write_deltalake(tmp_path / "own", there, partition_by=["p"])
    definition = TableDefinition("own", there.schema, ("k",), "merge", ("p",))
    table = LakeTable(tmp_path, definition)
    table.merge(pa.table({"k": ["a", "b"], "p": ["x y", "ü%~"], "v": [5, 6]}), {})
    assert sorted(DeltaTable(str(table.path)).to_pyarrow_table()["v"].to_pylist()) == [5, 6]
    assert plain(ours(table, 1)) == plain(theirs(table, 1)) and len(ours(table, 1)) == 4


def test_the_last_change_of_each_key_is_applied() -> None:
    def row(version: int, kind: str, channel: str, n: int) -> dict[str, Any]:
        return {"channel": channel, "n": n, "_change_type": kind, "_commit_version": version}

    feed = [
        row(2, "update_postimage", "a", 2), row(2, "update_preimage", "a", 1), row(1, "insert", "a", 1),
        row(3, "delete", "b", 1), row(1, "insert", "b", 1),
        row(4, "insert", "c", 9), row(4, "delete", "c", 8),
    ]  # fmt: skip
    kept, dropped = last_of_each(pa.Table.from_pylist(feed), ["channel"])
    assert kept.to_pylist() == [{"channel": "a", "n": 2}, {"channel": "c", "n": 9}]
    assert dropped.to_pylist() == [{"channel": "b", "n": 1}]
    assert rewrite.keys_of(kept, ["channel"]) == [("a",), ("c",)]


@pytest.mark.more
@pytest.mark.parametrize("lost", ["", "PUT _delta_log/0", "PUT _change_data"])
def test_a_feed_in_an_object_store(object_store: ObjectStore, tmp_path: Path, lost: str) -> None:
    table = LakeTable(object_store.lake(tmp_path), COUNTS)
    table.merge(counts({("a", 0): 1, ("b", 0): 1}), {APP: Progress(0, 1)})
    if lost:
        object_store.break_answers(lost)
    table.merge(counts({("a", 0): 2}), {APP: Progress(1, 2)}, counts({("b", 0): 0}))
    assert shown(ours(table, 2)) == [
        (2, "delete", "b", 1), (2, "update_postimage", "a", 2), (2, "update_preimage", "a", 1)
    ]  # fmt: skip
    table.overwrite(counts({("c", 0): 1}), {})
    assert shown(ours(table, 3)) == [(3, "delete", "a", 2), (3, "insert", "c", 1)]
    assert table.log.sweep(table.clock() + 7_200)[0] == 0 and len(ours(table)) == 7
    remove_tree(table.path / CHANGES)
    assert ChangeFeed(table, has_updates=True).first() == 3
