"""Streaming queries over the journal: how one is started, stopped, and started again after a crash.

Users' queries run in the pipeline's session. A file has a function `start(spark, place, checkpoint)` that returns a started query.
`place` holds the options that tell the formats of Penstock where the journal and the server are. A query that fails does not affect
the others; it is restarted with growing pauses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.spark.pipeline.journal_group import JournalGroup, Positions
from penstock.spark.pipeline.own_tables import load_file
from penstock.spark.source.offsets import decode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from penstock.spark.location import SourceJournal

CHECKPOINTS = "_checkpoints"
"""The directory in the lake with a checkpoint for each query."""
QUERIES = ("ingest", "watch")
READER = "pipeline"
"""Prefix of the named readers that make the journal keep rows until the pipeline has read them."""
_OFFSETS = "offsets"
"""The directory in a checkpoint with one file for each planned batch, named by its number."""


def start_query(
    spark: SparkSession,
    given: SourceJournal | JournalGroup,
    name: str,
    on_batch: Callable[[Positions, int], None],
    checkpoint: Path,
    *,
    start: Positions,
    rows_max: int,
    pause_ms: int | None,
) -> StreamingQuery:
    """Start a query that calls `on_batch` with the ends of each batch: once, up to the current end, or repeatedly with a pause.

    Spark plans and records the batches. `on_batch` reads their rows itself: the driver is faster with few rows than a task.
    """
    repair_checkpoint(checkpoint)
    reader = (
        spark.readStream.format("penstock")
        .options(**JournalGroup.of(given).location_options)
        .option("startingOffsets", JournalGroup.starting_offsets(start))
        .option("maxOffsetsPerTrigger", rows_max)
        # The tables drop the pipeline's own rows later. Dropping them here would leave holes in the offsets of a batch.
        .option("includePipeline", "true")
        .option("reader", f"{READER}-{name}")
    )
    planned = lambda _rows, number: on_batch(planned_ends(checkpoint, number), number)  # noqa: E731 (Spark counts its arguments)
    writer = reader.load().writeStream.queryName(name).foreachBatch(planned)
    writer = writer.option("checkpointLocation", str(checkpoint))
    if pause_ms is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{pause_ms} milliseconds").start()


def planned_ends(checkpoint: Path, number: int) -> Positions:
    """The ends of a batch, which Spark records before it begins: a version, its own settings, then the offsets of each source."""
    text = (checkpoint / _OFFSETS / str(number)).read_text(encoding="utf-8")
    offsets = decode(msgspec.json.decode(text.splitlines()[-1]))
    return {one: point.offset for one, point in offsets.items()}


def stop_query(query: StreamingQuery, deadline: float) -> None:
    """Stop a query between two batches; a batch that runs past the deadline is cut off, and the next run repeats it."""
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
        time.sleep(0.02)
    query.stop()


def repair_checkpoint(checkpoint: Path) -> list[str]:
    """Remove what an interrupted first batch left in a checkpoint; returns the names of the removed files.

    Spark writes the offsets of a batch to a temporary file and renames it. If the process dies in between, before the very first batch,
    the temporary file stays, and a stateful query rejects the checkpoint forever ("should be empty on batch 0"). Nothing was read
    yet, so nothing is lost. A checkpoint that has a batch is not touched.
    """
    try:
        files = sorted((checkpoint / _OFFSETS).iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    if any(file.name.isdigit() for file in files):
        return []
    left = [file for file in files if file.name.startswith(".") and file.is_file()]
    for file in left:
        file.unlink(missing_ok=True)
    return [file.name for file in left]


PAUSE_FIRST_S = 2.0
PAUSE_MAX_S = 60.0
STABLE_S = 120.0
"""After running this long, a query is restarted with the first pause again."""
MESSAGE_MAX = 500
"""Characters of a failure that the state keeps."""
RUNNING = "running"
OWN = "own-"
"""Prefix of the names of user queries and of their checkpoints."""

Start = Callable[["SparkSession", Mapping[str, str], str], "StreamingQuery"]


class QueryError(Exception):
    """A file of `pipeline.queries` that cannot be used; the message says what to change."""

    code = "BadQuery"


class UserQuery:
    """One query of a user."""

    def __init__(self, name: str, start: Start) -> None:
        self.name = name
        self.state = "starting"
        """`running`, or the reason why not."""
        self._start = start
        self.query: StreamingQuery | None = None
        """The running query, if any."""
        self._due_s = 0.0
        self._began_s = 0.0
        self._pause_s = PAUSE_FIRST_S

    def check(
        self, now_s: float, spark: SparkSession, place: Mapping[str, str], checkpoints: Path, describe: Describe
    ) -> str | None:
        """Start the query if it is due, and schedule a restart if it has ended; returns why it has failed just now."""
        query = self.query
        if query is not None:
            if query.isActive:
                return None
            self.query = None
            return self._failed(now_s, describe(query.exception() or RuntimeError("it ended by itself")))
        if now_s >= self._due_s:
            self._began_s = now_s
            try:
                repair_checkpoint(checkpoints / self.name)
                self.query = self._start(spark, place, str(checkpoints / self.name))
                self.state = RUNNING
            except Exception as error:
                return self._failed(now_s, describe(error))
        return None

    def _failed(self, now_s: float, why: str) -> str:
        if now_s - self._began_s >= STABLE_S:
            self._pause_s = PAUSE_FIRST_S
        self.state = f"{why[:MESSAGE_MAX]}; next attempt after {self._pause_s:g} s"
        self._due_s = now_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)
        return why[:MESSAGE_MAX]


Describe = Callable[[BaseException], str]
"""Formats a failure as one line."""


def load_queries(files: Sequence[str]) -> list[UserQuery]:
    """Load the queries of these files; QueryError if one cannot be used."""
    found: dict[str, UserQuery] = {}
    for file in files:
        name = f"{OWN}{Path(file).stem}"
        if name in found:
            raise QueryError(f"`pipeline.queries` names two files `{Path(file).name}`; rename one of them")
        start: Start | None = getattr(load_file(Path(file), "pipeline.queries", QueryError), "start", None)
        if not callable(start):
            raise QueryError(f"`{file}` has no function `start(spark, place, checkpoint)`")
        found[name] = UserQuery(name, start)
    return list(found.values())
