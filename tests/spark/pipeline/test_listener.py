"""Spark's reports as figures of the status; no JVM is needed. `test_process.py` has the reports of a real session."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest
from pyspark.sql.streaming.listener import QueryIdleEvent, QueryProgressEvent, StreamingQueryProgress

from penstock.ipc.pipeline import BatchStatus, PipelineStatus, QueryStatus
from penstock.spark.pipeline.listener import ProgressListener
from penstock.spark.pipeline.queries import UserQuery

INGEST, OWN = uuid4(), uuid4()


def report(id_: UUID, name: str | None, rows: int, rate: float, **ms: int) -> QueryProgressEvent:
    said: dict[str, Any] = {"id": str(id_), "runId": str(uuid4()), "name": name, "timestamp": "", "batchId": 3}
    said |= {"batchDuration": 0, "durationMs": ms, "stateOperators": [], "sources": []}
    said |= {"sink": {"description": "", "numOutputRows": 0}, "numInputRows": rows, "inputRowsPerSecond": rate}
    return QueryProgressEvent(StreamingQueryProgress.fromJson(said))


@pytest.fixture
def status() -> PipelineStatus:
    return PipelineStatus("running", queries={"ingest": QueryStatus(offset=7)})


@pytest.fixture
def listener(status: PipelineStatus) -> ProgressListener:
    def start(*_: Any) -> Any:
        return SimpleNamespace(id=OWN, isActive=True)

    own = UserQuery("own-means", start)
    own.query = start()
    return ProgressListener(status, [own])


def test_the_rate_is_that_of_the_batches_and_the_phases_are_those_of_spark(
    status: PipelineStatus, listener: ProgressListener
) -> None:
    ingest = status.queries["ingest"]
    for at_s in (10, 12):
        ingest.ended(BatchStatus(at_s * 1_000_000, 25, 60, {}))
    listener.onQueryProgress(report(INGEST, "ingest", 0, 0.0, triggerExecution=80, addBatch=60))
    assert (ingest.input_rate, ingest.trigger) == (12.5, {"triggerExecution": 80, "addBatch": 60})
    assert (ingest.offset, ingest.batches) == (7, 2), "the pipeline reports its own batches"
    listener.onQueryIdle(QueryIdleEvent(OWN, uuid4(), ""))
    assert ingest.input_rate == 12.5, "another query is idle"
    listener.onQueryIdle(QueryIdleEvent(INGEST, uuid4(), ""))
    assert ingest.input_rate == 0.0


@pytest.mark.parametrize("rate", [math.nan, math.inf])
def test_a_rate_that_is_no_number_can_be_written(
    status: PipelineStatus, listener: ProgressListener, rate: float
) -> None:
    listener.onQueryProgress(report(OWN, None, 50, rate))
    written = msgspec.json.decode(msgspec.json.encode(status), type=PipelineStatus)
    assert written.own_queries["own-means"].input_rate == 0.0


@pytest.mark.promise("Spark: pipeline", "a query of yours is watched as those of the pipeline are")
def test_the_batches_of_a_users_query_are_known_by_its_file(status: PipelineStatus, listener: ProgressListener) -> None:
    for rows in (5, 9):
        listener.onQueryProgress(report(OWN, None, rows, 4.0, triggerExecution=80, addBatch=60, walCommit=15))
    query = status.own_queries["own-means"]
    assert (query.batches, query.rows, query.batch_ms, query.input_rate) == (2, 9, 80, 4.0)
    assert query.recent[-1].steps == {"addBatch": 60, "walCommit": 15}
    assert status.offset == 7, "its offset is not known and does not count"
