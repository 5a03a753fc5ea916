"""Many storms over a cluster: every invariant of its logs, at every step, and again when it is calm."""

import subprocess
import sys
from collections import Counter
from functools import lru_cache
from pathlib import Path

import pytest

from tests.simulation import __main__ as replay
from tests.simulation.cluster.storm import Cluster
from tests.tiers import first_of

CHUNKS, IN_EVERY_RUN = 40, 7
SEEDS_A_CHUNK = 13
QUEUE_CHUNKS, QUEUE_IN_EVERY_RUN = 30, 2
QUEUE_SEEDS_A_CHUNK = 6
REWOUND_SEEDS, REWOUND_IN_EVERY_RUN = 30, 5


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


def replay_of(seed: int, has_queues: bool) -> str:
    return f"python -m tests.simulation {'--queues' if has_queues else '--cluster'} --seed {seed}"


@lru_cache(IN_EVERY_RUN * SEEDS_A_CHUNK)
def run(seed: int, *, has_queues: bool = False) -> Seen:
    """One storm; when it breaks an invariant, say how to see it again."""
    cluster = Cluster(seed, has_queues=has_queues)
    try:
        cluster.run()
    except Exception as error:
        pytest.fail(f"{error}\nreplay: {replay_of(seed, has_queues)}")
    return Seen(cluster)


@pytest.mark.promise(
    "Cluster", "no acknowledged record is lost and no confirmed settle returns, whatever node or server fails"
)
@pytest.mark.parametrize("chunk", first_of(range(CHUNKS), IN_EVERY_RUN))
def test_every_invariant_of_the_logs_holds(chunk: int) -> None:
    for seed in range(chunk * SEEDS_A_CHUNK, (chunk + 1) * SEEDS_A_CHUNK):
        run(seed)


@pytest.mark.promise(
    "Cluster", "clients that send again what they are unsure of lose nothing, and what they settled stays settled"
)
@pytest.mark.parametrize("chunk", first_of(range(QUEUE_CHUNKS), QUEUE_IN_EVERY_RUN))
def test_every_invariant_holds_for_clients_of_queues(chunk: int) -> None:
    for seed in range(chunk * QUEUE_SEEDS_A_CHUNK, (chunk + 1) * QUEUE_SEEDS_A_CHUNK):
        run(seed, has_queues=True)


def test_clients_of_queues_do_what_they_are_meant_to() -> None:
    seeds = range(QUEUE_SEEDS_A_CHUNK)
    counts = sum((run(seed, has_queues=True).counts for seed in seeds), Counter[str]())
    assert counts["acknowledged"] > 100 * len(seeds)
    assert counts["confirmed"] > 50 * len(seeds)
    assert counts["purged"] and counts["releases"]


@pytest.mark.promise("Cluster", "a failing seed of a cluster's storms can be replayed")
def test_a_seed_can_be_replayed_from_the_command_line() -> None:
    command = [sys.executable, *replay_of(3, has_queues=True).split()[1:]]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr
    assert "every invariant held" in shown.stdout.splitlines()[-1]
    assert len(shown.stdout.splitlines()) > 100


@pytest.mark.parametrize("kind", [["--cluster"], ["--cluster", "--rewound"], ["--queues", "--rewound"]], ids=" ".join)
def test_each_kind_of_storm_can_be_replayed(
    kind: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["simulation", *kind, "--quiet", "--seed", "3"])
    assert replay.main() == 0
    assert "every invariant held" in capsys.readouterr().out


def test_a_broken_invariant_is_named_by_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("penstock.core.cluster.lease.SILENCE_US", 0)
    monkeypatch.setattr(sys, "argv", ["simulation", "--cluster", "--quiet", "--seed", "0"])
    assert replay.main() == 1
    assert "seed 0 broke [" in capsys.readouterr().out


def test_documents_say_how_many_storms_there_are() -> None:
    text = " ".join(Path("CONTRIBUTING.md").read_text().split())
    rows, queues = IN_EVERY_RUN * SEEDS_A_CHUNK, QUEUE_IN_EVERY_RUN * QUEUE_SEEDS_A_CHUNK
    more, more_queues = CHUNKS * SEEDS_A_CHUNK - rows, QUEUE_CHUNKS * QUEUE_SEEDS_A_CHUNK - queues
    assert (
        f"`make test` runs {rows + queues} storms over a cluster, and `make test-more` {more + more_queues} others."
        in text
    )
    assert f"{rows} and {more} of them write rows" in text


@pytest.mark.parametrize("has_queues", [False, True], ids=["rows", "queues"])
def test_equal_seeds_give_equal_traces(has_queues: bool) -> None:
    one, again, other = (Cluster(seed, has_queues=has_queues) for seed in (1, 1, 2))
    for cluster in (one, again, other):
        cluster.run()
    assert one.trace == again.trace
    assert one.trace != other.trace


@pytest.mark.promise(
    "Cluster",
    "a log that lost what was acknowledged halts its shard at every node, and a repair from a spool loses nothing",
)
@pytest.mark.parametrize("has_queues", [False, True], ids=["rows", "queues"])
@pytest.mark.parametrize("seed", first_of(range(REWOUND_SEEDS), REWOUND_IN_EVERY_RUN))
def test_servers_that_lose_what_they_acknowledged_halt_the_shard_until_it_is_repaired(
    seed: int, has_queues: bool
) -> None:
    cluster = Cluster(seed, has_queues=has_queues)
    try:
        cluster.run_rewound()
    except Exception as error:
        pytest.fail(f"{error}\nreplay: {replay_of(seed, has_queues)} --rewound")
    assert len(cluster.generations[0]) > 1
