"""Triggers over several shards are refused where they are installed."""

import msgspec
import pytest

from penstock.dialects.courier.triggers.config import Trigger
from penstock.dialects.courier.triggers.shard_checks import cross_shard_refusal, fixed_key


@pytest.mark.parametrize(
    ("pattern", "key"),
    [
        ("jobs/a", "jobs/a"),
        ("dlq/jobs/a", "jobs/a"),
        ("jobs/*", None),
        ("*", None),
        ("{orders}/*", "orders"),
        ("dlq/{orders}/*", "orders"),
        ("${env.type}/{orders}", None),
        ("{orders}/${env.type}", "orders"),
        ("{${env.type}}/x", None),
        ("agents/sam/inbox", "agents/sam"),
        ("agents/sam/*", None),
        ("t/acme/*", "t/acme/"),
        ("t/*/x", None),
    ],
)
def test_the_key_of_all_names_that_fit(pattern: str, key: str | None) -> None:
    assert fixed_key(pattern) == key


@pytest.mark.parametrize(
    ("to", "target", "is_refused"),
    [
        ("{a}/x", "{a}/y", False),
        (["{a}/x", "{a}/*"], "{a}/${env.type}", False),
        ("jobs/a", "jobs/b", True),
        ("{a}/x", "agents/${env.from}/inbox", True),
        ("*", "jobs/a", True),
        (None, "jobs/a", True),
    ],
)
def test_streams_of_a_trigger_must_be_together(to: object, target: str, is_refused: bool) -> None:
    when = {"type": "t"} if to is None else {"to": to}
    rule = {"id": "r", "when": when, "do": [{"action": "notify", "to": target}]}
    refusal = cross_shard_refusal(msgspec.convert(rule, Trigger))
    assert (refusal is not None) == is_refused
    if refusal is not None:
        assert refusal.code == "CrossShard" and "{tag}" in (refusal.hint or refusal.kind.hint)


def test_an_enrichment_stays_where_it_is() -> None:
    rule = {"id": "r", "when": {"to": "*"}, "do": [{"action": "enrich", "headers": {"x-a": 1}}]}
    assert cross_shard_refusal(msgspec.convert(rule, Trigger)) is None
