"""Spark's own reports of its streaming queries, as figures of the pipeline's status.

Spark calls the listener in a thread of its own: after each trigger with rows, and every ten seconds without any. Nothing polls the JVM.
"""

# size: one listener

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql.streaming.listener import StreamingQueryListener

from penstock.ipc.pipeline import BatchStatus, PipelineStatus, QueryStatus

if TYPE_CHECKING:
    from uuid import UUID

    from pyspark.sql.streaming import listener

    from penstock.spark.pipeline.queries import UserQuery

WHOLE = "triggerExecution"
"""The phase of a trigger that includes all others."""


class ProgressListener(StreamingQueryListener):
    """Writes phases to a status; for the queries of users, which report nothing themselves, also batches and rates."""

    def __init__(self, status: PipelineStatus, own: Sequence[UserQuery]) -> None:
        self._status, self._own = status, own
        self._known: dict[UUID, QueryStatus] = {}

    def onQueryStarted(self, event: listener.QueryStartedEvent) -> None: ...  # noqa: N802 - Spark's name

    def onQueryProgress(self, event: listener.QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        progress = event.progress
        took = dict(progress.durationMs)
        query = self._status.queries.get(progress.name or "")
        if query is None:
            # The queries of users have names of their own, or none.
            own = (one.name for one in self._own if one.query is not None and str(one.query.id) == str(progress.id))
            query = self._status.own_queries.setdefault(next(own, progress.name or ""), QueryStatus())
            steps = {phase: ms for phase, ms in took.items() if phase != WHOLE}
            query.ended(BatchStatus(time.time_ns() // 1000, progress.numInputRows or 0, took.get(WHOLE, 0), steps))
            rate = progress.inputRowsPerSecond
            query.input_rate = round(rate, 1) if rate is not None and math.isfinite(rate) else 0.0
        query.trigger, self._known[progress.id] = took, query

    def onQueryIdle(self, event: listener.QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        if event.id in self._known:
            self._known[event.id].input_rate = 0.0

    def onQueryTerminated(self, event: listener.QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        self._known.pop(event.id, None)
