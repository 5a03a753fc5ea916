"""Many storms over a cluster: every invariant of its logs, at every step, and again when it is calm."""

from collections import Counter
from functools import lru_cache

import pytest

from penstock.core.cluster.writer import REWOUND_AFTER_US
from tests.simulation.cluster.storm import STORM_US, Cluster, small_messages
from tests.simulation.queue.checks import Broken
from tests.tiers import first_of

CHUNKS, IN_EVERY_RUN = 40, 8
SEEDS_A_CHUNK = 15


class Seen:
    """What a storm has reached."""

    def __init__(self, cluster: Cluster) -> None:
        cells = [cell for node in cluster.nodes for cell in node.cells]
        reasons = " ".join(entry[4] for entry in cluster.trace if entry[1] == "ended")
        self.faults = Counter(cluster.weather.counts)
        self.counts = Counter(
            acknowledged=sum(len(model.acknowledged) for model in cluster.models),
            confirmed=sum(len(model.confirmed) for model in cluster.models),
            unfinished=sum(model.unfinished for model in cluster.models),
            refused=sum(len(model.refused) for model in cluster.models),
            purged=sum(stream.first > 1 for stream in cluster.streams),
            epochs=sum(stream.truth[-1].epoch for stream in cluster.streams),
            releases=sum(message.kind == "released" for stream in cluster.streams for message in stream.truth),
            voids=sum(cell.ownership.reader.voids for cell in cells),
            behind=reasons.count("purged"),
            moved=reasons.count("moved"),
            full=reasons.count("the disk is full"),
        )


@lru_cache(IN_EVERY_RUN * SEEDS_A_CHUNK)
def run(seed: int) -> Seen:
    """One storm; when it breaks an invariant, say how to see it again."""
    cluster = Cluster(seed)
    try:
        cluster.run()
    except Broken as broken:
        pytest.fail(f"{broken}\nreplay: {replay(seed)}")
    return Seen(cluster)


def replay(seed: int) -> str:
    return f"python -m tests.simulation --cluster --seed {seed}"


@pytest.mark.promise(
    "Cluster", "no acknowledged record is lost and no confirmed settle returns, whatever node or server fails"
)
@pytest.mark.parametrize("chunk", first_of(range(CHUNKS), IN_EVERY_RUN))
def test_every_invariant_of_the_logs_holds(chunk: int) -> None:
    for seed in range(chunk * SEEDS_A_CHUNK, (chunk + 1) * SEEDS_A_CHUNK):
        run(seed)


def test_storms_reach_what_they_are_meant_to_test() -> None:
    """A simulation in which nothing happens proves nothing."""
    seeds = range(2 * SEEDS_A_CHUNK)
    counts, faults = Counter[str](), Counter[str]()
    for seed in seeds:
        counts += run(seed).counts
        faults += run(seed).faults
    assert set(faults) == set(Cluster(0).weather.names)
    assert counts["acknowledged"] > 100 * len(seeds)
    assert counts["confirmed"] > 50 * len(seeds)
    assert counts["epochs"] > 4 * len(seeds), "take-overs"
    assert counts["purged"] > len(seeds)
    assert counts["unfinished"], "commits whose last part never came"
    assert counts["refused"], "streams that were full, and owners that were deposed"
    assert counts["releases"], "planned moves"
    assert counts["behind"] and counts["moved"] and counts["full"]
    assert counts["voids"] == 0, "with one message in flight there are none"


def test_equal_seeds_give_equal_traces() -> None:
    one, again, other = Cluster(1), Cluster(1), Cluster(2)
    for cluster in (one, again, other):
        cluster.run()
    assert one.trace == again.trace
    assert one.trace != other.trace


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
        cluster.until(20_000_000)
        cluster.has_clients = False
        cluster.until(23_000_000)
        cluster.has_lost = True
        cluster.streams[0].lose_tail(20)
        cluster.until(cluster.clock.us + 4 * REWOUND_AFTER_US + STORM_US)
    assert cluster.halted == {0}
    serving = [cell.serves for node in cluster.nodes for cell in node.cells]
    assert serving.count(True) == 1, "the other shard goes on"
