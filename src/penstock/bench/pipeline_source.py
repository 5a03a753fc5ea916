"""The source beside Spark's own: the same rows through `format("penstock")`, JSON files and Parquet files.

Every query is a stream that reads all there is and ends, into a sink that drops it. Each source does each query once to
warm up; then they take turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.bench.pipeline_processes import Found, Said, SparkJob, TimedRound
from penstock.bench.pipeline_rows import make_history
from penstock.bench.processes import BenchError
from penstock.journal.parquet_table import FILE_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MEMORY = "2g"
"""Heap of Spark: enough for every source, with the compilers that Spark has by default."""
WATERMARK = "1 minute"

Frame = Callable[[], "DataFrame"]


@dataclass(frozen=True)
class Query:
    """What is asked of every source."""

    name: str
    columns: str
    """What it needs of a row, for the option `columns`; empty when it needs all."""
    mode: str
    ask: Callable[[DataFrame], DataFrame]


def _window(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    late = rows.withWatermark("recorded_at", WATERMARK)
    return late.groupBy(f.window("recorded_at", "1 minute"), "channel").count()


QUERIES = {
    "scan": Query("scan of all columns", "", "append", lambda rows: rows),
    "count": Query("count", "offset", "update", lambda rows: rows.groupBy().count()),
    "window": Query("window aggregation", "recorded_at,channel", "update", _window),
}


def measure(job: SparkJob) -> Iterator[Said]:
    """Each query on every source, `job.rounds` times."""
    from penstock.spark.session import make_session

    folder, rows = Path(job.folder), job.rows[0]
    yield Said(note=f"making {rows:,} rows")
    data = make_history(folder / "source", rows)
    conf = {"spark.local.dir": str(folder), "spark.sql.warehouse.dir": str(folder / "warehouse")}
    spark = make_session(
        "penstock bench", master=job.master, memory=MEMORY, conf={**conf, "spark.ui.enabled": "false"}
    )
    try:
        yield Said(note="writing the same rows as JSON")
        json = _as_json(spark, data)
        for query in [QUERIES[name] for name in job.queries]:
            yield from _measure(job, query, _sources(spark, data, json, query), rows)
    finally:
        spark.stop()


def _as_json(spark: SparkSession, data: Path) -> Path:
    """The rows as Spark itself writes them; bodies are JSON text, so they are kept as text."""
    rows = spark.read.parquet(str(data / "lake" / "events")).drop("date")
    rows.withColumn("body", rows.body.cast("string")).write.json(str(data / "json"))
    return data / "json"


def _sources(spark: SparkSession, data: Path, json: Path, query: Query) -> dict[tuple[str, str], Frame]:
    """How each source gives the rows, by its name and by what it was told."""
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StringType, StructField, StructType

    schema = from_arrow_schema(FILE_SCHEMA)
    as_text = StructType(
        [StructField(one.name, StringType()) if one.name == "body" else one for one in schema.fields]
    )
    ours = spark.readStream.format("penstock").option("startingOffsets", "earliest")
    sources: dict[tuple[str, str], Frame] = {("penstock", "all columns"): lambda: ours.load(str(data))}
    if query.columns:
        chosen = spark.readStream.format("penstock").option("startingOffsets", "earliest")
        chosen = chosen.option("columns", query.columns)
        sources = {("penstock", "columns"): lambda: chosen.load(str(data)), **sources}
    sources["JSON files", "Spark"] = lambda: spark.readStream.schema(as_text).json(str(json))
    events = str(data / "lake" / "events")
    sources["Parquet files", "Spark"] = lambda: spark.readStream.schema(schema).parquet(events).drop("date")
    return sources


def _measure(
    job: SparkJob, query: Query, sources: dict[tuple[str, str], Frame], count: int
) -> Iterator[Said]:
    done: dict[tuple[str, str], list[TimedRound]] = {name: [] for name in sources}
    for number in range(job.rounds + 1):
        yield Said(note=f"{query.name}: " + (f"round {number} of {job.rounds}" if number else "warming up"))
        for name, frame in sources.items():
            round_ = _run(query, frame, count, Path(job.folder) / "checkpoints")
            if number:
                done[name].append(round_)
    for (target, client), rounds in done.items():
        yield Said(
            found=Found(f"source, {query.name}", target, client, _words(target, client, query), rounds)
        )


def _words(target: str, client: str, query: Query) -> str:
    """What was read, and how."""
    if target != "penstock":
        return f"Spark's own {target.partition(' ')[0]} stream over the same rows, with a given schema"
    chosen = f"columns={query.columns}" if client == "columns" else "every column"
    return f'format("penstock"), {chosen}; 256 Ki rows a task'


def _run(query: Query, frame: Frame, count: int, checkpoints: Path) -> TimedRound:
    """One run. `seconds` is the time inside batches; `wall_s` has the start of the query too."""
    begun = time.perf_counter()
    writer = query.ask(frame()).writeStream.format("noop").outputMode(query.mode).trigger(availableNow=True)
    running = writer.option("checkpointLocation", str(checkpoints / f"{time.monotonic_ns()}")).start()
    running.awaitTermination()
    wall_s = time.perf_counter() - begun
    batches = running.recentProgress
    read = sum(batch.numInputRows for batch in batches)
    if read != count:
        raise BenchError(f"{query.name}: {read} rows were read of {count}")
    seconds = sum(batch.durationMs["triggerExecution"] for batch in batches) / 1000
    return TimedRound(count, round(seconds, 3), round(count / seconds, 1), wall_s=round(wall_s, 3))
