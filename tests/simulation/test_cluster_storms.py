"""Many storms over a cluster: every invariant of its logs, at every step, and again when it is calm."""

from functools import lru_cache

import pytest

from penstock.core.cluster.writer import REWOUND_AFTER_US
from tests.simulation.cluster.storm import STORM_US, Cluster, small_messages
from tests.simulation.queue.checks import Broken
from tests.tiers import first_of

CHUNKS, IN_EVERY_RUN = 50, 2
SEEDS_A_CHUNK = 6


@lru_cache(IN_EVERY_RUN * SEEDS_A_CHUNK)
def run(seed: int) -> Cluster:
    """One storm; when it breaks an invariant, say how to see it again."""
    try:
        cluster = Cluster(seed)
        cluster.run()
    except Broken as broken:
        pytest.fail(f"{broken}\nreplay: python -m tests.simulation --cluster --seed {seed}")
    return cluster


@pytest.mark.promise(
    "Cluster", "no acknowledged record is lost and no confirmed settle returns, whatever node or server fails"
)
@pytest.mark.parametrize("chunk", first_of(range(CHUNKS), IN_EVERY_RUN))
def test_every_invariant_of_the_logs_holds(chunk: int) -> None:
    for seed in range(chunk * SEEDS_A_CHUNK, (chunk + 1) * SEEDS_A_CHUNK):
        run(seed)


def test_storms_reach_what_they_are_meant_to_test() -> None:
    """A simulation in which nothing happens proves nothing."""
    clusters = [run(seed) for seed in range(IN_EVERY_RUN * SEEDS_A_CHUNK)]
    models = [model for cluster in clusters for model in cluster.models]
    cells = [cell for cluster in clusters for node in cluster.nodes for cell in node.cells]
    assert sum(len(model.acknowledged) for model in models) > 100 * len(clusters)
    assert sum(len(model.confirmed) for model in models) > 50 * len(clusters)
    assert sum(model.unfinished for model in models), "commits whose last part never came"
    assert sum(len(model.refused) for model in models), "streams that were full, and owners that were deposed"
    assert sum(stream.first > 1 for cluster in clusters for stream in cluster.streams) > len(clusters), "purges"
    assert sum(cell.ownership.reader.end.epoch for cell in cells) > 2 * len(cells), "take-overs"
    assert all(cell.ownership.reader.voids == 0 for cell in cells), "with one message in flight there are none"
    reasons = {entry[4] for cluster in clusters for entry in cluster.trace if entry[1] == "ended"}
    assert any("purged" in reason for reason in reasons)
    assert any("moved" in reason for reason in reasons)


def test_equal_seeds_give_equal_traces() -> None:
    assert run.__wrapped__(1).trace == run(1).trace
    assert run(1).trace != run(2).trace


@pytest.mark.promise("Cluster", "a node that has read what its servers lost again does not go on without it")
def test_servers_that_lose_what_every_node_has_read_halt_the_shard() -> None:
    """A node that has not read it cannot know: only the owner that wrote it notices."""
    cluster = Cluster(3)
    cluster.loss = cluster.lateness = 0.0
    cluster.is_calm = True
    with small_messages():
        for node in cluster.nodes:
            node.start()
        cluster._send()
        cluster._until(20_000_000)
        cluster.has_clients = False
        cluster._until(23_000_000)
        cluster.has_lost = True
        cluster.streams[0].lose_tail(20)
        cluster._until(cluster.clock.us + 4 * REWOUND_AFTER_US + STORM_US)
    assert cluster.halted == {0}
    serving = [cell.serves for node in cluster.nodes for cell in node.cells]
    assert serving.count(True) == 1, "the other shard goes on"
