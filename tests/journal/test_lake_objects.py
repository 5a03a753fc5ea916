"""Sealed history and tables in an object store, with lost and slow answers, and stores that cannot be used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.journal.delta_log import DeltaLog, table_names
from penstock.journal.lake_location import QUICK, StoreError, find_delta, lake_of, parse_lake, record_lake, remove_tree
from penstock.journal.reader import JournalReader
from penstock.journal.sql import ask
from penstock.spark.lake.table import LakeTable, Progress
from tests.object_store import KEY, SECRET, ObjectStore
from tests.spark.journals import Written
from tests.spark.lakes import APP, COUNTS, NOTES, counted, counts, notes, offsets

LOST = ["PUT _delta_log/0", "PUT /part-", "GET _delta_log", "GET prefix"]


@pytest.mark.promise("The lake", "sealed history in S3: each row once, also when answers of the store are lost")
def test_sealed_rows_are_in_the_store_once(object_store: ObjectStore, tmp_path: Path) -> None:
    journal = Written(tmp_path / "data")
    record_lake(journal.data, object_store.lake(tmp_path))
    for number, lost in enumerate(["", *LOST], 1):
        journal.add(10)
        if lost:
            object_store.break_answers(lost)
        failed = _failure(journal.seal)
        if failed is not None:
            assert _offsets(journal) == list(range(10 * number)), "rows stay in the journal"
            journal.seal()
        assert _offsets(journal) == list(range(10 * number))
    lake = lake_of(journal.data)
    assert JournalReader(journal.data).bounds().sealed_end == journal.end
    assert list(ask(lake, "select count(*), count(distinct offset) from events").rows) == [[50, 50]]
    assert table_names(lake) == ["events"]
    assert not (journal.data / "lake").exists()


def _failure(work: Callable[[], object]) -> str | None:
    try:
        work()
    except StoreError as error:
        if SECRET in str(error):
            raise
        return str(error)
    return None


def _offsets(journal: Written) -> list[int]:
    reader = JournalReader(journal.data)
    batches = reader.batches(0, journal.end, ["offset"])
    return [int(one) for batch in batches for one in batch.column(0).to_pylist()]


@pytest.mark.more
@pytest.mark.parametrize("lost", LOST)
@pytest.mark.parametrize("operation", ["append", "merge", "overwrite"])
def test_a_write_is_in_the_table_once_when_an_answer_is_lost(
    object_store: ObjectStore, tmp_path: Path, operation: str, lost: str
) -> None:
    lake = object_store.lake(tmp_path)
    made = LakeTable(lake, NOTES if operation == "append" else COUNTS)
    rows = notes(0, 5) if operation == "append" else counts({("a", 1): 1, ("b", 1): 1})
    assert getattr(made, operation)(rows, {APP: Progress(0, 5)})
    more = notes(5, 9) if operation == "append" else counts({("b", 1): 2, ("c", 1): 3})
    object_store.break_answers(lost)
    for _ in range(2):  # a task of Spark is repeated
        write = getattr(LakeTable(lake, made.definition), operation)
        _failure(lambda write=write: write(more, {APP: Progress(5, 9)}))
    table = LakeTable(lake, made.definition)
    assert table.progress(APP) == 9
    if operation == "append":
        assert offsets(table.rows()) == list(range(9))
    else:
        kept = {} if operation == "overwrite" else {("a", 1): 1}
        assert counted(table.rows()) == {**kept, ("b", 1): 2, ("c", 1): 3}


@pytest.mark.more
def test_slow_answers_only_take_time(object_store: ObjectStore, tmp_path: Path) -> None:
    object_store.break_answers(delay_s=0.3)
    journal = Written(tmp_path / "data")
    record_lake(journal.data, object_store.lake(tmp_path))
    journal.add(10)
    journal.seal()
    assert _offsets(journal) == list(range(10))
    object_store.break_answers(delay_s=3)
    with pytest.raises(StoreError, match="timed out"):
        find_delta(lake_of(journal.data) / "events", QUICK)


@pytest.mark.more
def test_tables_are_compacted_vacuumed_and_replaced(object_store: ObjectStore, tmp_path: Path) -> None:
    lake = object_store.lake(tmp_path)
    table = LakeTable(lake, NOTES)
    for number in range(9):
        table.append(notes(number, number + 1), {APP: Progress(number, number + 1)})
    assert table.compact_files() == (9, 1)
    assert offsets(table.rows()) == list(range(9))
    assert offsets(table.rows(version=4)) == list(range(4))
    stray = table.path / "date=2026-03-01" / "part-stray.parquet"
    with stray.files.open_output_stream(stray.key) as file:
        file.write(b"stray")
    assert table.log.sweep(0) == (0, 0), "it is young, and kept versions need the others"
    other = LakeTable(lake / "_rebuild", NOTES)
    other.append(notes(0, 3), {APP: Progress(0, 3)})
    table.replace_with(other, [APP])
    remove_tree(lake / "_rebuild")
    assert offsets(table.rows()) == [0, 1, 2]
    assert table_names(lake) == ["notes"]
    assert list(DeltaLog(table.path).damage()) == []


@pytest.mark.parametrize(
    ("bucket", "changed", "message"),
    [
        ("no-such-bucket", {}, "the bucket does not exist"),
        ("lake", {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, "Connection refused"),
    ],
)
def test_a_store_that_cannot_be_used_says_why(
    object_store: ObjectStore, tmp_path: Path, bucket: str, changed: dict[str, str], message: str
) -> None:
    lake = parse_lake(f"s3://{bucket}/x", str(object_store.credentials(tmp_path, **changed)), tmp_path)
    with pytest.raises(StoreError, match=message) as caught:
        find_delta(lake / "events", QUICK)
    assert caught.value.code == "LakeUnavailable"
    assert caught.value.hint
    with pytest.raises(StoreError) as listed:
        table_names(lake)
    for text in (str(caught.value), str(listed.value)):
        assert SECRET not in text
        assert KEY not in text
