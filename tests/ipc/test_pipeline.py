"""What the server and the Spark process agree on: offsets, and codes of failures that survive Spark."""

import msgspec
import pytest

from penstock.ipc.pipeline import (
    HALT_HINTS,
    PipelineHaltError,
    PipelineSection,
    PipelineStatus,
    QueryStatus,
    halt_code,
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
    status = PipelineStatus(
        "halted", code="DataLoss", queries={"ingest": QueryStatus(3)}, own={"mine": "running"}
    )
    assert msgspec.json.decode(msgspec.json.encode(status), type=PipelineStatus) == status


@pytest.mark.parametrize("code", HALT_HINTS)
def test_a_code_survives_being_wrapped_in_other_errors(code: str) -> None:
    error = PipelineHaltError(code, "something happened")
    wrapped = f"org.apache.spark.SparkException: Job aborted\n  PipelineHaltError: {error}\n\tat java.base"
    assert error.code == code
    assert halt_code(wrapped) == code


def test_the_innermost_code_counts_and_unknown_marks_do_not() -> None:
    assert halt_code("[halt:BadTable] outer\n[halt:DataLoss] inner\n[halt:Unheard] x") == "DataLoss"
    assert halt_code("the checkpoint is of journal abc") is None


@pytest.mark.parametrize(
    "rule",
    [{"kind": "rate", "id": ""}, {"kind": "latency", "id": "a", "above": -1}, {"kind": "storm", "id": "a"}],
)
def test_a_bad_alert_rule_is_rejected(rule: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"alerts": {"rules": [rule]}}, PipelineSection)
