"""Envelopes become columns, whatever they contain."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.queue.state import Cause
from penstock.dialects.courier.wire import envelopes
from penstock.spark.lake_tables.envelope_body import BODY_BYTES_MAX, DEPTH_MAX, Contents, parse


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
    letter = envelopes.bury(b'{"id":"1","payload":7}', Cause("term", "jobs", 3, 0, "boom"))
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
