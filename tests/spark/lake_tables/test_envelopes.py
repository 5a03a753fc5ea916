"""Rows of the table `envelopes`, made without a JVM."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.queue.policy import Policy
from penstock.core.queue.state import Cause
from penstock.core.rows import Row
from penstock.dialects.courier.wire.envelopes import bury
from penstock.journal.parquet_table import FILE_SCHEMA
from penstock.spark.lake.schemas import AGENTS, ENVELOPES, LATEST_PER_AGENT
from penstock.spark.lake_tables.envelopes import (
    BODY_BYTES_MAX,
    DEPTH_MAX,
    Contents,
    agents,
    envelope_rows,
    latest,
    latest_per_agent,
    parse,
    turns,
)
from penstock.spark.lake_tables.expressions import OWN_SENDER, without_own
from tests.core.driving import START_WALL_US, redrive
from tests.spark.journaled import COMMIT_US, JOURNAL, Journaled, events_of, holder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_every_member_finds_its_column_and_the_payload_keeps_its_very_text() -> None:
    body = parse(
        b'{"id":"1","ts":"2026-01-01T00:00:01.5+02:00","type":"t","from":"sam","corr":"c","to":"jobs",'
        b'"payload": {"b" : 1.50, "a":"\xc3\xa4\\u00e4"} ,"refs":["r"],"tags":[],"schema":"a/b@v1",'
        b'"headers":{"s":"x","n":1.0,"t":true,"z":null},"version":2,"new":[1, 2]}'
    )
    assert body == Contents(
        to="jobs",
        refs=["r"],
        tags=[],
        headers=[("s", "x"), ("n", "1.0"), ("t", "true"), ("z", None)],
        schema="a/b@v1",
        ts_us=1_767_225_601_500_000 - 2 * 3_600_000_000,
        payload='{"b" : 1.50, "a":"ä\\u00e4"}',
        extra='{"version":2,"new":[1, 2]}',
    )


def test_a_dead_letter_says_why_it_is_one() -> None:
    letter = bury(b'{"id":"1","payload":7}', Cause("term", "jobs", 3, 0, "boom"))
    body = parse(letter)
    assert body.payload == "7"
    assert body.headers is not None
    name, text = body.headers[0]
    assert (name, json.loads(text or "")["lastError"]) == ("x-courier", "boom")


def test_what_is_not_what_its_name_promises_is_kept_as_it_came() -> None:
    body = parse(b'{"payload":null,"ts":"yesterday","to":7,"refs":"r","tags":[1],"headers":[],"schema":null}')
    assert (body.payload, body.problem) == ("null", None)
    assert (body.to, body.refs, body.tags, body.headers, body.schema, body.ts_us) == (None,) * 6
    assert body.extra == '{"ts":"yesterday","to":7,"refs":"r","tags":[1],"headers":[]}'


@pytest.mark.parametrize("ts", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-12:00", "2026-01-01T00:00:00"])
def test_a_time_that_readers_could_not_show_is_none(ts: str) -> None:
    body = parse(msgspec.json.encode({"payload": 1, "ts": ts}))
    assert (body.ts_us, body.extra) == (None, f'{{"ts":"{ts}"}}')


DEEP = b'{"payload":' + b"[" * DEPTH_MAX + b"]" * DEPTH_MAX + b"}"
FAR_TOO_DEEP = b'{"payload":' + b"[" * 100_000 + b"]" * 100_000 + b"}"


@pytest.mark.promise("Spark: pipeline", "payload drift never fails a batch")
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (None, "not journaled"),
        (b"", "truncated"),
        (b"{", "truncated"),
        (b"[]", "object"),
        (b"7", "object"),
        (b'{"id":"1"}', "no `payload`"),
        (b'{"payload":"\xff"}', "UTF-8"),
        (b'{"payload":1,"payload":2}', "`payload` is given twice"),
        (b'{"payload":{"a":1,"b":[{"c":1,"c":1}]}}', "`c` is given twice"),
        (b'{"payload":01}', "malformed"),
        (b'{"payload":"\\ud800 and more"}', "surrogate"),
        (b'{"payload":1} trailing', "malformed"),
        (DEEP, "deeper than 64"),
        (FAR_TOO_DEEP, "deep"),
        (b'{"payload":"' + b"x" * BODY_BYTES_MAX + b'"}', f"at most {BODY_BYTES_MAX} are read"),
    ],
)
def test_what_cannot_be_read_gives_nulls_and_a_reason(data: bytes | None, words: str) -> None:
    body = parse(data)
    assert body.problem is not None
    assert words in body.problem
    assert body == Contents(problem=body.problem)


def test_a_body_just_within_the_bounds_is_read() -> None:
    assert parse(DEEP.replace(b"[]", b"")).problem is None
    whole = b'{"payload":"' + b"x" * (BODY_BYTES_MAX - 14) + b'"}'
    assert len(whole) == BODY_BYTES_MAX
    assert parse(whole).problem is None


@pytest.mark.promise("Spark: pipeline", "payload drift never fails a batch")
@given(st.binary(max_size=200))
def test_no_bytes_make_it_raise(data: bytes) -> None:
    body = parse(data)
    assert (body.payload is None) == (body.problem is not None)


_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(_values, st.dictionaries(st.sampled_from(["to", "refs", "tags", "headers", "ts", "x"]), _values))
def test_any_json_comes_out_as_it_went_in(payload: object, more: dict[str, object]) -> None:
    try:
        data = json.dumps({"payload": payload, **more}, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # text with half a character has no bytes
        return
    body = parse(data)
    if body.problem is not None:  # an integer too long for a reader, say
        assert body == Contents(problem=body.problem)
        return
    assert body.payload == json.dumps(payload, ensure_ascii=False)
    left = json.loads(body.extra or "{}")
    assert all(left[name] == more[name] for name in left)
    assert "x" not in more or left["x"] == more["x"]


START = datetime.fromtimestamp(START_WALL_US // 1_000_000, UTC)


def after(ms: float, *, committed: bool = True) -> datetime:
    return START + timedelta(milliseconds=ms, microseconds=COMMIT_US * committed)


def rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = batch.to_pylist()
    return found


def test_a_batch_of_the_journal_becomes_rows_without_a_jvm() -> None:
    bench = Journaled()
    bench.send("agents/sam/inbox", "1", "kim", corr="c", refs=["0"], headers={"n": 1}, priority=9)
    batch = bench.events.to_batches()[0]
    made = envelope_rows(batch)
    assert made.schema.equals(ENVELOPES.schema)
    assert rows_of(made) == [
        {
            "journal": JOURNAL,
            "offset": 0,
            "date": date(2025, 10, 9),
            "recorded_at": after(0),
            "door": "courier",
            "channel": "agents/sam/inbox",
            "seq": 1,
            "id": "1",
            "type": "note",
            "sender": "kim",
            "targets": ["agents/sam/inbox"],
            "corr": "c",
            "refs": ["0"],
            "tags": None,
            "headers": [("n", "1")],
            "schema": None,
            "producer_ts": START,
            "payload": '{"n":"1"}',
            "payload_error": None,
            "extra": '{"priority":9}',
            "bytes": len(bench.rows[0].body or b""),
        }
    ]


def test_the_date_is_that_of_utc_whatever_zone_the_times_are_shown_in() -> None:
    row = Row(event="enqueue", offset=0, recorded_at=86_400_000_000 * 365 - 1, channel="a", body=b"{}")
    batch = events_of([row]).to_batches()[0]
    index = batch.schema.get_field_index("recorded_at")
    zoned = batch.column(index).cast(pa.timestamp("us", tz="Asia/Tokyo"))
    made = envelope_rows(batch.set_column(index, "recorded_at", zoned))
    assert rows_of(made)[0]["date"] == date(1970, 12, 31)


def test_an_empty_batch_is_no_rows() -> None:
    assert envelope_rows(pa.RecordBatch.from_pylist([], FILE_SCHEMA)).num_rows == 0


def picked(row: dict[str, Any], *names: str) -> tuple[Any, ...]:
    return tuple(row[name] for name in names)


def test_an_agent_is_known_by_what_it_sends_and_what_it_settles(spark: SparkSession) -> None:
    from pyspark.sql.pandas.types import from_arrow_schema

    bench = Journaled(Policy(max_deliveries=1))
    bench.send("jobs", "1", "agents/kim")
    bench.send("jobs", "2", "kim")
    bench.send("jobs", "3", "lee")
    sam = bench.subscribe("jobs", 1, link=bench.connect(holder("sam")))
    bench.ack(sam, "1")
    hung = bench.subscribe("jobs", 1, lease_ms=1_000, link=bench.connect(holder("hung")))
    bench.advance(1_500)
    assert not hung.leases
    bench.send("agents/ann/inbox", "4")
    bench.term(bench.subscribe("agents/ann/inbox", 1), "4")  # by the operator, which is no agent
    bench.send("agents/bob/inbox", "5")
    unnamed = bench.connect(holder("anonymous"))
    bench.ack(bench.subscribe("agents/bob/inbox", 1, link=unnamed), "5")
    bench.send("jobs", "6", OWN_SENDER)
    bench.send("jobs", "7", "anonymous")
    made = agents(without_own(spark.createDataFrame(bench.events)))
    assert made.schema.simpleString() == from_arrow_schema(AGENTS.schema).simpleString()
    found = {row["agent"]: picked(row, "event", "channel", "offset") for row in made.toArrow().to_pylist()}
    offsets = {(row.event, row.id): row.offset for row in bench.rows if row.channel != "dlq/jobs"}
    assert found == {
        "kim": ("enqueue", "jobs", offsets["enqueue", "2"]),
        "lee": ("enqueue", "jobs", offsets["enqueue", "3"]),
        "sam": ("ack", "jobs", offsets["ack", "1"]),
        "bob": ("ack", "agents/bob/inbox", offsets["ack", "5"]),
    }


def test_an_agents_acts_are_one_turn_until_a_long_pause(spark: SparkSession) -> None:
    bench = Journaled()
    start_us = bench.now.wall_us + COMMIT_US
    for number, pause_ms in enumerate([100, 100, 1_000, 1_001, 10, 10]):
        bench.send("jobs", str(number), "sam")
        bench.send("other", str(number), None if number else "kim")
        bench.advance(pause_ms)
    bench.send("jobs", "last", "sam")
    kept = [tuple(row) for row in turns(spark.createDataFrame(bench.events), 1_000).collect()]
    assert kept == [
        ("sam", start_us, start_us + 1_200_000),
        ("kim", start_us, start_us),
        ("sam", start_us + 2_201_000, start_us + 2_221_000),
    ]


@pytest.mark.promise("Spark: pipeline", "`latest_per_agent` has the newest envelope of each inbox")
def test_the_newest_of_each_inbox_is_what_the_live_view_shows(spark: SparkSession) -> None:
    from pyspark.sql.pandas.types import from_arrow_schema

    bench = Journaled()
    for number, to in enumerate(["agents/sam/inbox", "agents/kim/inbox", "agents/sam/inbox", "jobs"]):
        bench.send(to, f"e{number}", "lee", corr="c")
    for to in ("agents/sam/inbox/more", "agents//inbox", "x/agents/sam/inbox", "agents/sam/outbox"):
        bench.send(to, "elsewhere")
    kim = bench.subscribe("agents/kim/inbox", 1)
    bench.term(kim, "e1")  # its letter is in the dead letters, and no newer envelope of the inbox
    bench.send("agents/kim/inbox", "e4", "lee")
    redrive(bench.machine, bench.now, "agents/kim/inbox", 1)  # nor is it one when it is back
    bench.apply()
    bench.commit()
    newest = latest(spark.createDataFrame(bench.events).repartition(2))
    made = newest.mapInArrow(latest_per_agent, from_arrow_schema(LATEST_PER_AGENT.schema))
    assert made.schema.simpleString() == from_arrow_schema(LATEST_PER_AGENT.schema).simpleString()
    found = {row["address"]: row for row in made.toArrow().to_pylist()}
    assert {address: picked(row, "agent", "id", "seq", "sender") for address, row in found.items()} == {
        "agents/sam/inbox": ("sam", "e2", 2, "lee"),
        "agents/kim/inbox": ("kim", "e4", 2, "lee"),
    }
    live = bench.machine.views.latest.rows
    assert {address: msgspec.json.decode(row.data)["id"] for address, row in live.items()} == {
        address: row["id"] for address, row in found.items()
    }
    assert picked(found["agents/sam/inbox"], "offset", "payload", "corr") == (2, '{"n":"e2"}', "c")
