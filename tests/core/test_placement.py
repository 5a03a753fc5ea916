"""Placement is published: the vectors of the reference page are what the code computes."""

import re

import pytest

from penstock.core.placement import SHARDS, shard_of, space_key, stream_key, topic_key
from penstock.core.tenants import dead_name
from tests.paths import ROOT

ROW = re.compile(r"\| (stream|space|topic) \| `(.+?)` \| `(.+?)` \| `([0-9a-f]{8})` \| (\d+) \| (\d+) \|")
KEYS = {"stream": stream_key, "space": space_key, "topic": lambda topic: topic_key(topic.encode())}


def vectors() -> list[tuple[str, ...]]:
    return ROW.findall((ROOT / "docs/reference/placement.md").read_text())


@pytest.mark.promise("Cluster", "the shard of a name is computed as docs/reference/placement.md says")
@pytest.mark.parametrize("vector", vectors(), ids=lambda vector: vector[1])
def test_the_published_vectors_hold(vector: tuple[str, ...]) -> None:
    kind, name, key, check, of_sixteen, of_seven = vector
    assert KEYS[kind](name) == key
    assert shard_of(key, 2**32) == int(check, 16)
    assert (shard_of(key), shard_of(key, 7)) == (int(of_sixteen), int(of_seven))


def test_the_page_has_its_vectors_and_its_number_of_shards() -> None:
    assert len(vectors()) > 20
    assert f"A\ncluster has {SHARDS} shards" in (ROOT / "docs/reference/placement.md").read_text()


def test_the_checksum_is_the_one_the_page_names() -> None:
    assert shard_of("123456789", 2**32) == 0xE3069283


@pytest.mark.parametrize("name", ["jobs", "agents/sam/inbox", "{tag}/x", "t/acme/jobs", "dlq/jobs"])
def test_dead_letters_live_with_their_stream(name: str) -> None:
    assert stream_key(dead_name(name)) == stream_key(name)


def test_names_spread_over_all_shards() -> None:
    counts = [0] * SHARDS
    for number in range(1600):
        counts[shard_of(stream_key(f"jobs/{number}"))] += 1
    assert min(counts) > 60
    assert max(counts) < 140
