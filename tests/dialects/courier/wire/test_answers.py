"""The structs of Courier's answers: the server sends no member that they lack."""

from __future__ import annotations

from typing import Any, get_origin

import msgspec
import pytest

from penstock.core.scopes import OPERATOR
from penstock.dialects.courier.wire.answers import (
    CourierAnswer,
    Dropped,
    Explained,
    PeekedRow,
    Place,
    Purged,
    Redriven,
    Stats,
    StreamMetrics,
)
from tests.dialects.courier.talking import Broker, Peer, envelope


def unknown(value: Any, kind: type[CourierAnswer]) -> set[str]:
    """The members of a JSON object, and of those in it, that the struct would ignore."""
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
    found = set(value) - set(fields)
    for name, inner in fields.items():
        about = inner.__args__[0] if get_origin(inner) is list else inner
        if name in value and isinstance(about, type) and issubclass(about, CourierAnswer):
            rows = value[name] if isinstance(value[name], list) else [value[name]]
            found |= {f"{name}.{member}" for row in rows for member in unknown(row, about)}
    return found


def busy() -> Peer:
    """A stream in which envelopes are ready, leased, delayed and dead, with a consumer that has no credit left."""
    peer = Broker().control(OPERATOR)
    for number in range(5):
        peer.say(type_="enqueue", to="jobs", env=envelope(f"e{number}"))
    peer.say(type_="enqueue", to="jobs", env=envelope("late"), delayMs=60_000)
    peer.say(type_="subscribe", stream="jobs", credit=2)
    peer.say(type_="term", id="e0", reason="broken")
    peer.say(type_="nack", id="e1", delayMs=60_000, reason="failed")
    peer.say(type_="grant", n=1)
    return peer


REQUESTS: list[tuple[dict[str, Any], Any, type[CourierAnswer]]] = [
    ({"type_": "stats", "stream": "jobs"}, lambda result: [result], Stats),
    ({"type_": "metrics"}, lambda result: result["streams"], StreamMetrics),
    ({"type_": "peek", "stream": "jobs"}, lambda result: result["rows"], PeekedRow),
    ({"type_": "peek", "stream": "jobs", "state": "inflight"}, lambda result: result["rows"], PeekedRow),
    ({"type_": "peek", "stream": "jobs", "state": "delayed"}, lambda result: result["rows"], PeekedRow),
    ({"type_": "where", "id": "e0"}, lambda result: result["places"], Place),
    ({"type_": "explain", "stream": "jobs"}, lambda result: [result], Explained),
    ({"type_": "redrive", "stream": "jobs"}, lambda result: [result], Redriven),
    ({"type_": "drop", "stream": "jobs", "ids": ["e4"]}, lambda result: [result], Dropped),
    ({"type_": "purge", "stream": "jobs"}, lambda result: [result], Purged),
]


@pytest.mark.parametrize(("request_", "rows", "kind"), REQUESTS, ids=lambda one: str(one)[:60])
def test_a_struct_has_every_member_of_its_answer(
    request_: dict[str, Any], rows: Any, kind: type[CourierAnswer]
) -> None:
    found = rows(busy().say(**request_, reqId=1)[-1]["result"])
    assert found
    for row in found:
        msgspec.convert(row, kind)
        assert unknown(row, kind) == set()


def test_an_unknown_member_is_noticed_at_any_depth() -> None:
    row = {
        "stream": "a",
        "flowing": True,
        "reasons": [{"code": "x", "message": "y", "new": 1}],
        "consumers": [],
        "more": 2,
    }
    assert unknown(row, Explained) == {"more", "reasons.new"}


def test_what_the_server_left_out_stays_out_of_the_json() -> None:
    place = msgspec.json.decode(b'{"stream":"a","state":"ready","seq":1}', type=Place)
    assert place.holder is None
    assert msgspec.json.encode(place) == b'{"stream":"a","state":"ready","seq":1}'
