"""Figures of the tables and their alerts, read again only when a table changed."""

from __future__ import annotations

import asyncio
import shutil
from datetime import UTC, datetime, timedelta

import msgspec
import pyarrow as pa
import pytest
from deltalake import write_deltalake

import penstock.server.admin.lake
from penstock.core.errors import Refusal
from penstock.ipc.pipeline import PipelineStatus, QueryStatus
from penstock.server.admin.lake import ALERTS_MAX, Lake, pipeline_state

START = datetime(2026, 3, 1, tzinfo=UTC)
ALERTS = pa.schema(
    {
        "journal": pa.string(),
        **dict.fromkeys(("id", "rule", "severity", "subject"), pa.string()),
        **dict.fromkeys(("window_start", "window_end"), pa.timestamp("us", tz="UTC")),
        **dict.fromkeys(("value", "threshold"), pa.float64()),
        **dict.fromkeys(("message", "state"), pa.string()),
        **dict.fromkeys(("fired_at", "resolved_at"), pa.timestamp("us", tz="UTC")),
        "envelope_id": pa.string(),
    }
)


def alert(number, state):
    at = START + timedelta(minutes=number)
    return {
        "id": f"a{number:03d}",
        "rule": "dead-letters",
        "severity": "warning",
        "subject": "jobs",
        "value": 2.0,
        "threshold": 0.0,
        "message": "too many",
        "state": state,
        "fired_at": at,
        "resolved_at": at + timedelta(minutes=1) if state == "resolved" else None,
    }


def write_alerts(data, *rows):
    write_deltalake(data / "lake" / "alerts", pa.Table.from_pylist(list(rows), ALERTS), mode="append")


def tables(lake):
    return msgspec.to_builtins(asyncio.run(lake.tables()))["tables"]


def alerts(lake):
    return msgspec.to_builtins(asyncio.run(lake.alerts()))["alerts"]


@pytest.fixture
def counted(monkeypatch):
    """How often logs and files are really read."""
    reads = []
    for name in ("summary", "alerts"):
        original = getattr(penstock.server.admin.lake, name)

        def noted(*args, original=original, name=name):
            reads.append((name, *args[1:]))
            return original(*args)

        monkeypatch.setattr(penstock.server.admin.lake, name, noted)
    return reads


@pytest.mark.promise("Tail and SQL for administrators", "tables and alerts are read again only when they changed")
def test_every_table_has_figures_and_is_read_again_only_when_it_changed(tmp_path, counted):
    lake = Lake(tmp_path)
    assert tables(lake) == []
    write_deltalake(tmp_path / "lake" / "notes", pa.table({"n": [1, 2], "text": ["a", "b"]}))
    write_deltalake(tmp_path / "lake" / "other", pa.table({"n": [1]}))
    (tmp_path / "lake" / "_locks").mkdir()
    notes, other = tables(lake)
    assert (notes["name"], notes["rows"], notes["files"], notes["version"]) == ("notes", 2, 1, 0)
    assert notes["bytes"] > 0 and notes["updated_at"].endswith("Z") and notes["updated_at"][:2] == "20"
    assert notes["columns"] == [{"name": "n", "type": "int64"}, {"name": "text", "type": "string"}]
    assert [*counted] == [("summary", "notes"), ("summary", "other")]
    assert tables(lake) == [notes, other] and len(counted) == 2
    write_deltalake(tmp_path / "lake" / "notes", pa.table({"n": [3], "text": ["c"]}), mode="append")
    again, same = tables(lake)
    assert (again["rows"], again["files"], again["version"]) == (3, 2, 1) and same == other
    assert counted[2:] == [("summary", "notes")]
    shutil.rmtree(tmp_path / "lake" / "notes")
    assert tables(lake) == [other]


@pytest.mark.promise("Tail and SQL for administrators", "tables and alerts are read again only when they changed")
def test_alerts_that_fire_come_first_and_the_newest_of_each_kind(tmp_path, counted):
    lake = Lake(tmp_path)
    assert alerts(lake) == []
    write_alerts(tmp_path, alert(1, "firing"), alert(2, "resolved"))
    write_alerts(tmp_path, alert(3, "resolved"), alert(4, "firing"))
    found = alerts(lake)
    assert [one["id"] for one in found] == ["a004", "a001", "a003", "a002"]
    assert found[0] == {
        **alert(4, "firing"),
        "fired_at": "2026-03-01T00:04:00.000000Z",
        "resolved_at": None,
    }
    assert found[2]["resolved_at"] == "2026-03-01T00:04:00.000000Z"
    reads = len(counted)
    assert alerts(lake) == found and len(counted) == reads
    write_alerts(tmp_path, *(alert(number, "resolved") for number in range(10, 200)))
    found = alerts(lake)
    assert len(found) == ALERTS_MAX
    assert [one["id"] for one in found[:4]] == ["a004", "a001", "a199", "a198"]


def test_a_server_without_a_directory_has_neither():
    for answer in (Lake(None).tables, Lake(None).alerts):
        refused = asyncio.run(answer())
        assert isinstance(refused, Refusal) and refused.code == "UnknownRoute" and refused.hint


def test_the_state_of_the_pipeline_has_every_name_whatever_it_left_out():
    assert msgspec.to_builtins(pipeline_state(None)) == {
        "state": "off",
        **dict.fromkeys(("lag", "end", "offset", "restarts"), 0),
        "queries": {},
        "tables": {},
        "behind": {},
        "own": {},
        "own_queries": {},
        "failed": [],
        "stopped": {},
        "expectations": [],
        **dict.fromkeys(("code", "message", "hint", "ui")),
    }
    status = PipelineStatus("running", end=50, queries={"ingest": QueryStatus(40, 2, 10, 300, 7)}, behind={"x": 30})
    status.own["means"] = "running"
    told = msgspec.to_builtins(pipeline_state(status))
    assert (told["lag"], told["offset"], told["behind"]) == (20, 30, {"x": 30})
    assert told["own"] == {"means": "running"}
    counts = {"offset": 40, "batches": 2, "rows": 10, "batch_ms": 300, "at_us": 7}
    assert told["queries"]["ingest"] == {**counts, "recent": [], "input_rate": 0.0, "trigger": {}}
