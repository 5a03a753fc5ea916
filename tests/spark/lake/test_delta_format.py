"""The format `penstock_delta`: its readers and writers called directly, then through Spark."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from penstock.core.errors import PenstockError
from penstock.spark.errors import HintedError
from penstock.spark.lake import rewrite
from penstock.spark.lake.data_files import SchemaError
from penstock.spark.lake.delta_format import _path
from penstock.spark.lake.schemas import TableDefinition
from penstock.spark.lake.table import LakeTable, Progress
from penstock.spark.lake.table_reader import LakeError
from tests.spark.delta_calls import read, source, write
from tests.spark.lakes import APP, COUNTS, NOTES, counted, counts, notes, offsets


def parquet(path):
    return [one for one in path.rglob("*.parquet") if "_delta_log" not in one.parts]


@pytest.mark.promise(
    "Spark: source and sinks",
    "`penstock_delta` supports time travel, append, merge and streams; columns are added and never retyped",
)
def test_a_table_is_read_with_exactly_its_columns(tmp_path):
    table = LakeTable(tmp_path, NOTES)
    table.append(notes(86_395, 86_405), {APP: Progress(86_395, 86_405)})
    table.append(notes(86_405, 86_410), {APP: Progress(86_405, 86_410)})
    found = read(table.path)
    assert found.schema.names == NOTES.schema.names
    assert found.sort_by("offset").to_pylist() == notes(86_395, 86_410).to_pylist()
    assert read(table.path, columns="date, text").schema.names == ["date", "text"]
    assert read(table.path, columns="date").num_rows == 15
    assert offsets(read(table.path, versionAsOf="1")) == list(range(86_395, 86_405))
    now = datetime.now(UTC).isoformat()
    assert read(table.path, timestampAsOf=now).num_rows == 15
    assert read(table.path, versionAsOf="0") is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"versionAsOf": "7"}, "version 7 .* kept are 0 to 1"),
        ({"versionAsOf": "-1"}, "`versionAsOf` is `-1`"),
        ({"timestampAsOf": "1999-01-01T00:00:00Z"}, "kept are 0 to 1"),
        ({"timestampAsOf": "yesterday"}, "write it as"),
        ({"timestampAsOf": "1999-01-01", "versionAsOf": "1"}, "leave one out"),
        ({"columns": "nope"}, "no column `nope`; it has journal"),
        ({"path": "nowhere"}, "no Delta table in"),
        ({"path": ""}, "needs the table's directory.*does not pass the LOCATION"),
        ({"path": "ftp://host/x"}, "cannot be a lake"),
        ({"version_as_of": "1"}, "no option `version_as_of`; did you mean `versionAsOf`"),
        ({"size": "1"}, "no option `size`; options: path, credentials, columns"),
        ({"mergeKeys": "journal"}, "`mergeKeys` does not apply to a batch read"),
    ],
)
def test_a_wrong_option_says_what_would_be_right(tmp_path, options, message):
    LakeTable(tmp_path, NOTES).append(notes(0, 3), {APP: Progress(0, 3)})
    with pytest.raises((LakeError, PenstockError), match=message):
        read(**{"path": tmp_path / "notes", **options})


@pytest.mark.parametrize("option", ["versionsAsOf", "mergeKey", "startVersion", "AppID2"])
def test_a_misspelled_option_is_an_error_with_the_nearest(tmp_path, option):
    with pytest.raises(LakeError, match=f"there is no option `{option.lower()}`; did you mean `"):
        source(tmp_path, **{option: "1"}).schema()


def test_files_outside_of_bounds_are_not_read(tmp_path):
    table = LakeTable(tmp_path, NOTES)
    for first in (0, 10, 20):
        table.append(notes(first, first + 10), {APP: Progress(first, first + 10)})
    assert offsets(read(table.path, within='{"offset": [12, 14]}')) == list(range(10, 20))
    assert offsets(read(table.path, within='{"offset": [15, null]}')) == list(range(10, 30))
    assert len(read(table.path)) == 30
    with pytest.raises(HintedError, match="`within` is `oops`"):
        read(table.path, within="oops")


def test_paths_of_hadoop_and_of_files_are_understood():
    assert str(_path({"path": "s3a://bucket/x"})) == "s3://bucket/x"
    assert str(_path({"path": "file:///here/x"})) == "/here/x"


def test_a_query_that_outlived_its_files_says_so(tmp_path):
    table = LakeTable(tmp_path, COUNTS)
    table.merge(counts({("a", 0): 1}), {})
    made = source(table.path)
    reader = made.reader(made.schema())
    parts = reader.partitions()
    [file] = table.files()
    (table.path / file.path).unlink()
    with pytest.raises(LakeError, match="run it again"):
        list(reader.read(parts[0]))


def test_small_files_share_a_task(tmp_path):
    table = LakeTable(tmp_path, NOTES)
    for number in range(5):
        table.append(notes(number, number + 1), {APP: Progress(number, number + 1)})
    made = source(table.path)
    assert len(made.reader(made.schema()).partitions()) == 1


@pytest.mark.promise(
    "Spark: source and sinks",
    "`penstock_delta` supports time travel, append, merge and streams; columns are added and never retyped",
)
def test_a_batch_is_written_appended_replaced_and_merged(tmp_path):
    path = tmp_path / "mine"
    write(path, counts({("a", 0): 1, ("b", 0): 1}), partitionBy="date")
    write(path, counts({("c", 0): 1}))
    assert counted(read(path)) == {("a", 0): 1, ("b", 0): 1, ("c", 0): 1}
    write(path, counts({("a", 0): 5, ("d", 0): 5}), mergeKeys="journal, channel,minute")
    assert counted(read(path)) == {("a", 0): 5, ("b", 0): 1, ("c", 0): 1, ("d", 0): 5}
    write(path, counts({("z", 1): 9}), overwrite=True)
    assert counted(read(path)) == {("z", 1): 9}
    assert not list(path.glob(".staging-*"))


def test_an_aborted_write_leaves_nothing(tmp_path):
    path = tmp_path / "mine"
    write(path, counts({("a", 0): 1}))
    before = parquet(path)
    write(path, counts({("b", 0): 1, ("c", 0): 1}), fails=True)
    write(path, counts({("b", 0): 1, ("c", 0): 1}), fails=True, mergeKeys="channel")
    write(path, counts({("b", 0): 1, ("c", 0): 1}), fails=True, batch=3, appId="q")
    assert parquet(path) == before and counted(read(path)) == {("a", 0): 1}


@pytest.mark.promise(
    "Spark: source and sinks",
    "`penstock_delta` supports time travel, append, merge and streams; columns are added and never retyped",
)
def test_a_stream_writes_each_batch_once(tmp_path):
    path = tmp_path / "mine"
    for batch in (0, 0, 1, 1, 2, 2):
        write(path, counts({("a", batch): batch}), batch=batch, appId="q")
    assert counted(read(path)) == {("a", 0): 0, ("a", 1): 1, ("a", 2): 2}
    assert len(parquet(path)) == 3  # what replays staged is gone
    for batch in (3, 3):
        write(path, counts({("a", 0): batch}), batch=batch, appId="q", mergeKeys="channel,minute")
    assert counted(read(path))[("a", 0)] == 3
    write(path, COUNTS.schema.empty_table(), batch=4, appId="q")
    assert LakeTable(tmp_path, COUNTS).progress("q") is None  # that is another table
    for version in ("7", "7"):
        write(path, counts({("b", 0): 1}), appId="nightly", version=version)
    assert len(counted(read(path))) == 4


@pytest.mark.promise("Spark: source and sinks", "a batch that is older than the newest is refused, not left out")
@pytest.mark.parametrize("more", [{}, {"mergeKeys": "channel,minute"}, {"overwrite": True}])
def test_a_write_below_the_newest_version_is_an_error(tmp_path, more):
    path = tmp_path / "mine"
    for version in ("4", "5", "5"):
        write(path, counts({("a", int(version)): 1}), appId="nightly", version=version, **more)
    before, files = counted(read(path)), parquet(path)
    with pytest.raises(LakeError, match=r"batch 4 of `nightly` is older than 5, .* `mine` has.*count `version` up"):
        write(path, counts({("z", 0): 4}), appId="nightly", version="4", **more)
    write(path, counts({("z", 0): 4}), appId="nightly", version="4", onOldBatch="skip", **more)
    assert counted(read(path)) == before and parquet(path) == files
    write(path, counts({("y", 0): 1}), appId="other", version="1", **more)
    assert ("y", 0) in counted(read(path))


def test_a_stream_with_a_new_checkpoint_and_an_old_name_is_an_error(tmp_path):
    path = tmp_path / "mine"
    for batch in (0, 1):
        write(path, counts({("a", batch): batch}), batch=batch, appId="q")
    with pytest.raises(LakeError, match=r"batch 0 of `q` is older than 1.*new checkpoint needs a new `appId`"):
        write(path, counts({("b", 0): 0}), batch=0, appId="q")
    write(path, counts({("b", 0): 0}), batch=0, appId="q", onOldBatch="skip")
    assert set(counted(read(path))) == {("a", 0), ("a", 1)}


def test_spark_and_catalogs_pass_options_of_their_own(tmp_path):
    table = LakeTable(tmp_path, NOTES)
    table.append(notes(0, 3), {APP: Progress(0, 3)})
    kept = {"owner": "me", "location": f"file:{table.path}", "provider": "penstock_delta", "comment": "of a catalog"}
    assert source(table.path, **kept).schema().names == list(NOTES.schema.names)
    writer = source(tmp_path / "mine", appId="q", checkpointLocation="x", queryName="y")
    assert writer.streamWriter(from_arrow_schema(NOTES.schema), False)


def test_a_long_stream_looks_after_its_table(tmp_path):
    path = tmp_path / "mine"
    for batch in range(rewrite.EVERY_COMMITS + 2):
        write(path, counts({("a", batch): batch}), batch=batch, appId="q")
    assert len(parquet(path)) > rewrite.EVERY_COMMITS  # replaced files stay for an hour
    assert len(LakeTable(tmp_path, TableDefinition("mine", COUNTS.schema, (), "append")).files()) < 10
    assert len(counted(read(path))) == rewrite.EVERY_COMMITS + 2


@pytest.mark.promise(
    "Spark: source and sinks",
    "`penstock_delta` supports time travel, append, merge and streams; columns are added and never retyped",
)
def test_columns_may_be_new_and_are_never_retyped(tmp_path):
    path = tmp_path / "mine"
    rows = counts({("a", 0): 1})
    write(path, rows)
    write(path, counts({("b", 0): 2}).append_column("extra", pa.array(["new"])))
    write(path, counts({("c", 0): 3}).drop_columns(["n"]))
    write(path, counts({("d", 0): 4}).set_column(4, "n", pa.array([4], pa.int32())))
    found = {row["channel"]: (row["n"], row["extra"]) for row in read(path).to_pylist()}
    assert found == {"a": (1, None), "b": (2, "new"), "c": (None, None), "d": (4, None)}
    with pytest.raises(SchemaError, match="column `n` of table `mine` is int64, and the rows have string"):
        write(path, rows.set_column(4, "n", pa.array(["1"])))
    with pytest.raises(SchemaError, match="column `channel` of `mergeKeys` is missing"):
        write(path, rows.drop_columns(["channel"]), mergeKeys="channel")
    with pytest.raises(LakeError, match="leave `partitionBy` out"):
        write(path, rows, partitionBy="date")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 0}, "needs the option `appId`"),
        ({"batch": 0, "overwrite": True, "appId": "q"}, "cannot overwrite"),
        ({"appId": "q"}, "go together"),
        ({"version": "1"}, "go together"),
        ({"overwrite": True, "mergeKeys": "channel"}, "contradict"),
        ({"partitionBy": "n2"}, "`n2` of `partitionBy` is missing"),
        ({"partitionBy": "minute"}, "cannot be a partition"),
        ({"mergeKey": "channel"}, "did you mean `mergeKeys`"),
        ({"batch": 0, "appID": "q", "version": "1"}, "`version` does not apply to a write of a stream"),
        ({"versionAsOf": "1"}, "`versionAsOf` does not apply to a batch write"),
        ({"onOldBatch": "keep"}, "use `fail` or `skip`"),
    ],
)
def test_a_write_that_makes_no_sense_is_refused(tmp_path, options, message):
    with pytest.raises((LakeError, SchemaError), match=message):
        write(tmp_path / "mine", counts({("a", 0): 1}), **options)
    assert parquet(tmp_path) == []


def test_spark_reads_and_writes_the_lake(spark, tmp_path):
    """One long visit, because starting each part costs Spark seconds."""
    lake = tmp_path / "lake"
    LakeTable(lake, NOTES).append(notes(0, 100), {APP: Progress(0, 100)})
    found = spark.read.format("penstock_delta").load(str(lake / "notes"))
    assert found.count() == 100
    assert found.where("offset = 7").select("headers", "tags", "recorded_at", "date").toArrow().num_rows == 1
    pushed = spark.read.format("penstock_delta").option("pushdown", "true").load(str(lake / "notes"))
    assert pushed.where("offset < 3 and date = date '2026-03-01'").count() == 3

    spark.sql(f"create table located using penstock_delta location '{lake / 'notes'}'")
    with pytest.raises(Exception, match="does not pass the LOCATION or the OPTIONS of a CREATE TABLE"):
        spark.table("located").count()
    spark.sql("drop table located")
    spark.sql(f"create temporary view viewed using penstock_delta options (path '{lake / 'notes'}')")
    assert spark.table("viewed").count() == 100
    spark.catalog.dropTempView("viewed")

    frame = spark.sql("select 'x' as name, cast(1 as bigint) as n, timestamp '2026-01-01' as at")
    mine = str(lake / "my table".replace(" ", "_"))
    for version in (1, 1, 2):
        frame.write.format("penstock_delta").mode("append").option("appId", "a").option("version", version).save(mine)
    frame.write.format("penstock_delta").mode("append").option("mergeKeys", "n").save(str(lake / "other"))
    assert spark.read.format("penstock_delta").load(mine).count() == 2

    gold = LakeTable(lake, COUNTS)
    gold.merge(counts({("a", 0): 1, ("b", 0): 1}), {})
    changes = spark.readStream.format("penstock_delta").option("readChangeFeed", "true").load(str(gold.path))
    for _ in range(2):  # the second run continues where the first one ended
        chain = changes.where("channel != 'z'").writeStream.format("penstock_delta").option("mergeKeys", "channel")
        chain = chain.option("appId", "chain").option("checkpointLocation", str(tmp_path / "checkpoint"))
        chain.trigger(availableNow=True).start(str(lake / "chained")).awaitTermination()
        assert counted(read(lake / "chained")) == counted(gold.rows())
        gold.merge(counts({("a", 0): 2, ("c", 0): 1}), {}, counts({("b", 0): 0}))
    spark_read = spark.read.format("penstock_delta").option("readChangeFeed", "true").option("startingVersion", 2)
    kinds = spark_read.load(str(gold.path)).where("channel = 'a'").select("_change_type", "_commit_version").collect()
    assert {("update_postimage", 2), ("update_preimage", 2)} < set(map(tuple, kinds))
    with pytest.raises(Exception, match="no Delta table in"):
        spark.read.format("penstock_delta").load(str(tmp_path / "nowhere"))
