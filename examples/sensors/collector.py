"""The mean of each sensor by two seconds, computed by Spark from the frames for the collector and told to all of the space.

Run it with `python examples/sensors/collector.py penstock-data`, the data directory of the server; `url` and `tokenFile` in the place of
both paths let it run on another machine.
"""

import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

from penstock.spark.session import make_session

FOR_US = "array_contains(from_json(meta, 'target array<string>').target, 'collector')"


def readings(spark: SparkSession, data: str) -> DataFrame:
    """Every reading from now on: the frames of streams that are for the collector."""
    frames = (
        spark.readStream.format("penstock")
        .option("door", "mew")
        .option("event", "frame")
        .option("channel", "demo/*")
        .option("columns", "recorded_at,sender,meta,body")
        .option("bodyAs", "json")
        .load(data)
    )
    return frames.where(FOR_US).select(
        "recorded_at", "sender", f.from_json("body", "celsius double").celsius.alias("celsius")
    )


def averages(measured: DataFrame) -> DataFrame:
    """The mean of each sensor by two seconds, as payloads of frames.

    Time never goes back in a journal, so no reading is late: a window is over with the first reading after it.
    """
    by_window = measured.withWatermark("recorded_at", "0 seconds").groupBy(
        f.window("recorded_at", "2 seconds"), "sender"
    )
    means = by_window.agg(f.avg("celsius").alias("celsius"), f.count("*").alias("readings"))
    found = f.struct(
        f.col("sender").alias("sensor"), f.col("window.start").alias("from"), "celsius", "readings"
    )
    return means.select(found.alias("payload"))


def start(spark: SparkSession, data: str, checkpoint: str) -> StreamingQuery:
    """The query: every window is told once, when it is over."""
    return (
        averages(readings(spark, data))
        .writeStream.format("penstock")
        .option("path", data)
        .option("app", "sensor-averages")
        .option("to", "space:demo/averages")
        .option("checkpointLocation", checkpoint)
        .outputMode("append")
        .trigger(processingTime="500 milliseconds")
        .start()
    )


if __name__ == "__main__":
    place = Path(sys.argv[1])
    start(
        make_session("collector", master="local[2]"), str(place), str(place / "collector-checkpoint")
    ).awaitTermination()
