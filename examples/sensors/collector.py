"""The mean of each sensor every two seconds, computed by Spark from the frames for the collector and sent to the whole space.

This is a query of your own: `pipeline.queries` of the config names this file, and the pipeline runs it in its session. In another
session, such as a notebook's, call `start(spark, {"path": "penstock-data"}, "a-checkpoint")`; with `url` and `token` it runs on another
machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FOR_US = "array_contains(from_json(meta, 'target array<string>').target, 'collector')"


def readings(spark: SparkSession, place: Mapping[str, str]) -> DataFrame:
    """Every reading from now on: the frames of streams that target the collector."""
    from pyspark.sql import functions as f

    frames = (
        spark.readStream.format("penstock")
        .options(**place)
        .option("door", "mew")
        .option("event", "frame")
        .option("channel", "demo/*")
        .option("columns", "recorded_at,sender,meta,body")
        .option("bodyAs", "json")
        .load()
    )
    return frames.where(FOR_US).select(
        "recorded_at", "sender", f.from_json("body", "celsius double").celsius.alias("celsius")
    )


def averages(measured: DataFrame) -> DataFrame:
    """The mean of each sensor every two seconds, as payloads of frames.

    Time never goes back in a journal, so no reading is late: a window ends with the first reading after it.
    """
    from pyspark.sql import functions as f

    by_window = measured.withWatermark("recorded_at", "0 seconds").groupBy(
        f.window("recorded_at", "2 seconds"), "sender"
    )
    means = by_window.agg(f.avg("celsius").alias("celsius"), f.count("*").alias("readings"))
    found = f.struct(f.col("sender").alias("sensor"), f.col("window.start").alias("from"), "celsius", "readings")
    return means.select(found.alias("payload"))


def start(spark: SparkSession, place: Mapping[str, str], checkpoint: str) -> StreamingQuery:
    """Start the query: it sends every window once, when it ends."""
    return (
        averages(readings(spark, place))
        .writeStream.format("penstock")
        .options(**place)
        .option("app", "sensor-averages")
        .option("to", "space:demo/averages")
        .option("checkpointLocation", checkpoint)
        .outputMode("append")
        .trigger(processingTime="500 milliseconds")
        .start()
    )
