"""Tables of the lake, without Spark: every row once, whatever is replayed, merged, added or raced."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import threading
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, TableFeatures, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.journal.delta_log import table_names
from penstock.spark.lake import compaction
from penstock.spark.lake.catalog import open_table, summary
from penstock.spark.lake.data_files import SchemaError
from penstock.spark.lake.merge import SMALL_ROWS
from penstock.spark.lake.schemas import TABLES, TableDefinition
from penstock.spark.lake.snapshots import LakeError
from penstock.spark.lake.table import LakeTable, Progress
from tests.server_process import environment
from tests.spark.lakes import APP, COUNTS, LATEST, NOTES, START, counted, counts, notes, offsets


def widened(table, *fields):
    """The same table as a later program knows it."""
    schema = table.schema
    for field in fields:
        schema = schema.append(field)
    return TableDefinition(table.name, schema, table.key, table.write, table.partition_by, table.newest)


@pytest.mark.promise("Spark: pipeline", "progress in the table; writers killed lose and double nothing")
def test_a_replay_changes_nothing_even_of_number_zero(tmp_path):
    table = LakeTable(tmp_path, NOTES)
    assert table.progress(APP) is None and table.fresh_from(APP) == 0
    assert table.append(notes(0, 1), {"stream": Progress(0, 0)})
    assert table.progress("stream") == 0
    assert table.append(notes(0, 1), {"stream": Progress(0, 0)}) is False
    assert table.append(notes(1, 5), {APP: Progress(1, 5)})
    version = table.version()
    assert table.append(notes(1, 5), {APP: Progress(1, 5)}) is False
    assert (
        table.append(notes(1, 3), {APP: Progress(1, 3)}) is False
    )  # Delta itself would take the lower number
    assert table.fresh_from(APP) == 5 and table.version() == version
    assert offsets(table.rows()) == [0, 1, 2, 3, 4]


def test_an_overlap_is_refused_and_says_where_to_begin(tmp_path):
    table = LakeTable(tmp_path, NOTES)
    table.append(notes(0, 5), {APP: Progress(0, 5)})
    with pytest.raises(LakeError, match=r"rows 3 to 4 .* begin at 5"):
        table.append(notes(3, 8), {APP: Progress(3, 8)})
    assert table.append(notes(5, 8), {APP: Progress(5, 8)})
    assert offsets(table.rows()) == list(range(8))


def test_a_commit_without_rows_moves_the_progress(tmp_path):
    table = LakeTable(tmp_path, NOTES)
    assert table.append(NOTES.schema.empty_table(), {APP: Progress(0, 10)})
    assert table.append([], {APP: Progress(10, 20)})
    assert LakeTable(tmp_path, NOTES).progress(APP) == 20
    assert table.rows().num_rows == 0 and table.files() == []
    merged = LakeTable(tmp_path, COUNTS)
    assert merged.merge(counts({}), {APP: Progress(0, 10)}) and merged.progress(APP) == 10


def test_rows_come_back_as_they_went_in_to_everybody(tmp_path):
    table = LakeTable(tmp_path, NOTES)
    rows = notes(86_390, 86_410)  # over midnight
    table.append(rows, {APP: Progress(86_390, 86_410)})
    assert {file.path.split("/")[0] for file in table.files()} == {"date=2026-03-01", "date=2026-03-02"}
    assert table.rows().sort_by("offset").equals(rows)
    theirs = DeltaTable(str(table.path))
    assert theirs.to_pyarrow_table().sort_by("offset").to_pylist() == rows.to_pylist()
    # Statistics let Delta's readers skip files, and must never let them skip too many.
    for predicate in (
        "offset = 86400",
        "journal = 'j1' and offset >= 86409",
        "recorded_at >= '2026-03-02T00:00:09Z'",
    ):
        assert pa.table(theirs.scan(predicate=predicate).read_all()).num_rows == 1
    assert table.rows(["text"], pc.field("offset") == 86_395).to_pylist() == [{"text": "note 86395"}]
    with pytest.raises(LakeError, match="no column `nope`"):
        table.rows(["nope"])


def test_files_are_told_apart_by_their_bounds(tmp_path):
    table = LakeTable(tmp_path, NOTES)
    for first in (0, 10, 20):
        table.append(notes(first, first + 10), {APP: Progress(first, first + 10)})
    assert [file.least["offset"] for file in table.files({"offset": (25, None)})] == [20]
    assert [file.least["offset"] for file in table.files({"offset": (None, 5)})] == [0]
    at = START + timedelta(seconds=15)
    assert [file.least["offset"] for file in table.files({"recorded_at": (at, at)})] == [10]
    assert table.files({"date": (START.date() + timedelta(days=1), None)}) == []
    assert len(table.files({"text": ("x", None)})) == 3  # nothing is known of it
    assert len(table.files(version=1)) == 1


def test_several_applications_come_forward_together(tmp_path):
    table = LakeTable(tmp_path, NOTES)
    assert table.append(notes(0, 2), {"j1/0": Progress(0, 2), "j2/0": Progress(5, 9)})
    assert (table.progress("j1/0"), table.progress("j2/0")) == (2, 9)
    assert table.append(notes(2, 4), {"j1/0": Progress(2, 4), "j2/0": Progress(5, 9)})
    assert table.append(notes(2, 4), {"j1/0": Progress(2, 4), "j2/0": Progress(5, 9)}) is False
    newest, first = table.history()[:2]
    assert (newest.app, newest.first, newest.end) == ("j1/0", 2, 4)
    assert (first.first, first.end) == ({"j1/0": 0, "j2/0": 5}, {"j1/0": 2, "j2/0": 9})


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
        rows = [
            {"journal": "j1", "address": address, "offset": offset, "tags": None} for address, offset in pairs
        ]
        return pa.Table.from_pylist(rows, LATEST.schema)

    table.merge(latest(("sam", 5), ("kim", 7), ("sam", 4)), {APP: Progress(0, 8)})
    table.merge(latest(("sam", 3), ("kim", 9), ("ann", 1), ("ann", 2)), {"backfill": Progress(0, 1)})
    found = {row["address"]: row["offset"] for row in table.rows().to_pylist()}
    assert found == {"sam": 5, "kim": 9, "ann": 2}
    version = len(table.files())
    table.merge(latest(("sam", 1)), {"backfill": Progress(1, 2)})
    assert len(table.files()) == version and table.progress("backfill") == 2


@pytest.mark.parametrize(
    ("table", "rows", "message"),
    [
        (COUNTS, counts({("a", 0): 1}).drop_columns(["channel"]), "column `channel` .* is missing"),
        (COUNTS, pa.concat_tables([counts({("a", 0): 1})] * 2), "same key .*channel=a"),
        (COUNTS, counts({(None, 0): 1}), "column `channel` .* is null"),
        (NOTES, notes(0, 1).append_column("extra", pa.array([1])), "no column `extra`"),
        (
            NOTES,
            notes(0, 1).set_column(1, "offset", pa.array(["0"])),
            "column `offset` .* is int64, .* string",
        ),
    ],
)
def test_rows_that_do_not_fit_are_refused_by_name(tmp_path, table, rows, message):
    lake = LakeTable(tmp_path, table)
    write = lake.merge if table.write == "merge" else lake.append
    with pytest.raises(SchemaError, match=message):
        write(rows, {APP: Progress(0, 1)})
    assert lake.progress(APP) is None and lake.rows().num_rows == 0


def test_another_encoding_of_the_same_values_fits(tmp_path):
    table = LakeTable(tmp_path, NOTES)
    rows = notes(0, 3)
    other = rows.set_column(0, "journal", rows.column("journal").dictionary_encode())
    other = other.set_column(6, "text", rows.column("text").cast(pa.large_string()))
    other = other.set_column(1, "offset", rows.column("offset").cast(pa.int32()))
    table.append(other, {APP: Progress(0, 3)})
    assert table.rows().sort_by("offset").equals(rows)


def test_columns_are_added_and_never_retyped(tmp_path):
    LakeTable(tmp_path, NOTES).append(notes(0, 2), {APP: Progress(0, 2)})
    later = LakeTable(tmp_path, widened(NOTES, pa.field("score", pa.float64())))
    later.append(notes(2, 3).append_column("score", pa.array([0.5])), {APP: Progress(2, 3)})
    assert later.rows().sort_by("offset").column("score").to_pylist() == [None, None, 0.5]
    # A program that does not know the column keeps it, and loses nothing when it writes files anew.
    earlier = LakeTable(tmp_path, NOTES)
    earlier.append(notes(3, 4), {APP: Progress(3, 4)})
    earlier.compact_files(files_min=2)
    assert earlier.rows().sort_by("offset").column("score").to_pylist() == [None, None, 0.5, None]
    retyped = LakeTable(tmp_path, widened(NOTES, pa.field("score", pa.string())))
    with pytest.raises(SchemaError, match=r"column `score` .* is double, not string"):
        retyped.append(notes(4, 5), {APP: Progress(4, 5)})
    moved = TableDefinition(NOTES.name, NOTES.schema, NOTES.key, "append", ())
    with pytest.raises(SchemaError, match="partitioned by"):
        LakeTable(tmp_path, moved).append(notes(4, 5), {APP: Progress(4, 5)})


def test_a_merged_table_grows_columns_too(tmp_path):
    LakeTable(tmp_path, COUNTS).merge(counts({("a", 0): 1, ("b", 0): 1}), {APP: Progress(0, 1)})
    later = LakeTable(tmp_path, widened(COUNTS, pa.field("final", pa.bool_())))
    later.merge(counts({("a", 0): 2}).append_column("final", pa.array([True])), {APP: Progress(1, 2)})
    found = {row["channel"]: (row["n"], row["final"]) for row in later.rows().to_pylist()}
    assert found == {"a": (2, True), "b": (1, None)}


def test_executors_stage_and_the_driver_commits_once(tmp_path):
    table = LakeTable(tmp_path, NOTES)
    on_executor = pickle.loads(pickle.dumps(table))
    files = on_executor.stage(notes(0, 10).to_batches(max_chunksize=3))
    assert table.delta() is None  # staged rows are nobody's
    sent = pickle.loads(pickle.dumps(files))
    assert table.append(sent, {APP: Progress(0, 10)})
    again = on_executor.stage(notes(0, 10).to_batches())
    assert table.append(again, {APP: Progress(0, 10)}) is False
    assert not any((table.path / file.path).exists() for file in again)
    assert offsets(table.rows()) == list(range(10))


def test_a_stage_that_fails_leaves_nothing(tmp_path):
    table = LakeTable(tmp_path, NOTES)

    def batches():
        yield from notes(0, 3).to_batches()
        raise RuntimeError("task killed")

    with pytest.raises(RuntimeError, match="task killed"):
        table.stage(batches())
    assert [path for path in table.path.rglob("*") if path.is_file()] == []


def test_a_rebuilt_table_is_swapped_in_by_one_commit(tmp_path):
    live = LakeTable(tmp_path, NOTES)
    live.append(notes(0, 5), {APP: Progress(0, 5)})
    live.append(notes(5, 9), {APP: Progress(5, 9)})
    before = live.version()
    fresh = LakeTable(tmp_path / "_rebuild", NOTES)
    fresh.append(notes(0, 7), {APP: Progress(0, 7)})
    live.replace_with(fresh, [APP])
    shutil.rmtree(tmp_path / "_rebuild")
    assert offsets(live.rows()) == list(range(7))
    assert live.progress(APP) == 7 and live.version() == before + 1  # what it has, not what the old one had
    assert offsets(live.rows(version=before)) == list(range(9))
    assert len(live.files({"offset": (6, None)})) == 1
    assert live.append(notes(7, 9), {APP: Progress(7, 9)})
    assert offsets(live.rows()) == list(range(9))
    with pytest.raises(LakeError, match="no table at"):
        live.replace_with(LakeTable(tmp_path / "_rebuild", NOTES), [APP])


def test_overwriting_is_idempotent(tmp_path):
    table = LakeTable(tmp_path, NOTES)
    table.append(notes(0, 5), {APP: Progress(0, 5)})
    assert table.overwrite(notes(5, 7), {"nightly": Progress(0, 0)})
    assert table.overwrite(notes(7, 9), {"nightly": Progress(0, 0)}) is False
    assert offsets(table.rows()) == [5, 6]


@pytest.mark.promise("Spark: pipeline", "one pipeline a lake, one writer a table")
def test_one_writer_at_a_time_over_threads_and_processes(tmp_path):
    table = LakeTable(tmp_path, NOTES)
    script = (
        "import sys; from pathlib import Path; from penstock.spark.lake.table import LakeTable\n"
        "from tests.spark.lakes import NOTES\n"
        "with LakeTable(Path(sys.argv[1]), NOTES).try_writing() as mine: print(mine)"
    )

    def asks():
        return subprocess.run(
            [sys.executable, "-c", script, str(tmp_path)],
            capture_output=True,
            text=True,
            env=environment(PYTHONPATH=str(Path.cwd())),
            timeout=60,
            check=True,
        ).stdout.strip()

    with table.writing(), table.writing():  # asking twice is no deadlock
        with LakeTable(tmp_path, NOTES).try_writing() as mine:
            assert not mine
        with LakeTable(tmp_path, COUNTS).try_writing() as mine:
            assert mine
        assert asks() == "False"
    with table.try_writing() as first, LakeTable(tmp_path, NOTES).try_writing() as second:
        assert first and not second
        assert asks() == "False"
    assert asks() == "True"

    writers = [LakeTable(tmp_path, NOTES) for _ in range(4)]

    def write(mine):
        for _ in range(10):
            with mine.writing():
                first = mine.fresh_from(APP)
                mine.append(notes(first, first + 1), {APP: Progress(first, first + 1)})

    threads = [threading.Thread(target=write, args=(mine,)) for mine in writers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert offsets(table.rows()) == list(range(40))


def test_what_is_there_and_what_is_not(tmp_path):
    assert table_names(tmp_path / "none") == []
    with pytest.raises(LakeError, match="there is no table `notes`"):
        LakeTable(tmp_path, NOTES).rows()
    with pytest.raises(LakeError, match="there are: none yet"):
        open_table(tmp_path, "notes")
    LakeTable(tmp_path, NOTES).append(notes(0, 5), {APP: Progress(0, 5)})
    LakeTable(tmp_path, COUNTS).merge(counts({("a", 0): 1}), {"my-query": Progress(4, 4)})
    (tmp_path / "_checkpoints").mkdir()
    assert table_names(tmp_path) == ["counts", "notes"]
    known = summary(tmp_path, "notes")
    assert (known.rows, known.files, known.version, known.offset) == (5, 1, 1, 5)
    assert summary(tmp_path, "counts").offset is None  # a query's batches are no offsets
    with pytest.raises(LakeError, match=r"version 9 .* kept are 0 to 1"):
        open_table(tmp_path, "notes").rows(version=9)
    with pytest.raises(LakeError, match="cannot be a table's name"):
        LakeTable(tmp_path, TableDefinition("../x", NOTES.schema, (), "append")).append(notes(0, 1), {})


def test_a_table_that_somebody_else_made_is_read_added_to_and_looked_after(tmp_path):
    """Other writers name files otherwise, and keep statistics of everything or of nothing."""
    rows = pa.table(
        {"k": ["a b/c", "ü%x", None, "plain"], "n": [1, 2, 3, 4], "raw": [b"1", None, b"3", b"4"]}
    )
    write_deltalake(str(tmp_path / "theirs"), rows, partition_by=["k"])
    table = open_table(tmp_path, "theirs")
    assert table.rows().sort_by("n").equals(rows)
    table.append(pa.table({"k": ["a b/c", "new/x"], "n": [5, 6], "raw": [b"5", None]}), {})
    assert table.compact_files(files_min=2) == (2, 1)
    for path in (tmp_path / "theirs").rglob("*.parquet"):
        os.utime(path, (1, 1))
    compaction.sweep(table)
    theirs = DeltaTable(str(table.path))
    assert theirs.to_pyarrow_table().sort_by("n").to_pylist() == table.rows().sort_by("n").to_pylist()
    assert [row["n"] for row in table.rows().sort_by("n").to_pylist()] == [1, 2, 3, 4, 5, 6]
    for predicate, count in (("raw is not null", 4), ("n >= 5", 2), ("k = 'new/x'", 1)):
        assert pa.table(theirs.scan(predicate=predicate).read_all()).num_rows == count
    theirs.alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
    with pytest.raises(LakeError, match="deletionVectors"):
        open_table(tmp_path, "theirs")


def test_every_table_of_the_pipeline_can_be_made(tmp_path):
    for table in TABLES.values():
        lake = LakeTable(tmp_path, table)
        assert lake.append(table.schema.empty_table(), {APP: Progress(0, 1)})
        assert lake.schema().equals(table.schema)


writes = st.lists(
    st.tuples(
        st.sampled_from(["forward", "forward", "replay", "older", "upkeep"]),
        st.integers(1, 4),
        st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), min_size=1, max_size=4, unique=True),
    ),
    max_size=12,
)


@pytest.mark.promise("Spark: pipeline", "progress in the table; writers killed lose and double nothing")
@settings(max_examples=15, deadline=None)
@given(writes)
def test_any_order_of_writes_and_replays_gives_each_row_once(steps):
    """Invariant 9, against a dictionary: the rows of a span are a function of the span."""
    with tempfile.TemporaryDirectory() as folder:
        appended, merged = LakeTable(Path(folder), NOTES), LakeTable(Path(folder), COUNTS)
        end, model, past = 0, {}, []
        for kind, size, keys in steps:
            if kind == "forward":
                span, change = Progress(end, end + size), dict.fromkeys(keys, end)
                past.append((span, change))
                end += size
                model |= change
                assert appended.append(notes(span.first, span.end), {APP: span})
                assert merged.merge(counts(change), {APP: span})
            elif kind == "upkeep":
                appended.compact_files(files_min=2)
                merged.compact_files(files_min=2)
            elif past:
                span, change = past[-1] if kind == "replay" else past[0]
                restarted = LakeTable(Path(folder), NOTES)
                assert restarted.append(notes(span.first, span.end), {APP: span}) is False
                assert merged.merge(counts(change), {APP: span}) is False
        if end:
            assert offsets(appended.rows()) == list(range(end))
            assert counted(merged.rows()) == model
            assert merged.progress(APP) == appended.progress(APP) == end
