"""The format `penstock_delta`: its readers and writers called directly, then through Spark."""

from __future__ import annotations

import pickle
import shutil
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from penstock.core.errors import PenstockError
from penstock.spark.errors import HintedError
from penstock.spark.lake import rewrite
from penstock.spark.lake.data_files import SchemaError
from penstock.spark.lake.delta_format import PenstockDelta, _path
from penstock.spark.lake.schemas import TableDefinition
from penstock.spark.lake.table import LakeTable, Progress
from penstock.spark.lake.table_reader import LakeError
from tests.spark.lakes import APP, COUNTS, NOTES, counted, counts, notes, offsets


def source(path, **options):
    return PenstockDelta(CaseInsensitiveDict({"path": str(path), **options}))


def read(path, **options):
    """What Spark does for a batch read, without Spark."""
    made = source(path, **options)
    reader = pickle.loads(pickle.dumps(made.reader(made.schema())))
    batches = [batch for part in reader.partitions() for batch in reader.read(pickle.loads(pickle.dumps(part)))]
    return pa.Table.from_batches(batches) if batches else None


def write(path, rows, *, batch=None, overwrite=False, fails=False, **options):
    """What Spark does for a write: two tasks stage, the driver commits, in a process that knows nothing."""
    made, schema = source(path, **options), from_arrow_schema(rows.schema)
    writer = made.writer(schema, overwrite) if batch is None else made.streamWriter(schema, overwrite)
    half = rows.num_rows // 2
    messages = [
        pickle.loads(pickle.dumps(writer)).write(iter(part.to_batches()))
        for part in (rows.slice(0, half), rows.slice(half))
    ]
    last = () if batch is None else (batch,)
    if fails:
        writer.abort([*messages, None], *last)
    else:
        if batch is not None:  # Spark makes another writer for the commit of a batch
            writer = made.streamWriter(schema, overwrite)
        pickle.loads(pickle.dumps(writer)).commit(messages, *last)


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
    ],
)
def test_a_wrong_option_says_what_would_be_right(tmp_path, options, message):
    LakeTable(tmp_path, NOTES).append(notes(0, 3), {APP: Progress(0, 3)})
    with pytest.raises((LakeError, PenstockError), match=message):
        read(**{"path": tmp_path / "notes", **options})


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
    for batch in (0, 0, 1, 0, 2, 2):
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
    ],
)
def test_a_write_that_makes_no_sense_is_refused(tmp_path, options, message):
    with pytest.raises((LakeError, SchemaError), match=message):
        write(tmp_path / "mine", counts({("a", 0): 1}), **options)
    assert parquet(tmp_path) == []


def stream(path, checkpoint, sink=None, **options):
    """What Spark does for a stream until it has read everything, with a restart before each batch; returns its batches."""
    batches = []
    while True:
        made = source(path, **options)
        reader = made.streamReader(made.schema())
        start = checkpoint[-1] if checkpoint else reader.initialOffset()
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        if end == start:
            return batches
        parts = reader.partitions(start, end)
        again = pickle.loads(pickle.dumps(reader))
        rows = [row for part in parts for batch in again.read(part) for row in batch.to_pylist()]
        batches.append(sorted((row["_commit_version"], row["_change_type"], row["channel"], row["n"]) for row in rows))
        if sink is not None:
            schema = to_arrow_schema(made.schema(), timezone="UTC")
            for _ in range(2):  # it is killed after the commit, and the batch comes again
                write(sink, pa.Table.from_pylist(rows, schema), batch=len(checkpoint), appId="q", mergeKeys="channel")
        checkpoint.append(end)


@pytest.mark.promise("Spark: source and sinks", "`readStream` of `penstock_delta`: changes by version, exactly once")
def test_tables_chain_by_their_changes(tmp_path):
    table = LakeTable(tmp_path, COUNTS)
    table.merge(counts({("a", 0): 1, ("b", 0): 1}), {})
    mirror, checkpoint, feed = tmp_path / "mirror", [], {"readChangeFeed": "true"}
    assert stream(table.path, checkpoint, mirror, **feed) == [[(1, "insert", "a", 1), (1, "insert", "b", 1)]]
    table.merge(counts({("a", 0): 2, ("c", 0): 1}), {})
    table.merge(counts({("a", 0): 3}), {}, counts({("b", 0): 0}))
    table.compact_files(files_min=2)
    found = stream(table.path, checkpoint, mirror, **feed)
    assert [[row[1] for row in batch] for batch in found] == [
        ["insert", "update_postimage", "update_preimage", "delete", "update_postimage", "update_preimage"]
    ]
    assert counted(read(mirror)) == counted(read(table.path)) == {("a", 0): 3, ("c", 0): 1}
    assert "_change_type" not in read(mirror).schema.names
    # The mirror has a feed of its own: insert, then in one commit what the two versions come to.
    version = str(LakeTable(tmp_path, COUNTS).version())
    assert stream(mirror, [], None, startingVersion="2", **feed)[0] == [
        (2, "delete", "b", 1), (2, "insert", "c", 1), (2, "update_postimage", "a", 3), (2, "update_preimage", "a", 1)
    ]  # fmt: skip
    assert len(stream(table.path, [], startingVersion="0", maxVersionsPerTrigger="1", **feed)) == int(version) + 1
    assert stream(table.path, [], startingVersion="latest", **feed) == [[]]
    assert stream(table.path, [], startingVersion="99", **feed) == [], "it waits for that version"
    late = source(table.path, startingVersion="1", **feed)
    reader = late.streamReader(late.schema())
    reader.prepareForTriggerAvailableNow()
    table.merge(counts({("d", 0): 1}), {})
    assert reader.latestOffset(reader.initialOffset(), None)["version"] == int(version) + 1
    changed = read(table.path, startingVersion="2", endingVersion="3", columns="n,_change_type", **feed)
    assert changed.schema.names == ["n", "_change_type"] and changed.num_rows == 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"readChangeFeed": "yes"}, "one of true, false"),
        ({"readChangeFeed": "true", "startingVersion": "2", "endingVersion": "3"}, r"version 3 .* has versions 0 to 2"),
        ({"stream": "1", "versionAsOf": "1"}, "leave other versions out"),
        ({"stream": "1", "startingVersion": "soon"}, "`startingVersion` is `soon`"),
        ({"stream": "1", "maxVersionsPerTrigger": "0"}, "1 or more"),
        (
            {"stream": "1", "startingVersion": "1"},
            r"version 2 of table `counts` .* it updates or deletes rows.* version is 3",
        ),
    ],
)
def test_a_feed_that_makes_no_sense_is_refused(tmp_path, options, message):
    table = LakeTable(tmp_path, COUNTS)
    for number in range(2):
        table.merge(counts({("a", 0): number}), {})
    ask = stream if options.pop("stream", None) else read
    with pytest.raises((HintedError, LakeError), match=message):
        ask(table.path, *([[]] if ask is stream else []), **options)


def test_a_stream_notices_that_its_table_or_its_files_are_gone(tmp_path):
    table = LakeTable(tmp_path, COUNTS)
    for number in range(2):
        table.merge(counts({("a", 0): number}), {})
    feed = {"readChangeFeed": "true", "startingVersion": "1"}
    made = source(table.path, **feed)
    reader = made.streamReader(made.schema())
    parts = reader.partitions(reader.initialOffset(), reader.latestOffset(reader.initialOffset(), None))
    shutil.rmtree(table.path / "_change_data")
    with pytest.raises(LakeError, match=r"version 2 .* its files are removed.*first readable version is 3"):
        [list(reader.read(part)) for part in parts]
    with pytest.raises(LakeError, match="was created anew"):
        stream(table.path, [{"table": "another", "version": 1}], **feed)


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
