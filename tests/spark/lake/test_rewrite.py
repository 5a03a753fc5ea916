"""Merging rows by key: which files are rewritten, and which row wins."""

from __future__ import annotations

import os
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from threading import Event, Semaphore

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from penstock.journal.delta_log import CHANGES, CHECKPOINT_EVERY, KEPT_VERSIONS, SWEEP_AGE_S, DeltaLog
from penstock.spark.lake import rewrite
from penstock.spark.lake.catalog import summary
from penstock.spark.lake.rewrite import SMALL_ROWS
from penstock.spark.lake.schemas import AGENTS, TableDefinition
from penstock.spark.lake.table import LakeTable, Progress
from penstock.spark.lake.table_reader import LakeError
from tests.spark.lakes import APP, COUNTS, LATEST, NOTES, START, counted, counts, notes, offsets
from tests.tiers import first_of


def widened(table, *fields):
    """The same table as a later program knows it."""
    schema = table.schema
    for field in fields:
        schema = schema.append(field)
    return TableDefinition(table.name, schema, table.key, table.write, table.partition_by, table.newest)


def test_merging_replaces_by_key_and_touches_only_what_it_must(tmp_path):
    table = LakeTable(tmp_path, COUNTS)
    table.merge(counts({("a", 0): 1, ("b", 0): 1, ("a", 2_000): 1}), {APP: Progress(0, 1)})
    [other_day] = table.files({"date": (START.date() + timedelta(days=1), None)})
    table.merge(counts({("a", 0): 2, ("c", 0): 2}), {APP: Progress(1, 2)})
    assert counted(table.rows()) == {("a", 0): 2, ("b", 0): 1, ("c", 0): 2, ("a", 2_000): 1}
    assert other_day in table.files()
    assert table.merge(counts({("a", 0): 9}), {APP: Progress(1, 2)}) is False
    assert counted(table.rows(version=1)) == {("a", 0): 1, ("b", 0): 1, ("a", 2_000): 1}
    theirs = DeltaTable(str(table.path)).to_pyarrow_table()
    assert counted(theirs) == counted(table.rows())


def test_merging_leaves_the_bulk_of_a_large_file_by_itself(tmp_path):
    table = LakeTable(tmp_path, COUNTS)
    everything = {(f"c{number}", 0): 0 for number in range(SMALL_ROWS + 10)}
    table.merge(counts(everything), {APP: Progress(0, 1)})
    for number in range(1, 4):
        table.merge(counts({("c5", 0): number}), {APP: Progress(number, number + 1)})
    assert counted(table.rows()) == everything | {("c5", 0): 3}
    assert sorted(file.rows for file in table.files()) == [1, SMALL_ROWS + 9]


def test_the_newest_row_wins(tmp_path):
    table = LakeTable(tmp_path, LATEST)

    def latest(*pairs):
        rows = [{"journal": "j1", "address": address, "offset": offset, "tags": None} for address, offset in pairs]
        return pa.Table.from_pylist(rows, LATEST.schema)

    table.merge(latest(("sam", 5), ("kim", 7), ("sam", 4)), {APP: Progress(0, 8)})
    table.merge(latest(("sam", 3), ("kim", 9), ("ann", 1), ("ann", 2)), {"backfill": Progress(0, 1)})
    found = {row["address"]: row["offset"] for row in table.rows().to_pylist()}
    assert found == {"sam": 5, "kim": 9, "ann": 2}
    version = len(table.files())
    table.merge(latest(("sam", 1)), {"backfill": Progress(1, 2)})
    assert len(table.files()) == version and table.progress("backfill") == 2


def test_a_merged_table_grows_columns_too(tmp_path):
    LakeTable(tmp_path, COUNTS).merge(counts({("a", 0): 1, ("b", 0): 1}), {APP: Progress(0, 1)})
    later = LakeTable(tmp_path, widened(COUNTS, pa.field("final", pa.bool_())))
    later.merge(counts({("a", 0): 2}).append_column("final", pa.array([True])), {APP: Progress(1, 2)})
    found = {row["channel"]: (row["n"], row["final"]) for row in later.rows().to_pylist()}
    assert found == {"a": (2, True), "b": (1, None)}


COMMITS = 400
DAY_S = 86_400


class Clock:
    """Time that moves only on request."""

    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


def entries(table):
    return len(list(table.log.path.iterdir()))


@pytest.mark.more
@pytest.mark.promise("Spark: pipeline", "compaction merges small files within bounds, without disturbing readers")
def test_a_day_of_commits_stays_within_the_bounds(tmp_path):
    clock = Clock()
    table = LakeTable(tmp_path, NOTES, clock)
    files_max = entries_max = 0
    held = None
    for number in range(COMMITS):
        clock.now += DAY_S / COMMITS
        rows = notes(number, number + 1, step_s=DAY_S / COMMITS)
        assert table.append(rows, {APP: Progress(number, number + 1)})
        table.compact()
        if number % 10 == 0:
            by_date = Counter(file.partition["date"] for file in table.files())
            files_max = max(files_max, *by_date.values())
            entries_max = max(entries_max, entries(table))
        if number == COMMITS - 100:
            held = table.version(), offsets(table.rows())
    assert files_max <= 200
    assert entries_max <= KEPT_VERSIONS + 3 * CHECKPOINT_EVERY < 1_000
    assert offsets(table.rows()) == list(range(COMMITS))
    assert table.progress(APP) == COMMITS

    # Every version that is kept can be read, by number and by time, by us and by Delta's own reader.
    kept = table.log.kept()
    assert len(kept) >= KEPT_VERSIONS
    version, seen = held
    assert version in kept
    assert offsets(table.rows(version=version)) == seen
    for one in (kept.start, kept.stop - 1):
        theirs = DeltaTable(str(table.path), version=one).to_pyarrow_table()
        assert offsets(theirs) == offsets(table.rows(version=one))
    assert table.version_at(int(time.time() * 1000) + 1000) == table.version()
    with pytest.raises(LakeError, match=f"version 1 .* kept are {kept.start} to {kept.stop - 1}"):
        table.rows(version=1)
    # What is on the disk is what the kept versions speak of, and what the last hour left.
    clock.now += 2 * SWEEP_AGE_S
    table.compact()
    spoken_of = set()
    for one in table.log.kept()[::20]:
        spoken_of |= {file.path for file in table.files(version=one)}
    on_disk = {
        path.relative_to(table.path).as_posix()
        for path in table.path.rglob("*.parquet")
        if "_delta_log" not in path.parts
    }
    assert spoken_of <= on_disk
    assert offsets(table.rows()) == list(range(COMMITS))


def test_a_merged_table_stays_small_and_whole(tmp_path):
    clock = Clock()
    table = LakeTable(tmp_path, COUNTS, clock)
    model = {}
    for number in range(160):
        clock.now += 20
        change = {
            (f"c{channel}", minute): number for channel in range(3) for minute in (number // 10, number // 10 + 1)
        }
        model |= change
        assert table.merge(counts(change), {APP: Progress(number, number + 1)})
        table.compact()
    assert counted(table.rows()) == model
    assert len(table.files()) <= 50
    clock.now += 2 * SWEEP_AGE_S
    table.compact()
    kept = {file.path for version in table.log.kept() for file in table.files(version=version)}
    data = [path for path in table.path.rglob("*.parquet") if not {"_delta_log", CHANGES} & set(path.parts)]
    assert len(data) <= len(kept)
    changed = list((table.path / CHANGES).rglob("*.parquet"))
    assert 100 < len(changed) <= len(table.log.kept()), "the changes of kept versions stay"
    assert len(counted(table.rows(version=100))) == 33  # three channels, eleven minutes by then


def test_files_are_merged_by_tier_and_progress_stays(tmp_path):
    table = LakeTable(tmp_path, NOTES)
    for number in range(rewrite.TIER_FILES):
        table.append(notes(number, number + 1), {APP: Progress(number, number + 1)})
    before = table.rows().sort_by("offset")
    assert table.compact_files() == (rewrite.TIER_FILES, 1)
    assert table.compact_files() == (0, 0)
    assert table.rows().sort_by("offset").equals(before)
    assert table.progress(APP) == rewrite.TIER_FILES
    assert table.append(notes(0, 1), {APP: Progress(0, 1)}) is False
    [file] = table.files()
    assert (file.least["offset"], file.greatest["offset"]) == (0, rewrite.TIER_FILES - 1)


def test_only_old_unreferenced_files_are_removed(tmp_path):
    table = LakeTable(tmp_path, NOTES)
    table.append(notes(0, 3), {APP: Progress(0, 3)})
    [orphan] = table.stage(notes(3, 4).to_batches())
    draft = table.path / ".part-x.parquet.tmp"
    draft.write_bytes(b"torn")
    assert table.log.sweep(time.time()) == (0, 0)
    assert table.log.sweep(time.time() + SWEEP_AGE_S + 5)[0] == 2
    assert not draft.exists() and not (table.path / orphan.path).exists()
    assert offsets(table.rows()) == [0, 1, 2]


def test_a_replaced_file_is_young_again(tmp_path):
    """Its age counts from when it was replaced: a query that began before may still read it."""
    clock = Clock()
    table = LakeTable(tmp_path, COUNTS, clock)
    table.merge(counts({("a", 0): 1}), {APP: Progress(0, 1)})
    [old] = table.files()
    os.utime(table.path / old.path, (1, 1))
    table.merge(counts({("a", 0): 2}), {APP: Progress(1, 2)})
    for number in range(2, KEPT_VERSIONS + 120):  # until no kept version speaks of it
        table.append(COUNTS.schema.empty_table(), {APP: Progress(number, number + 1)})
    rewrite.shorten(table)
    assert table.log.kept().start > 2
    assert table.log.sweep(clock.now + 60)[0] == 0
    assert (table.path / old.path).exists()
    assert table.log.sweep(clock.now + SWEEP_AGE_S + 60)[0] == 2, "it, and the file of changes"


@pytest.mark.promise("Spark: pipeline", "compaction merges small files within bounds, without disturbing readers")
@pytest.mark.parametrize("commits", first_of((21, 60), 1))
def test_readers_do_not_notice(tmp_path, commits):
    writer = LakeTable(tmp_path, NOTES)
    writer.append(notes(0, 1), {APP: Progress(0, 1)})
    done, turns = Event(), Semaphore(0)

    def read():
        reader, seen = LakeTable(tmp_path, NOTES), 0
        while turns.acquire(timeout=30) and not done.is_set():
            found = offsets(reader.rows(["offset"]))
            assert found == list(range(len(found))) and len(found) >= seen
            seen = len(found)
        return seen

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        try:
            for number in range(1, commits):
                turns.release(3)  # reads while this commit is made
                writer.append(notes(number, number + 1), {APP: Progress(number, number + 1)})
                if number % 10 == 0:
                    writer.compact(is_forced=True)
        finally:
            done.set()
            turns.release(2)
        assert all(reader.result(30) > 0 for reader in readers)


def test_upkeep_comes_by_itself_and_not_too_often(tmp_path):
    clock = Clock()
    table = LakeTable(tmp_path, NOTES, clock)
    assert table.compact() == 0
    for number in range(rewrite.EVERY_COMMITS + 1):
        table.append(notes(number, number + 1), {APP: Progress(number, number + 1)})
    assert table.compact() > 0
    end = table.progress(APP) or 0
    for number in range(end, end + rewrite.TIER_FILES):
        table.append(notes(number, number + 1), {APP: Progress(number, number + 1)})
    assert table.compact() == 0
    clock.now += rewrite.EVERY_S
    assert table.compact() > 0


def test_a_log_without_a_checkpoint_far_enough_back_is_left_alone(tmp_path):
    table = LakeTable(tmp_path, NOTES)
    table.append(notes(0, 1), {APP: Progress(0, 1)})
    log = DeltaLog(table.path)
    assert log.kept() == range(2)
    assert log.shorten() == 0 and log.shorten(kept_versions=0) == 0
    table.delta().create_checkpoint()
    assert log.shorten(kept_versions=0) == 1
    assert log.kept() == range(1, 2)
    assert offsets(LakeTable(tmp_path, NOTES).rows()) == [0]
    assert DeltaLog(tmp_path / "nothing").kept() == range(0)


def latest_at(days: dict[str, float], now: float, *, offset: int = 0):
    """Rows of the table `agents`, each with the days since its time."""
    rows = [
        {
            "journal": "j1",
            "cluster": "j1",
            "agent": name,
            "offset": offset,
            "last_at": datetime.fromtimestamp(now - age * DAY_S, UTC),
        }
        for name, age in days.items()
    ]
    return pa.Table.from_pylist(rows, AGENTS.schema)


@pytest.mark.promise("Spark: pipeline", "rows older than a table's retention are removed, and their files with them")
def test_old_rows_expire_by_partition(tmp_path):
    clock = Clock()
    clock.now = (START + timedelta(days=5, hours=1)).timestamp()
    table = LakeTable(tmp_path, NOTES, clock)
    table.append(notes(0, 6, step_s=DAY_S), {APP: Progress(0, 6)})
    files = {file.partition["date"]: file for file in table.files()}
    assert table.expire() == 0
    assert table.expire("2d") == 3
    assert offsets(table.rows()) == [3, 4, 5]
    assert all(file in files.values() for file in table.files())  # what stays is not rewritten
    assert table.progress(APP) == 6 and summary(tmp_path, NOTES.name).retention == "2d"
    assert table.expire() == 0
    # The versions that still hold the rows go after a day, and their files with them.
    for entry in table.log.path.iterdir():
        os.utime(entry, (clock.now, clock.now))
    clock.now += 2 * DAY_S
    table.compact(is_forced=True)
    assert not any(
        (table.path / file.path).exists() for day, file in files.items() if day < START.date() + timedelta(3)
    )
    assert offsets(LakeTable(tmp_path, NOTES).rows()) == [5]
    assert table.expire("") == 0 and table.retention() is None
    clock.now += 30 * DAY_S
    assert table.compact(is_forced=True) == 0 and offsets(table.rows()) == [5]


def test_old_rows_of_a_table_without_dates_expire_by_their_newest_time(tmp_path):
    clock = Clock()
    table = LakeTable(tmp_path, AGENTS, clock)
    for number, days in enumerate(({"old": 50, "older": 60}, {"kept": 1, "new": 0}, {"gone": 12, "stays": 2})):
        table.append(latest_at(days, clock.now), {APP: Progress(number, number + 1)})
    untouched = next(file for file in table.files() if file.least["agent"] == "kept")
    assert table.expire("10d") == 3
    assert sorted(table.rows().column("agent").to_pylist()) == ["kept", "new", "stays"]
    assert untouched in table.files()
    # A file is rewritten at most once a day: a row that has just expired waits for the others.
    table.merge(latest_at({"edge": 10.5, "new": 0}, clock.now), {APP: Progress(3, 4)})
    assert table.expire() == 0
    clock.now += DAY_S
    assert table.expire() == 1
    assert table.merge(latest_at({"old": 0}, clock.now, offset=9), {APP: Progress(4, 5)})
    assert sorted(table.rows().column("agent").to_pylist()) == ["kept", "new", "old", "stays"]


def test_a_key_column_without_a_value_matches_no_file(tmp_path):
    table = LakeTable(tmp_path, LATEST)
    row = {"journal": "j1", "address": "sam", "offset": 1, "tags": None}
    table.merge(pa.Table.from_pylist([row], LATEST.schema), {APP: Progress(0, 1)})

    def found(*names):
        keys = pa.table({"journal": ["j1"] * len(names), "address": pa.array(names, pa.string())})
        return rewrite.candidates(table.files(), keys, LATEST.key, table.filters, LATEST.filters)

    assert found(None, None) == found() == []
    assert found(None, "sam") == table.files()
