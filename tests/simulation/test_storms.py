"""Many storms: every invariant at every step, and one seed in three runs twice with the same trace."""

import doctest
from functools import lru_cache

import pytest

from penstock.testing import clock, world
from tests.paths import ROOT
from tests.simulation.queue.checks import Broken
from tests.simulation.queue.storm import STEPS, storm
from tests.simulation.world import CheckedWorld
from tests.tiers import first_of

CHUNKS, IN_EVERY_RUN = 40, 5
SEEDS_A_CHUNK = 8
REACHING = 20
"""Storms that reach all there is to test, kept for the tests that follow."""
REPLAYED_EVERY = 3
"""A cause of different replays would affect any seed, so not every storm runs twice."""


@lru_cache(REACHING)
def run(seed: int) -> CheckedWorld:
    """One storm; when it breaks an invariant, say how to see it again."""
    try:
        told = storm(seed)
        told.run(STEPS)
    except Broken as broken:
        pytest.fail(f"{broken}\nreplay: python -m tests.simulation --seed {seed}")
    return told


def test_storms_reach_what_they_are_meant_to_test() -> None:
    """A simulation in which nothing happens proves nothing."""
    worlds = [run(seed) for seed in range(REACHING)]
    events = {kind for one in worlds for row in one.journal.rows for kind in [row.event]}
    assert {
        "enqueue",
        "ack",
        "nack",
        "dead",
        "drop",
        "purge",
        "move",
        "release",
        "extend",
        "timeout",
    } <= events
    assert sum(one.slices for one in worlds) > 10 * len(worlds), "rules and dead letters that do not fit in one turn"
    dead = {row.reason for one in worlds for row in one.journal.rows if row.event == "dead"}
    assert {"maxDeliveries", "abandoned", "term"} <= dead
    assert sum(one.lives for one in worlds) > 2 * len(worlds)
    assert sum(one.witness.brought_back for one in worlds) > len(worlds)
    assert sum(len(one.witness.confirmed) for one in worlds) > 10 * len(worlds)
    assert sum(len(one.witness.acknowledged) for one in worlds) > 10 * len(worlds)
    codes = {
        code
        for one in worlds
        for entry in one.trace
        if entry[1] == "out"
        for message in entry[3:]
        for code in (
            "StreamFull",
            "IdConflict",
            "LeaseExpired",
            "NotLeaseHolder",
            "AlreadyAcked",
            "QuotaExceeded",
        )
        if code.encode() in message
    }
    assert len(codes) == 6, codes


@pytest.mark.promise(
    "The document's testing strategy", "Property: at least once, every id is acked or leased in the end"
)
@pytest.mark.promise("Triggers", "an envelope and its triggered envelopes are one commit, even across crashes")
@pytest.mark.promise("Views", "snapshot plus changes give the table, at any reading speed")
@pytest.mark.promise("Invariants", "the shipped runtime runs under simulation, and equal seeds give equal traces")
@pytest.mark.parametrize("chunk", first_of(range(CHUNKS), IN_EVERY_RUN))
def test_every_invariant_holds_and_equal_seeds_give_equal_traces(chunk: int) -> None:
    for seed in range(chunk * SEEDS_A_CHUNK, (chunk + 1) * SEEDS_A_CHUNK):
        trace = run(seed).trace
        if seed % REPLAYED_EVERY == 0:
            assert run.__wrapped__(seed).trace == trace, f"replay: python -m tests.simulation --seed {seed}"


def test_the_docs_name_the_number_of_seeds() -> None:
    words = f"{IN_EVERY_RUN * SEEDS_A_CHUNK} seeds, and `make test-more` through {CHUNKS * SEEDS_A_CHUNK}"
    assert words in " ".join((ROOT / "docs/explain/delivery-guarantees.md").read_text().split())


def test_another_seed_is_another_storm() -> None:
    assert run(1).trace != run(2).trace


@pytest.mark.parametrize("module", [clock, world])
def test_the_examples_in_the_docstrings_run(module: object) -> None:
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]
