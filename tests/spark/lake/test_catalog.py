"""Tables of a lake directory: opened by name, and summed up from their logs."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pyarrow as pa
import pytest

import penstock.spark
from penstock.core.rows import Row
from penstock.journal.columns import encode_rows, fitted
from penstock.journal.parquet_table import FILE_SCHEMA, EventsTable
from penstock.spark.lake.catalog import open_table, stored_table, summary
from penstock.spark.lake.table import LakeTable, Progress
from penstock.spark.lake.table_reader import LakeError, parse_moment
from tests.spark.lakes import APP, NOTES, notes


def test_a_stored_table_has_the_columns_and_partitions_that_were_written(tmp_path: Path) -> None:
    LakeTable(tmp_path, NOTES).append(notes(0, 3), {APP: Progress(0, 3)})
    for opened in (stored_table(tmp_path / NOTES.name), open_table(tmp_path, NOTES.name)):
        assert opened.definition.schema.names == NOTES.schema.names
        assert opened.definition.partition_by == NOTES.partition_by
        assert opened.rows().num_rows == 3


def test_a_summary_counts_rows_and_files_and_says_how_far_the_table_is(tmp_path: Path) -> None:
    table = LakeTable(tmp_path, NOTES)
    for number in range(2):
        table.append(notes(number, number + 1), {"j1/0": Progress(number, number + 1)})
    found = summary(tmp_path, NOTES.name)
    assert (found.table, found.rows, found.files, found.offset) == (NOTES.name, 2, 2, 2)


def test_a_name_that_is_no_table_is_refused_with_those_that_are(tmp_path: Path) -> None:
    LakeTable(tmp_path, NOTES).append(notes(0, 1), {APP: Progress(0, 1)})
    for name in ("absent", "../outside", "_locks"):
        with pytest.raises(LakeError, match=NOTES.name):
            open_table(tmp_path, name)


def sealed(data, count):
    """Sealed history of a journal, published twice."""
    bronze = EventsTable(data / "lake")
    day_us = 86_400_000_000
    for first in (0, count):
        rows = [
            Row(
                "j1",
                0,
                0,
                offset,
                offset * day_us // count,
                "courier",
                "enqueue",
                "jobs",
                offset,
                f"m{offset}",
            )
            for offset in range(first, first + count)
        ]
        table = pa.Table.from_batches(
            [fitted(encode_rows(rows), FILE_SCHEMA, {"journal": "j1", "shard": 0, "epoch": 0})]
        )
        bronze.publish(table, "j1", 0, first + count)


@pytest.mark.promise("Spark: source and sinks", "`penstock.spark.tables` and `penstock.spark.history` open the tables")
def test_views_follow_their_tables_and_history_reads_what_is_asked(spark, tmp_path):
    """One long visit, because starting each part costs Spark seconds."""
    lake = tmp_path / "lake"
    LakeTable(lake, NOTES).append(notes(0, 100), {APP: Progress(0, 100)})
    sealed(tmp_path, 10)

    names = penstock.spark.tables(spark, tmp_path)
    assert names == ["events", "notes"]
    assert spark.sql("select count(*) as n from notes join events using (offset)").first().n == 20
    LakeTable(lake, NOTES).append(notes(100, 150), {APP: Progress(100, 150)})
    assert spark.sql("select count(*) as n from notes").first().n == 150  # a view sees what came since
    LakeTable(lake, NOTES).compact_files(files_min=2)
    assert spark.table("notes").select("offset").distinct().count() == 150
    assert penstock.spark.tables(spark, tmp_path) == names

    history = penstock.spark.history(spark, tmp_path, since="1970-01-02T00:00:00Z", end=18)
    assert [row.offset for row in history.sort("offset").collect()] == list(range(10, 18))
    assert str(history.first().date) == "1970-01-02" and history.columns[-1] == "date"
    assert len(history.inputFiles()) == 1  # the other day is not opened
    assert penstock.spark.history(spark, tmp_path, first=99).count() == 0
    with pytest.raises(LakeError, match="nothing is sealed"):
        penstock.spark.history(spark, lake)


# Without a JVM


class RecordedSession:
    """What `tables` asks of a session: settings and statements."""

    def __init__(self, settings, error=None):
        self.settings, self.error, self.statements = settings, error, []
        self.conf = self

    def get(self, name, default=None):
        return self.settings.get(name, default)

    def sql(self, text):
        if self.error is not None:
            raise self.error
        self.statements.append(text)


@pytest.mark.parametrize(
    "settings",
    [
        {"spark.sql.catalogImplementation": "hive"},
        {"spark.sql.catalogImplementation": "in-memory", "spark.sql.catalog.spark_catalog": "org.example.Catalog"},
    ],
)
@pytest.mark.promise("Spark: source and sinks", "`penstock.spark.tables` leaves nothing in a persistent catalog")
def test_a_persistent_catalog_gets_no_entries(settings, tmp_path):
    LakeTable(tmp_path / "lake", NOTES).append(notes(0, 3), {APP: Progress(0, 3)})
    session = RecordedSession(settings)
    assert penstock.spark.tables(session, tmp_path) == ["notes"]
    [statement] = session.statements
    assert statement.startswith("CREATE OR REPLACE TEMPORARY VIEW `notes` USING penstock_delta OPTIONS (path = '")


def test_an_entry_has_the_columns_of_its_table(tmp_path):
    """Its name is that of the path and the columns, so an entry is never outdated and two lakes of one server stay apart."""
    path, session = tmp_path / "it's", RecordedSession({"spark.sql.catalogImplementation": "in-memory"})
    LakeTable(path / "lake", NOTES).append(notes(0, 3), {APP: Progress(0, 3)})
    penstock.spark.tables(session, path)
    penstock.spark.tables(session, path)
    LakeTable(path / "lake", replace(NOTES, schema=NOTES.schema.append(pa.field("more", pa.string())))).append(
        notes(3, 4).append_column("more", pa.array(["x"])), {APP: Progress(3, 4)}
    )
    penstock.spark.tables(session, path)
    made = [text for text in session.statements if text.startswith("CREATE TABLE IF NOT EXISTS")]
    assert len(made) == 3 and made[0] == made[1] != made[2]
    assert all("it\\'s/lake/notes'" in text for text in session.statements)


def test_a_spark_without_the_format_is_explained(tmp_path):
    class NotFoundError(Exception):
        def getCondition(self):
            return "DATA_SOURCE_NOT_FOUND"

    LakeTable(tmp_path / "lake", NOTES).append(notes(0, 3), {APP: Progress(0, 3)})
    settings = {"spark.sql.catalogImplementation": "in-memory"}
    with pytest.raises(LakeError, match=r"does not find the format `penstock_delta`; .* PYSPARK_PYTHON"):
        penstock.spark.tables(RecordedSession(settings, NotFoundError("no such format")), tmp_path)
    with pytest.raises(ValueError, match="another"):
        penstock.spark.tables(RecordedSession(settings, ValueError("another")), tmp_path)


def test_a_directory_that_does_not_exist_is_refused(tmp_path):
    for call in (penstock.spark.tables, penstock.spark.history):
        with pytest.raises(LakeError, match="there is no data directory") as caught:
            call(None, tmp_path / "typo")
        assert "tables(spark" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_lake_without_tables_has_no_views_and_no_history(tmp_path):
    assert penstock.spark.tables(None, tmp_path) == []
    with pytest.raises(LakeError, match="nothing is sealed"):
        penstock.spark.history(None, tmp_path)


@pytest.mark.parametrize("name", ["since", "until"])
def test_a_time_that_cannot_be_read_is_refused_by_its_name(name, tmp_path):
    with pytest.raises(LakeError, match=f"`{name}` is `yesterday`") as caught:
        penstock.spark.history(None, tmp_path, **{name: "yesterday"})
    assert "2026-01-31T12:00:00Z" in str(caught.value)


def test_a_time_without_a_zone_is_in_utc():
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert parse_moment("2026-01-31T12:00:00Z", "since") == parse_moment("2026-01-31T12:00:00", "since") == noon
    assert parse_moment(noon.replace(tzinfo=None), "since") == noon
    east = datetime(2026, 1, 31, 14, tzinfo=timezone(timedelta(hours=2)))
    assert parse_moment(east, "since") == noon
