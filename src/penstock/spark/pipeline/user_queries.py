"""Users' streaming queries in the pipeline's session: started and stopped with it, restarted when they fail.

A file has a function `start(spark, place, checkpoint)` that returns a started query. `place` holds the options that tell the formats
of Penstock where the journal and the server are. A query that fails does not affect the others; it is restarted with growing pauses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.spark.pipeline.queries import repair_checkpoint
from penstock.spark.pipeline.steps import load_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

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
        self,
        now_s: float,
        spark: SparkSession,
        place: Mapping[str, str],
        checkpoints: Path,
        describe: Describe,
    ) -> None:
        """Start the query if it is due, and schedule a restart if it has ended."""
        query = self.query
        if query is not None:
            if query.isActive:
                return
            self.query = None
            self._failed(now_s, describe(query.exception() or RuntimeError("it ended by itself")))
        elif now_s >= self._due_s:
            self._began_s = now_s
            try:
                repair_checkpoint(checkpoints / self.name)
                self.query = self._start(spark, place, str(checkpoints / self.name))
                self.state = RUNNING
            except Exception as error:
                self._failed(now_s, describe(error))

    def _failed(self, now_s: float, why: str) -> None:
        if now_s - self._began_s >= STABLE_S:
            self._pause_s = PAUSE_FIRST_S
        self.state = f"{why[:MESSAGE_MAX]}; next attempt after {self._pause_s:g} s"
        self._due_s = now_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)


Describe = Callable[[BaseException], str]
"""Formats a failure as one line."""


def load_queries(files: Sequence[str]) -> list[UserQuery]:
    """Load the queries of these files; QueryError if one cannot be used."""
    found: dict[str, UserQuery] = {}
    for file in files:
        name = f"{OWN}{Path(file).stem}"
        if name in found:
            raise QueryError(f"`pipeline.queries` names two files `{Path(file).name}`; rename one of them")
        found[name] = UserQuery(name, _function(Path(file)))
    return list(found.values())


def _function(file: Path) -> Start:
    start: Any = getattr(load_file(file, "pipeline.queries", QueryError), "start", None)
    if not callable(start):
        raise QueryError(f"`{file}` has no function `start(spark, place, checkpoint)`")
    found: Start = start
    return found
