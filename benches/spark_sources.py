"""The peers of `penstock bench pipeline`: Spark's own JSON and Parquet sources, next to Penstock's on the same rows."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from penstock.bench.harness.load import LoadReport, announce
from penstock.bench.harness.result import BenchCell, BenchError, BenchRound
from penstock.bench.pipeline.spark_loads import SparkJob
from penstock.journal.parquet_table import FILE_SCHEMA
from penstock.spark.session import make_session
from penstock.testing.history import make_history

MEMORY = "2g"  # Spark's heap: enough for every source


@dataclass(frozen=True)
class SourceQuery:
    """A query on every source."""

    name: str
    columns: str
    """The columns it needs, for the option `columns`; empty when it needs all."""
    mode: str
    apply: Callable[[DataFrame], DataFrame]


def _window(rows: DataFrame) -> DataFrame:
    late = rows.withWatermark("recorded_at", "1 minute")
    return late.groupBy(f.window("recorded_at", "1 minute"), "channel").count()


QUERIES = {
    "scan": SourceQuery("scan of all columns", "", "append", lambda rows: rows),
    "count": SourceQuery("count", "offset", "update", lambda rows: rows.groupBy().count()),
    "window": SourceQuery("window aggregation", "recorded_at,channel", "update", _window),
}


def source(job: SparkJob) -> LoadReport:
    """Each query on every source: once to warm up, then `rounds` times, the sources alternating."""
    folder, rows = Path(job.folder), job.rows[0]
    announce(note=f"making {rows:,} rows")
    data = make_history(folder / "source", rows)
    conf = {"spark.local.dir": str(folder), "spark.sql.warehouse.dir": str(folder / "warehouse")}
    conf["spark.ui.enabled"] = "false"
    spark = make_session("penstock bench", master=job.master, memory=MEMORY, conf=conf)
    try:
        announce(note="writing the same rows as JSON")
        table = spark.read.parquet(str(data / "lake" / "events")).drop("date")
        table.withColumn("body", table.body.cast("string")).write.json(str(data / "json"))
        for query in [QUERIES[name] for name in job.queries]:
            sources = _open_sources(spark, data, query)
            done: dict[tuple[str, str], list[BenchRound]] = {name: [] for name in sources}
            for number in range(job.rounds + 1):
                announce(note=f"{query.name}: " + (f"round {number} of {job.rounds}" if number else "warming up"))
                for name, frame in sources.items():
                    done[name].append(_run(query, frame(), rows, folder / "checkpoints"))
            for (target, client), found in done.items():
                chosen = f"columns={query.columns}" if client == "columns" else "every column"
                words = f'format("penstock"), {chosen}; 256 Ki rows a task'
                if target != "penstock":
                    kind = target.partition(" ")[0]
                    words = f"Spark's own {kind} stream over the same rows, with a given schema"
                announce(cell=BenchCell(f"source, {query.name}", target, client, words, found[1:]))
    finally:
        spark.stop()
    return LoadReport(rows)


def _open_sources(
    spark: SparkSession, data: Path, query: SourceQuery
) -> dict[tuple[str, str], Callable[[], DataFrame]]:
    """How each source reads the rows, by its name and by the columns it is asked for."""
    schema = from_arrow_schema(FILE_SCHEMA)
    # Bodies are JSON text, which the JSON source would parse.
    as_text = StructType([StructField(one.name, StringType()) if one.name == "body" else one for one in schema.fields])

    def ours(**options: str) -> DataFrame:
        reader = spark.readStream.format("penstock").options(startingOffsets="earliest", **options)
        return reader.load(str(data))

    sources: dict[tuple[str, str], Callable[[], DataFrame]] = {}
    if query.columns:
        sources["penstock", "columns"] = lambda: ours(columns=query.columns)
    sources["penstock", "all columns"] = ours
    sources["JSON files", "Spark"] = lambda: spark.readStream.schema(as_text).json(str(data / "json"))
    events = str(data / "lake" / "events")
    sources["Parquet files", "Spark"] = lambda: spark.readStream.schema(schema).parquet(events).drop("date")
    return sources


def _run(query: SourceQuery, frame: DataFrame, count: int, checkpoints: Path) -> BenchRound:
    """One run. `seconds` is the time inside batches; `wall_s` includes the start of the query."""
    begun = time.perf_counter()
    writer = query.apply(frame).writeStream.format("noop").outputMode(query.mode).trigger(availableNow=True)
    running = writer.option("checkpointLocation", str(checkpoints / f"{time.monotonic_ns()}")).start()
    running.awaitTermination()
    wall_s = time.perf_counter() - begun
    batches = running.recentProgress
    read = sum(batch.numInputRows for batch in batches)
    if read != count:
        raise BenchError(f"{query.name}: {read} rows were read of {count}")
    done = BenchRound.timed(count, sum(batch.durationMs["triggerExecution"] for batch in batches) / 1000)
    done.wall_s = round(wall_s, 3)
    return done
