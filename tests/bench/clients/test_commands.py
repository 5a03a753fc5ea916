"""`bench clients` accounts for every envelope, compares with peers or says why not, and names what is saturated."""

from __future__ import annotations

import pytest

from penstock.bench.clients.commands import bottleneck, compare
from penstock.bench.harness.result import BenchCell, BenchResult, BenchRound


@pytest.mark.promise(
    "Benchmarks and robustness", "`penstock bench clients` measures stock clients and accounts for every envelope"
)
def test_the_ways_to_use_the_sdk_are_accounted_for(bench):
    ways = "work_batch,single-sends"  # the loads of the other two have their own tests
    options = ("--only", ways, "--rounds", "1", "--peers", "none", "--tasks", "16", "--no-durable")
    found = bench("clients", "--count", "400", *options)
    cells = {cell["client"]: cell for cell in found["cells"]}
    assert list(cells) == ["work_batch", "single sends"]
    assert all(cell["rounds"][0]["count"] == 400 and cell["batched"] for cell in cells.values())
    assert all(cell["rounds"][0].keys() >= {"serverCpuUs", "producerCpuUs", "consumerCpuUs"} for cell in cells.values())


@pytest.mark.more
@pytest.mark.promise(
    "Benchmarks and robustness", "`penstock bench clients` measures stock clients and accounts for every envelope"
)
def test_peers_that_are_installed_stand_beside_it_and_the_others_are_named(bench):
    found = bench("clients", "--count", "1000", "--rounds", "1", "--only", "plain-loop")
    measured = [cell["target"] for cell in found["cells"][1:]]
    missing = [note.split(":")[0].removeprefix("no ") for note in found["notes"] if note.startswith("no ")]
    assert sorted(measured + missing) == ["nats", "nats-always", "redis"]
    assert (found["cells"][0].get("ratio") is not None) == bool(measured)


def cell(client: str, per_second: float, server_us: float = 1.0) -> BenchCell:
    cpu = {"server_cpu_us": server_us, "producer_cpu_us": 1.0, "consumer_cpu_us": 2.0}
    return BenchCell("64 a call", "x", client, "", [BenchRound(100, 1.0, per_second, **cpu)])


def test_a_missed_goal_names_the_saturated_process():
    result = BenchResult.begin("clients", {})
    cells = [cell("plain loop", 50_000, 19.0), cell("work_batch", 90_000), cell("redis-py", 40_000)]
    compare(result, cells, 2)
    assert [one.ratio for one in cells] == [1.25, 2.25, None]
    [note] = result.notes
    assert note.startswith("plain loop is 1.25x the fastest peer, and the goal is 1.5x: the server is saturated")


def test_where_no_process_is_saturated_the_disk_is_named():
    assert "the disk" in bottleneck(cell("plain loop", 1_000))
