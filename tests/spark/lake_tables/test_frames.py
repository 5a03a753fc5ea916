"""Events of spaces as rows of the lake: envelopes of both protocols, frames, and deliveries saved by targeting."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.rows import Row
from penstock.spark.lake.schemas import FANOUT_MINUTES, FRAMES
from penstock.spark.lake_tables import conversations
from penstock.spark.lake_tables.deliveries import deliveries
from penstock.spark.lake_tables.envelopes import agents, envelope_rows, envelopes, parse_mew
from penstock.spark.lake_tables.frames import fanout_minutes, frames
from penstock.spark.lake_tables.minutes import MINUTE_US, from_us
from penstock.spark.lake_tables.queue_minutes import queue_minutes
from tests.spark.journaled import JOURNAL, MINUTE_0, Journaled, events_of, holder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SECOND_US = 1_000_000


def said(kind: str, id_: str, who: str, **more: Any) -> Row:
    """An envelope in the space `demo`."""
    answers = more.get("correlation_id")
    body = {
        "protocol": "mew/v0.4",
        "id": id_,
        "ts": "2026-01-01T00:00:00Z",
        "from": who,
        "kind": kind,
        **more,
    }
    return Row(
        door="mew",
        event="envelope",
        channel="demo",
        id=id_,
        kind=kind,
        sender=who,
        corr=answers[0] if answers else None,
        recipients=3,
        body=msgspec.json.encode(body),
    )


def frame(number: int, channel: str, meta: dict[str, Any] | None, body: bytes = b"data", **more: Any) -> Row:
    told = None if meta is None else msgspec.json.encode(meta).decode()
    return Row(
        door="mew",
        event="frame",
        channel=channel,
        seq=number,
        sender="sensor-1",
        size=len(body),
        meta=told,
        body=body,
        **more,
    )


def counted(number: int, channel: str, **meta: Any) -> Row:
    return Row(
        door="mew",
        event="frame_counts",
        channel=channel,
        seq=number,
        sender="sensor-1",
        meta=msgspec.json.encode(meta).decode(),
    )


def placed(rows: list[tuple[float, Row]], first: int = 0) -> list[Row]:
    """Rows as a journal numbers them, each so many seconds after the beginning of the first minute."""
    return [
        msgspec.structs.replace(row, offset=first + place, recorded_at=MINUTE_0 + round(seconds * SECOND_US))
        for place, (seconds, row) in enumerate(rows)
    ]


def framed(spark: SparkSession, rows: list[tuple[float, Row]]) -> DataFrame:
    return spark.createDataFrame(events_of(placed(rows)))


# Envelopes


@pytest.mark.promise(
    "Spark: pipeline",
    "every envelope of a space is a row of silver, whatever it contains; conversations span both protocols",
)
def test_an_envelope_of_a_space_is_read_with_what_no_column_has_in_extra() -> None:
    more = {"to": ["kim"], "correlation_id": ["a", "b"], "context": {"sub": 1}, "payload": {"text": "hi"}}
    (row,) = envelope_rows(events_of(placed([(0, said("chat", "1", "sam", **more))])).to_batches()[0]).to_pylist()
    assert (row["door"], row["channel"], row["type"], row["sender"]) == ("mew", "demo", "chat", "sam")
    assert (row["targets"], row["corr"], row["refs"]) == (["kim"], "a", ["a", "b"])
    assert (row["payload"], row["payload_error"]) == ('{"text":"hi"}', None)
    assert row["producer_ts"] == datetime(2026, 1, 1, tzinfo=UTC)
    assert msgspec.json.decode(row["extra"]) == {"protocol": "mew/v0.4", "context": {"sub": 1}}
    assert (row["tags"], row["headers"], row["schema"]) == (None, None, None)


def test_one_that_is_for_all_has_no_targets_and_need_not_have_a_payload() -> None:
    (row,) = envelope_rows(events_of(placed([(0, said("ping", "1", "sam"))])).to_batches()[0]).to_pylist()
    assert (row["targets"], row["refs"], row["payload"], row["payload_error"]) == ([], None, None, None)


@pytest.mark.parametrize(
    ("member", "value"),
    [("to", [1]), ("to", {"a": 1}), ("correlation_id", 7), ("ts", "soon"), ("tags", ["x"]), ("type", "t")],
)
def test_a_member_that_is_not_what_it_should_be_stays_in_extra(member: str, value: object) -> None:
    made = parse_mew(msgspec.json.encode({"kind": "chat", member: value}))
    assert made.problem is None
    assert made.extra is not None
    assert msgspec.json.decode(made.extra) == {member: value}
    assert (made.targets, made.refs, made.ts_us) == (None, None, None)


def test_single_texts_are_lists_of_one() -> None:
    made = parse_mew(b'{"to":"kim","correlation_id":"a"}')
    assert (made.targets, made.refs, made.extra) == (["kim"], ["a"], None)


@pytest.mark.promise(
    "Spark: pipeline",
    "every envelope of a space is a row of silver, whatever it contains; conversations span both protocols",
)
@given(st.one_of(st.binary(), st.text().map(str.encode)))
def test_no_bytes_make_it_raise(data: bytes) -> None:
    made = parse_mew(data)
    assert made.problem or data.strip().startswith(b"{")


# Frames


@pytest.mark.promise(
    "Spark: pipeline",
    "`frames` and `fanout_minutes` show the traffic of a space and the deliveries saved by targeting",
)
def test_frames_and_minutes_hold_what_passed_and_what_targeting_saved(spark: SparkSession) -> None:
    from pyspark.sql.pandas.types import from_arrow_schema

    rows = [
        (1, frame(1, "lab/demo/stream-1", {"participants": 5, "target": ["agg"]}, b"\x00\xff", recipients=1)),
        (2, frame(2, "lab/demo/stream-1", {"participants": 4}, b"abc", recipients=4)),
        (2, frame(3, "lab/demo/stream-1", None, b"", recipients=2)),
        (3, counted(9, "lab/demo/stream-2", frames=7, bytes=70, deliveries=7, participants=5, broadcast=35, target=["agg"])),
        (4, counted(9, "other/stream-2", frames=2, bytes=9, deliveries=6, participants=3, broadcast=6)),
        (4, said("chat", "1", "sam", payload={"text": "no frame"})),
        (59.9, counted(19, "lab/demo/stream-2", frames=1, bytes=1, deliveries=0, participants=5, broadcast=5)),
        (60, frame(4, "lab/demo/stream-1", {"participants": 4, "target": "odd"}, b"abc", recipients=4)),
        (61, Row(event="enqueue", channel="frames", id="e", kind="frame", body=b"{}")),
    ]  # fmt: skip
    events = framed(spark, rows)
    made = frames(events)
    assert made.schema.simpleString() == from_arrow_schema(FRAMES.schema).simpleString()
    first, *others = made.orderBy("offset").toArrow().to_pylist()
    assert first == {
        "journal": JOURNAL,
        "offset": 0,
        "date": from_us(MINUTE_0).date(),
        "recorded_at": from_us(MINUTE_0 + SECOND_US),
        "space": "lab/demo",
        "stream_id": "stream-1",
        "seq": 1,
        "sender": "sensor-1",
        "targets": ["agg"],
        "recipients": 1,
        "participants": 5,
        "bytes": 2,
        "body": b"\x00\xff",
    }
    assert [(row["targets"], row["participants"], row["body"]) for row in others] == [
        (None, 4, b"abc"),
        (None, None, b""),
        (None, 4, b"abc"),
    ]

    until = {"": MINUTE_0 + MINUTE_US + 10 * SECOND_US}
    minutes = fanout_minutes(events.drop("body"), until)
    assert minutes.schema.simpleString() == from_arrow_schema(FANOUT_MINUTES.schema).simpleString()
    named = ("streams", "frames", "bytes", "deliveries", "broadcast_deliveries", "saved", "final")
    found = {}
    for row in minutes.toArrow().to_pylist():
        assert row["date"] == row["minute"].date()
        minute = round((row["minute"] - from_us(MINUTE_0)) / timedelta(minutes=1))
        found[row["space"], minute] = tuple(row[name] for name in named)
    assert found == {
        ("lab/demo", 0): (2, 11, 76, 14, 51, 37, True),
        ("other", 0): (1, 2, 9, 6, 6, 0, True),
        ("lab/demo", 1): (1, 1, 3, 4, 4, 0, False),
    }


# Both doors


def mixed() -> list[Row]:
    """Work in a queue that a space talks about, and talk of the space alone; `demo` is a queue, too."""
    bench = Journaled()
    sam = bench.subscribe("agents/sam/inbox", 1, link=bench.connect(holder("sam")))
    bench.send("agents/sam/inbox", "ask", "kim", corr="c")
    bench.send("demo", "open", "kim", corr="c")
    talk = [
        said("chat", "told", "sam", correlation_id=["c"], payload={"text": "on it"}),
        said("mcp/request", "req", "kim", to=["sam"], payload={"method": "x"}),
        said("mcp/response", "res", "sam", to=["kim"], correlation_id=["req"], payload={}),
        said("chat", "alone", "kim", payload={"text": "nobody?"}),
        frame(1, "demo/stream-1", {"participants": 3, "target": ["sam"]}, recipients=1),
        counted(8, "demo/stream-2", frames=5, bytes=50, deliveries=5, participants=3, broadcast=15),
    ]
    now_us = bench.now.wall_us
    for number, row in enumerate(talk, 1):
        seq = number if row.event == "envelope" else row.seq
        at_us = now_us + number * SECOND_US
        bench.rows.append(msgspec.structs.replace(row, seq=seq, offset=len(bench.rows), recorded_at=at_us))
    bench.advance(10_000)
    bench.ack(sam, "ask")
    bench.wait(130)
    return bench.rows


@pytest.mark.promise(
    "Spark: pipeline",
    "every envelope of a space is a row of silver, whatever it contains; conversations span both protocols",
)
def test_conversations_go_over_both_doors_and_what_is_said_in_a_space_is_never_open(
    spark: SparkSession,
) -> None:
    events = spark.createDataFrame(events_of(mixed()))
    made = conversations.conversations(envelopes(events), deliveries(events))
    rows = {row["corr"]: row for row in made.toArrow().to_pylist()}
    named = ("envelopes", "depth", "settled", "unsettled", "agents", "doors", "critical_path", "final")
    assert {corr: tuple(row[name] for name in named) for corr, row in rows.items()} == {
        "c": (3, 2, 1, 1, ["kim", "sam"], ["courier", "mew"], ["ask"], False),
        "req": (2, 2, 0, 0, ["kim", "sam"], ["mew"], ["req", "res"], True),
        "alone": (1, 1, 0, 0, ["kim"], ["mew"], ["alone"], True),
    }
    assert rows["req"]["critical_path_ms"] == 1000.0


@pytest.mark.promise("Spark: pipeline", "tables of queues and agents leave spaces out")
def test_tables_of_queues_and_agents_know_nothing_of_spaces(spark: SparkSession) -> None:
    events = spark.createDataFrame(events_of(mixed()))
    minutes = queue_minutes(events, {"": MINUTE_0 + 5 * MINUTE_US}).toArrow().to_pylist()
    assert {row["channel"] for row in minutes} == {"agents/sam/inbox", "demo"}
    assert sum(row["enqueued"] for row in minutes) == 2
    assert deliveries(events).count() == 1
    assert {row["agent"]: row["event"] for row in agents(events).toArrow().to_pylist()} == {
        "kim": "enqueue",
        "sam": "ack",
    }
