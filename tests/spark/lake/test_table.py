"""Tables of the lake, without Spark: every row once, whatever is replayed, merged, added or raced."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
import tempfile
import threading
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.spark.lake.data_files import SchemaError
from penstock.spark.lake.rewrite import TIER_FILES
from penstock.spark.lake.schemas import TableDefinition
from penstock.spark.lake.table import LakeTable, Progress
from penstock.spark.lake.table_reader import LakeError
from tests.server_process import environment
from tests.spark.lakes import APP, COUNTS, LATEST, NOTES, counted, counts, notes, offsets


def widened(table, *fields):
    """The same table as a later program knows it."""
    schema = table.schema
    for field in fields:
        schema = schema.append(field)
    return TableDefinition(table.name, schema, table.key, table.write, table.partition_by, table.newest)


@pytest.mark.promise("Spark: pipeline", "progress is stored in the table; killed writers lose and duplicate nothing")
def test_a_replay_changes_nothing_even_of_number_zero(tmp_path):
    table = LakeTable(tmp_path, NOTES)
    assert table.progress(APP) is None
    assert table.append(notes(0, 1), {"stream": Progress(0, 0)})
    assert table.progress("stream") == 0
    assert table.append(notes(0, 1), {"stream": Progress(0, 0)}) is False
    assert table.append(notes(1, 5), {APP: Progress(1, 5)})
    version = table.version()
    assert table.append(notes(1, 5), {APP: Progress(1, 5)}) is False
    assert table.append(notes(1, 3), {APP: Progress(1, 3)}) is False  # Delta itself would take the lower number
    assert table.progress(APP) == 5 and table.version() == version
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


def test_several_applications_come_forward_together(tmp_path):
    table = LakeTable(tmp_path, NOTES)
    assert table.append(notes(0, 2), {"j1/0": Progress(0, 2), "j2/0": Progress(5, 9)})
    assert (table.progress("j1/0"), table.progress("j2/0")) == (2, 9)
    assert table.append(notes(2, 4), {"j1/0": Progress(2, 4), "j2/0": Progress(5, 9)})
    assert table.append(notes(2, 4), {"j1/0": Progress(2, 4), "j2/0": Progress(5, 9)}) is False
    newest, first = table.history()[:2]
    assert (newest.app, newest.first, newest.end) == ("j1/0", 2, 4)
    assert (first.first, first.end) == ({"j1/0": 0, "j2/0": 5}, {"j1/0": 2, "j2/0": 9})


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


def test_executors_stage_and_the_driver_commits_once(tmp_path):
    table = LakeTable(tmp_path, NOTES)
    on_executor = pickle.loads(pickle.dumps(table))
    files = on_executor.stage(notes(0, 10).to_batches(max_chunksize=3))
    assert table.delta() is None  # staged rows belong to no table
    sent = pickle.loads(pickle.dumps(files))
    assert table.append(sent, {APP: Progress(0, 10)})
    again = on_executor.stage(notes(0, 10).to_batches())
    assert table.append(again, {APP: Progress(0, 10)}) is False
    assert not any((table.path / file.path).exists() for file in again)
    assert offsets(table.rows()) == list(range(10))


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


@pytest.mark.promise("Spark: pipeline", "a lake has one pipeline, a table one writer")
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
                first = mine.progress(APP) or 0
                mine.append(notes(first, first + 1), {APP: Progress(first, first + 1)})

    threads = [threading.Thread(target=write, args=(mine,)) for mine in writers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert offsets(table.rows()) == list(range(40))


writes = st.lists(
    st.tuples(
        st.sampled_from(["forward", "forward", "replay", "older", "upkeep"]),
        st.integers(1, 4),
        st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), min_size=1, max_size=4, unique=True),
    ),
    max_size=12,
)


@pytest.mark.promise("Spark: pipeline", "progress is stored in the table; killed writers lose and duplicate nothing")
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


def test_a_merge_removes_the_rows_of_dropped_keys(tmp_path: Path) -> None:
    table = LakeTable(tmp_path, COUNTS)
    table.merge(counts({("a", 0): 1, ("b", 0): 2, ("c", 1): 3}), {APP: Progress(0, 1)})
    table.merge(counts({("a", 0): 5}), {APP: Progress(1, 2)}, dropped=counts({("b", 0): 9, ("d", 0): 9}))
    assert counted(table.rows()) == {("a", 0): 5, ("c", 1): 3}


def test_compaction_rewrites_small_files_of_an_earlier_version_once(tmp_path: Path) -> None:
    """They lack filters and are small: two reasons to rewrite them."""
    earlier = LakeTable(tmp_path, replace(LATEST, write="append"))  # writes no filters
    names = [f"agent-{number}" for number in range(TIER_FILES)]
    for number, name in enumerate(names):
        row = {"journal": "j1", "address": name, "offset": number, "tags": None}
        earlier.append(pa.Table.from_pylist([row], LATEST.schema), {APP: Progress(number, number + 1)})
    table = LakeTable(tmp_path, LATEST)
    assert len(table.filters.lacking(table.files(), LATEST.filters)) == TIER_FILES
    merged = table.compact(is_forced=True)
    assert sorted(table.rows().column("address").to_pylist()) == names
    assert merged == TIER_FILES
    assert table.filters.lacking(table.files(), LATEST.filters) == []
