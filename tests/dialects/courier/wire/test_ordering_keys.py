"""The partition key and priority of an envelope."""

from __future__ import annotations

import msgspec
import pytest

from penstock.core.errors import Refusal
from penstock.dialects.courier.wire.ordering_keys import KEY_MAX, partition_key, priority


def encoded(**members: object) -> bytes:
    return msgspec.json.encode({"id": "1", "payload": {"partitionKey": "not this"}, **members})


@pytest.mark.parametrize(
    ("members", "key"),
    [
        ({}, None),
        ({"partitionKey": None}, None),
        ({"headers": None}, None),
        ({"headers": {"partitionKey": "h"}}, "h"),
        ({"partitionKey": None, "headers": {"partitionKey": "h"}}, "h"),
        ({"partitionKey": "e", "headers": {"partitionKey": "h"}}, "e"),
        ({"partitionKey": "e", "headers": {"partitionKey": 7}}, "e"),
        ({"partitionKey": "ü" * KEY_MAX}, "ü" * KEY_MAX),
    ],
)
def test_the_key_is_the_envelopes_own_or_that_of_its_headers(members: dict[str, object], key: str | None) -> None:
    assert partition_key(encoded(**members)) == key


@pytest.mark.promise("Streams", "a bad key is rejected with its field")
@pytest.mark.parametrize("key", ["", "x" * (KEY_MAX + 1), 0, 1.5, False, [], {}])
@pytest.mark.parametrize("where", ["partitionKey", "headers.partitionKey"])
def test_another_key_is_refused_with_its_field(key: object, where: str) -> None:
    members = {"partitionKey": key} if where == "partitionKey" else {"headers": {"partitionKey": key}}
    refusal = partition_key(encoded(**members))
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.ref) == ("InvalidEnvelope", where)


@pytest.mark.parametrize(
    ("asked", "level"),
    [
        ("high", 8), ("normal", 5), ("low", 2), (0, 0), (9, 9), ("0", 0), ("9", 9),
        (10, 5), (-1, 5), ("10", 5), ("²", 5), ("High", 5), ("", 5), (True, 5), (3.0, 5), (None, 5),
    ],
)  # fmt: skip
def test_priority_is_a_name_or_a_digit_and_anything_else_is_normal(asked: object, level: int) -> None:
    assert priority(encoded(headers={"priority": asked})) == level


def test_no_headers_are_normal() -> None:
    assert priority(encoded()) == priority(encoded(headers=None)) == priority(encoded(headers={})) == 5
