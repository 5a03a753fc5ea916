"""The contract of the server and the Spark process: offsets, states and settings."""

import msgspec
import pytest

from penstock.ipc.pipeline import (
    PipelineSection,
    PipelineStatus,
    QueryStatus,
)


def test_the_slowest_query_or_table_decides_the_lag() -> None:
    status = PipelineStatus("running", end=100, queries={"ingest": QueryStatus(90), "watch": QueryStatus(95)})
    assert (status.offset, status.lag) == (90, 10)
    status.behind = {"sessions": 40}
    assert (status.offset, status.lag) == (40, 60)
    assert PipelineStatus("starting", end=7).lag == 7


def test_the_lag_is_never_negative() -> None:
    assert PipelineStatus("running", end=5, queries={"ingest": QueryStatus(9)}).lag == 0


def test_a_status_survives_its_file() -> None:
    status = PipelineStatus("halted", code="DataLoss", queries={"ingest": QueryStatus(3)}, own={"mine": "running"})
    assert msgspec.json.decode(msgspec.json.encode(status), type=PipelineStatus) == status


@pytest.mark.parametrize(
    "rule",
    [{"kind": "rate", "id": ""}, {"kind": "latency", "id": "a", "above": -1}, {"kind": "storm", "id": "a"}],
)
def test_a_bad_alert_rule_is_rejected(rule: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"alerts": {"rules": [rule]}}, PipelineSection)
