"""Messages of the relay bench: chunks have their size, probes are shorter, and blocks verify as a client reads them."""

from __future__ import annotations

import pytest

from penstock.bench.relay.loads import (
    BLOCK_TOKENS,
    SIGNERS,
    SIZE_MIN,
    RelayJob,
    chunk,
    probe,
    registration,
    topic,
    verify,
)


def test_topics_of_a_run_differ_from_those_of_another():
    names = {topic(tag, number) for tag in ("r1", "r2") for number in range(3)}
    assert len(names) == 6 and {len(name) for name in names} == {64}


@pytest.mark.parametrize("size", [SIZE_MIN, 304, 1_000])
def test_a_chunk_has_its_size_and_a_probe_is_shorter(size):
    name = topic("r", 1)
    assert len(chunk(name, size, 7)) == size > len(probe(name))


def test_registrations_are_signed_by_the_key_that_the_config_names():
    name = topic("r", 1)
    assert name.encode() in registration(name) and list(SIGNERS) == ["bench"]
    assert registration(name) != registration(name), "each has a nonce"


def test_blocks_are_verified_for_the_time_asked_for():
    report = verify(RelayJob(seconds=0.01))
    assert report.count > 0 and report.count % BLOCK_TOKENS == 0 and report.seconds >= 0.01
