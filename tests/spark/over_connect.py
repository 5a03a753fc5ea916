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
SENT = 3
OURS = "event = 'enqueue' and channel = 'jobs'"


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
    """A batch into a queue, the view of a table, and the history."""
    from pyspark.sql import functions as f

    assert type(spark).__module__.startswith("pyspark.sql.connect")
    one = spark.range(1).select(f.lit("stream:ones").alias("to"), f.lit("t").alias("type"), f.lit("1").alias("payload"))
    one.write.format("penstock").options(path=data, app="one", batch=1).mode("append").save()
    assert penstock.spark.tables(spark, data) == ["events"]
    assert spark.sql(f"select count(*) from events where {OURS}").collect() == [(SENT,)]
    sealed = penstock.spark.history(spark, data, since="2026-01-01T00:00:00Z", first=0)
    assert sealed.where(OURS).count() == SENT


def more(spark: SparkSession, data: str) -> None:
    """A stream from the journal into a queue; views that follow their tables, and a directory that only the server sees."""
    from pyspark.sql import functions as f

    # A relative path is one of the directory in which the server was started.
    here = Path(data).name
    journal = spark.readStream.format("penstock").option("startingOffsets", "earliest")
    jobs = journal.option("channel", "jobs").option("event", "enqueue").load(here)
    echo = jobs.select(f.lit("echo").alias("type"), f.struct("channel", "seq").alias("payload"))
    sink = echo.writeStream.format("penstock").options(path=here, app="echo", to="stream:echoes")
    query = sink.option("checkpointLocation", f"{data}/echo").trigger(availableNow=True).start()
    query.awaitTermination()
    sent = spark.read.format("penstock").option("channel", "echoes").option("event", "enqueue").load(here)
    assert sent.count() == SENT

    numbers = spark.range(5).selectExpr("id as n")
    numbers.write.format("penstock_delta").mode("append").save(f"{data}/lake/mine")
    assert penstock.spark.tables(spark, data) == ["events", "mine"]
    assert spark.sql("select count(*), sum(n) from mine").collect() == [(5, 10)]
    numbers.write.format("penstock_delta").mode("append").save(f"{data}/lake/mine")
    assert spark.sql("select count(*) from mine").collect() == [(10,)]

    keyed = numbers.write.format("penstock_delta").mode("append").option("mergeKeys", "n")
    keyed.save(f"{data}/own/keyed")
    keyed.save(f"{data}/own/keyed")
    feed = spark.readStream.format("penstock_delta").option("readChangeFeed", "true").option("startingVersion", "1")
    chain = feed.load(f"{data}/own/keyed").writeStream.format("penstock_delta").option("appId", "chain")
    chain = chain.option("checkpointLocation", f"{data}/chain").trigger(availableNow=True)
    chain.start(f"{data}/own/chained").awaitTermination()
    kinds = spark.read.format("penstock_delta").load(f"{data}/own/chained").groupBy("_change_type").count().collect()
    assert sorted(map(tuple, kinds)) == [("insert", 5), ("update_postimage", 5), ("update_preimage", 5)], kinds

    with patch("os.path.isdir", return_value=False):
        assert penstock.spark.tables(spark, data) == ["events", "mine"]
        assert penstock.spark.history(spark, data, end=1).count() == 1


def declare(spark: SparkSession, data: str) -> None:
    """Run the declarative project of the examples in this session, as `spark-pipelines` does."""
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
    run = {"full_refresh": None, "full_refresh_all": False, "refresh": None, "dry": False}
    handle_pipeline_events(start_run(spark, graph, storage=f"file://{data}/declarative", **run))
    settled = spark.read.format("penstock_delta").load(f"{data}/lake/settled").select("id", "event").collect()
    assert settled == [("w", "ack")], settled


if __name__ == "__main__":
    made = session(sys.argv[2])
    main(made, sys.argv[1])
    more(made, sys.argv[1])
    declare(made, sys.argv[1])
    made.stop()
