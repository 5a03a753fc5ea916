"""A program over Spark Connect, run by `test_connect.py` in a process of its own: a process has either a classic session or this.

    python -m tests.spark.over_connect DATA MASTER

`MASTER` is `local[1]`, or the address of a Connect server, `sc://host:port`. A server runs on `DATA`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import penstock.spark  # before Spark starts: its workers then run this Python
from penstock.spark import java
from tests.paths import ROOT
from tests.spark.shared_pipeline import QUICK_SPARK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUICK = {
    **QUICK_SPARK,
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "OFF",
    "spark.sql.shuffle.partitions": "1",
}


def session(master: str) -> SparkSession:
    """A session as a user makes it, and quick to start."""
    from pyspark.sql import SparkSession

    if master.startswith("sc://"):
        return penstock.spark.make_session("connect", master=master)
    java.use()
    builder = SparkSession.builder.remote(master)
    for name, value in QUICK.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def main(spark: SparkSession, data: str) -> None:
    """Both formats, read and written, in batches and as a stream; the views and the history."""
    from pyspark.sql import functions as f

    assert type(spark).__module__.startswith("pyspark.sql.connect")
    # A relative path is one of the directory in which the server was started.
    events = spark.read.format("penstock").option("columns", "offset,event,channel").load(Path(data).name)
    before = events.where("event = 'enqueue' and channel = 'jobs'").count()
    assert before == 3, before

    # A stream from the journal into a queue, and a batch into another.
    jobs = (
        spark.readStream.format("penstock").option("startingOffsets", "earliest").option("channel", "jobs").load(data)
    )
    echo = jobs.select(f.lit("echo").alias("type"), f.struct("channel", "seq").alias("payload"))
    sink = echo.writeStream.format("penstock").options(path=data, app="echo", to="stream:echoes")
    query = sink.option("checkpointLocation", f"{data}/echo").trigger(availableNow=True).start()
    query.awaitTermination()
    one = spark.range(1).select(
        f.lit("stream:echoes").alias("to"), f.lit("t").alias("type"), f.lit("1").alias("payload")
    )
    one.write.format("penstock").options(path=data, app="one", batch=1).mode("append").save()
    sent = spark.read.format("penstock").option("channel", "echoes").option("event", "enqueue").load(data)
    assert sent.count() == before + 1

    # A table of one's own: each view shows what its table has at the time of the query.
    mine = f"{data}/lake/mine"
    numbers = spark.range(5).selectExpr("id as n")
    numbers.write.format("penstock_delta").mode("append").save(mine)
    assert penstock.spark.tables(spark, data) == ["events", "mine"]
    assert spark.sql("select count(*) as n, sum(n) as total from mine").collect() == [(5, 10)]
    numbers.write.format("penstock_delta").mode("append").save(mine)
    assert spark.sql("select count(*) as n from mine").collect() == [(10,)]
    assert spark.sql("select count(*) as n from events where event = 'enqueue' and channel = 'jobs'").collect() == [
        (before,)
    ]
    sealed = penstock.spark.history(spark, data, since="2026-01-01T00:00:00Z", first=0)
    assert sealed.where("event = 'enqueue' and channel = 'jobs'").count() == before

    # Where only the server sees the directory, its tasks list the tables.
    with patch("os.path.isdir", return_value=False):
        assert penstock.spark.tables(spark, data) == ["events", "mine"]
        assert penstock.spark.history(spark, data, end=1).count() == 1


def declare(spark: SparkSession, data: str, *, dry: bool) -> None:
    """Run the declarative project of the examples in this session, as `spark-pipelines` does, or only check it."""
    from pyspark.pipelines.cli import load_pipeline_spec, register_definitions
    from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry
    from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph, handle_pipeline_events, start_run

    file = ROOT / "examples/declarative/spark-pipeline.yml"
    spec = load_pipeline_spec(file)
    settings = {**spec.configuration, "penstock.data": data}
    for name, value in settings.items():
        spark.conf.set(name, value)
    graph = create_dataflow_graph(spark, default_catalog=None, default_database=None, sql_conf=settings)
    register_definitions(file, SparkConnectGraphElementRegistry(spark, graph), spec, spark, graph)
    run = {"full_refresh": None, "full_refresh_all": False, "refresh": None, "dry": dry}
    handle_pipeline_events(start_run(spark, graph, storage=f"file://{data}/declarative", **run))
    if dry:
        return
    settled = spark.read.format("penstock_delta").load(f"{data}/lake/settled").select("id", "event").collect()
    assert settled == [("w", "ack")], settled


if __name__ == "__main__":
    made = session(sys.argv[2])
    main(made, sys.argv[1])
    declare(made, sys.argv[1], dry=sys.argv[2].startswith("local"))
    made.stop()
