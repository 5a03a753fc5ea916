"""The sink of format `penstock`: rows become envelopes, each batch once, whatever Spark repeats."""

from __future__ import annotations

import itertools
import json
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, IntegerType, MapType, StringType, StructField, StructType

from penstock.core.errors import PenstockError
from penstock.spark.errors import SourceError
from penstock.spark.sink.rows import encoder_for
from penstock.spark.sink.writer import BatchSink, StreamSink, make_stream_writer, make_writer, parse_target
from tests.integration.serving import Http
from tests.server_process import ServerProcess

APPS = (f"sink-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path_factory.mktemp("sink"))
    yield process
    process.kill()


@pytest.fixture
def app() -> str:
    return next(APPS)


def waiting(server: ServerProcess, stream: str) -> list[dict[str, Any]]:
    answer = Http(server.http).get("/v1/peek", stream=stream, max=100)
    return [row["env"] for row in answer.json["rows"]] if answer.status == 200 else []


def payloads(server: ServerProcess, stream: str) -> list[Any]:
    return sorted(row["payload"] for row in waiting(server, stream))


def schema_of(**columns: Any) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


TEXT = StringType()
ENOUGH = schema_of(payload=TEXT)


def rows(**columns: Any) -> Iterator[pa.RecordBatch]:
    return iter([pa.RecordBatch.from_pydict(columns)])


def test_all_rows_for_a_space_need_no_column_but_the_payload():
    made = make_stream_writer({"url": GOOD["url"], "app": "x", "to": "space:demo/x"}, ENOUGH, overwrite=False)
    assert isinstance(made, StreamSink)


GOOD = {"url": "http://127.0.0.1:1", "app": "x", "to": "sam", "type": "t"}


@pytest.mark.parametrize(
    ("options", "schema", "message"),
    [
        (GOOD, schema_of(payload=TEXT, colour=TEXT, size=TEXT), "`colour`, `size`.*\n.*to_json"),
        (GOOD, schema_of(to=TEXT), "`payload` is missing"),
        ({**GOOD, "to": None}, ENOUGH, "`to` is missing"),
        ({**GOOD, "type": None}, ENOUGH, "`type` is missing"),
        (GOOD, schema_of(payload=TEXT, id=IntegerType()), "`id` is int\nhint: make it a string"),
        (GOOD, schema_of(payload=TEXT, tags=TEXT), "make it an array of strings"),
        (GOOD, schema_of(payload=TEXT, headers=ArrayType(TEXT)), "make it a map"),
        ({**GOOD, "app": None}, ENOUGH, "`app` is missing"),
        ({**GOOD, "url": None}, ENOUGH, "`url` or `path`"),
        ({**GOOD, "path": "x"}, ENOUGH, "`url` or `path`"),
        ({**GOOD, "url": "http://a,http://b"}, ENOUGH, "several servers"),
        ({**GOOD, "payloadAs": "xml"}, ENOUGH, "use `json` or `text`"),
        ({**GOOD, "onOldBatch": "x"}, ENOUGH, "use `fail` or `skip`"),
        ({**GOOD, "retryTimeout": "soon"}, ENOUGH, "write a duration"),
        ({**GOOD, "tokenFiles": "x"}, ENOUGH, "did you mean `tokenFile`"),
        ({**GOOD, "destination": "sam"}, ENOUGH, "no option `destination`\nhint: options: url, path, token"),
        ({**GOOD, "batch": "1"}, ENOUGH, "`batch` does not apply to a stream"),
        ({**GOOD, "to": "space:a"}, ENOUGH, "stream of a space"),
        ({**GOOD, "to": "space:a/b", "type": None}, schema_of(payload=TEXT, colour=TEXT), "`colour`"),
        ({**GOOD, "url": None, "path": "/nowhere"}, ENOUGH, "no server runs on"),
    ],
)
def test_mistakes_are_reported_on_the_driver_with_a_hint(options, schema, message):
    given = {name: value for name, value in options.items() if value is not None}
    with pytest.raises(PenstockError, match=message):
        make_stream_writer(given, schema, overwrite=False)


def test_a_queue_cannot_be_overwritten():
    for make in (make_stream_writer, make_writer):
        with pytest.raises(PenstockError, match="overwritten"):
            make(GOOD, ENOUGH, overwrite=True)


def test_options_are_read_whatever_their_case_and_spark_may_add_its_own(monkeypatch, tmp_path):
    monkeypatch.setenv("SINK_TOKEN", "secret")
    target = parse_target(
        {**GOOD, "TOKEN": "env:SINK_TOKEN", "checkpointlocation": "x", "queryname": "y", "RetryTimeout": "2m"}
    )
    assert (target.token, target.patience_s) == ("secret", 120.0)
    assert "secret" not in repr(target)
    (tmp_path / "token").write_text("kept\n")
    assert parse_target({**GOOD, "tokenFile": str(tmp_path / "token")}).token == "kept"
    with pytest.raises(SourceError, match="exclude each other"):
        parse_target({**GOOD, "tokenFile": "x", "token": "y"})
    writer = make_stream_writer(
        GOOD, schema_of(payload=MapType(TEXT, TEXT), headers=MapType(TEXT, TEXT)), overwrite=False
    )
    assert pickle.loads(pickle.dumps(writer)).target == writer.target


def make(server: ServerProcess, app: str, **more: str) -> StreamSink:
    options = {"url": server.http, "app": app, "to": f"stream:{app}", "type": "t", **more}
    writer = make_stream_writer(options, ENOUGH, overwrite=False)
    assert isinstance(writer, StreamSink)
    return writer


@pytest.mark.promise("Spark: source and sinks", "of speculative duplicates only the winner counts")
def test_of_two_attempts_of_a_partition_only_the_winner_counts(server, app):
    writer = make(server, app)
    loser, winner = (writer.stage(rows(payload=["1", "2"]), 0, f"0.{attempt}") for attempt in (8, 9))
    other = writer.stage(rows(payload=["2"]), 0, "1.10")
    assert loser.parts != winner.parts and (winner.rows, other.rows) == (2, 1)
    writer.commit([winner, None, other], 0)
    assert payloads(server, app) == [1, 2, 2]
    writer.commit([winner, other], 0)
    writer.stage(rows(payload=["1", "2"]), 0, "0.11")
    writer.commit([winner, other], 0)
    assert len(waiting(server, app)) == 3


def test_a_large_partition_goes_out_in_parts(server, app, monkeypatch):
    monkeypatch.setattr("penstock.spark.sink.writer.PART_ROWS_MAX", 3)
    writer = make(server, app)
    batches = itertools.chain(rows(payload=[str(n) for n in range(7)]), rows(payload=["7", "8"]))
    staged = writer.stage(batches, 0, "0.1")
    assert (staged.parts, staged.rows) == (["0.1.0", "0.1.1", "0.1.2"], 9)
    monkeypatch.setattr("penstock.spark.sink.writer.PART_BYTES_MAX", 10)
    one_each = writer.stage(rows(payload=['"a long one"', "1"]), 0, "1.1")
    assert len(one_each.parts) == 2
    writer.commit([staged], 0)
    assert payloads(server, app) == list(range(9))


def test_an_empty_batch_says_nothing_to_the_server(app):
    unreachable = make_stream_writer({**GOOD, "app": app}, ENOUGH, overwrite=False)
    assert isinstance(unreachable, StreamSink)
    staged = unreachable.stage(rows(payload=pa.array([], pa.string())), 0, "0.1")
    unreachable.commit([staged, None], 0)
    unreachable.abort([staged, None], 0)


def test_an_aborted_batch_leaves_nothing_and_may_come_again(server, app):
    writer = make(server, app)
    staged = writer.stage(rows(payload=["1"]), 0, "0.1")
    writer.abort([staged, None], 0)
    with pytest.raises(PenstockError, match="run the batch again"):
        writer.commit([staged], 0)
    writer.commit([writer.stage(rows(payload=["1"]), 0, "0.2")], 0)
    assert payloads(server, app) == [1]


def test_a_batch_of_another_history_fails_instead_of_vanishing(server, app):
    writer = make(server, app)
    for batch in (0, 1):
        writer.commit([writer.stage(rows(payload=[str(batch)]), batch, "0.1")], batch)
    new = make(server, app)
    staged = new.stage(rows(payload=["2"]), 0, "0.1")
    with pytest.raises(PenstockError, match="give it a new `app`"):
        new.commit([staged], 0)
    make(server, app, onOldBatch="skip").commit([staged], 0)
    assert payloads(server, app) == [0, 1]


def test_a_data_directory_stands_for_its_server(server, app):
    options = {"path": str(server.data), "app": app, "to": f"stream:{app}", "type": "t"}
    writer = make_stream_writer(options, ENOUGH, overwrite=False)
    assert isinstance(writer, StreamSink)
    assert writer.target.url == server.http
    assert writer.target.token == (server.data / "run" / "operator.token").read_text().strip()


def run(frame: Any, checkpoint: Path, **options: str) -> None:
    """Run a query over what is there now."""
    writer = frame.writeStream.format("penstock").option("checkpointLocation", str(checkpoint))
    query = writer.options(**options).trigger(availableNow=True).start()
    try:
        query.awaitTermination(60)
        assert query.exception() is None
    finally:
        query.stop()


@pytest.mark.promise(
    "Spark: source and sinks", "the sink writes to the queue exactly once, including a replayed batch 0"
)
def test_a_streaming_query_that_is_run_again_sends_each_row_once(spark, server, app, tmp_path):
    from pyspark.sql import functions as f
    from pyspark.sql.utils import StreamingQueryException

    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
    source.mkdir()
    stream = f"{app}/work"
    options = {"url": server.http, "app": app, "type": "reading"}

    def add(*values: int) -> None:
        spark.createDataFrame([(value,) for value in values], "n int").repartition(2).write.mode("append").json(
            str(source)
        )

    frame = (
        spark.readStream.schema("n int")
        .json(str(source))
        .select(
            f.lit(stream).alias("to"),
            f.struct("n", f.map_from_arrays(f.array(f.lit("k")), f.array("n")).alias("m")).alias("payload"),
            f.array(f.lit("hot")).alias("tags"),
            f.create_map(f.lit("unit"), f.lit("C")).alias("headers"),
        )
    )
    add(1, 2, 2)
    run(frame, checkpoint, **options)
    sent = waiting(server, stream)
    assert sorted(row["payload"]["n"] for row in sent) == [1, 2, 2]
    assert all(row["payload"]["m"] == {"k": row["payload"]["n"]} for row in sent)
    assert all((row["type"], row["from"], row["tags"]) == ("reading", f"pipeline/{app}", ["hot"]) for row in sent)
    assert all(row["headers"] == {"unit": "C", "x-penstock-hop": 1} for row in sent)

    (checkpoint / "commits" / "0").unlink()
    (checkpoint / "commits" / ".0.crc").unlink(missing_ok=True)
    run(frame, checkpoint, **options)  # batch 0 once more
    assert waiting(server, stream) == sent

    add(3)
    run(frame, checkpoint, **options)
    assert sorted(row["payload"]["n"] for row in waiting(server, stream)) == [1, 2, 2, 3]
    assert Http(server.http).get(f"/v1/stage/{app}").json["last"] == 1

    shutil.rmtree(checkpoint)
    with pytest.raises(StreamingQueryException, match="give it a new `app`"):
        run(frame, checkpoint, **options)
    assert len(waiting(server, stream)) == 4


def test_a_numbered_write_below_the_newest_is_an_error(server, app):
    options = {"url": server.http, "app": app, "to": f"stream:{app}", "type": "t"}

    def write(batch: int, **more: str) -> None:
        writer = make_writer({**options, "batch": str(batch), **more}, ENOUGH, overwrite=False)
        assert isinstance(writer, BatchSink)
        writer.commit([writer.stage(rows(payload=[str(batch)]), batch, f"0.{batch}")])

    for batch in (4, 5, 5):
        write(batch)
    with pytest.raises(PenstockError, match=f"batch 4 of `{app}` is older than 5.*increases with each write"):
        write(4)
    write(4, onOldBatch="skip")
    assert payloads(server, app) == [4, 5]


def test_rows_that_name_a_space_need_no_type_and_those_for_a_queue_do():
    columns = schema_of(payload=TEXT, to=TEXT)
    writer = make_stream_writer({"url": GOOD["url"], "app": "x"}, columns, overwrite=False)
    assert isinstance(writer, StreamSink)
    [line] = encoder_for(None, None, is_text=False)(next(rows(payload=["1"], to=["space:demo/x"])))
    assert json.loads(line) == {"payload": 1, "to": "space:demo/x"}
    with pytest.raises(PenstockError, match="a row has no `type`"):
        list(encoder_for(None, None, is_text=False)(next(rows(payload=["1"], to=["sam"]))))


def test_a_frame_is_written_whole_and_a_numbered_write_once(spark, server, app):
    frame = spark.range(0, 5, 1, 2).selectExpr("id AS payload")
    writer = frame.write.format("penstock").options(url=server.http, app=app, to=f"stream:{app}", type="t")
    for _ in range(2):
        writer.mode("append").save()
    assert payloads(server, app) == sorted([*range(5), *range(5)])
    for _ in range(2):
        writer.option("batch", "9").mode("append").save()
    assert len(waiting(server, app)) == 15
