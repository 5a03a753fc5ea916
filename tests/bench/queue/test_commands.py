"""`bench queue` and `bench http` account for every envelope, alone and with a peer."""

from __future__ import annotations

import pytest

from penstock.bench.harness.processes import ProcessGroup
from penstock.bench.harness.result import BenchError, BenchResult
from penstock.bench.queue.commands import QueueRounds


@pytest.mark.promise("The document's testing strategy", "Load: synthetic producers and consumers, latency percentiles")
@pytest.mark.promise("Benchmarks and robustness", "`penstock bench queue` and `bench http` account for every envelope")
def test_queue_cells_are_accounted_for(bench):
    found = bench(
        "queue", "--seconds", "0.2", "--rounds", "1", "--batch", "16,1", "--no-peer",
        "--queued", "300", "--subscribers", "10",
    )  # fmt: skip
    cells = {cell["workload"]: cell for cell in found["cells"]}
    assert list(cells) == [
        "closed loop, 16 a frame",
        "closed loop, 1 a frame",
        "open loop, 2,000 a second",
        "memory, 320 envelopes queued",
        "idle, 10 subscribers",
        "core alone, 64 records a call",
        "core alone, 1 records a call",
    ]
    assert all(cell["rounds"][0]["count"] > 0 and cell["batched"] for cell in cells.values())
    paced = cells["open loop, 2,000 a second"]["rounds"][0]
    assert paced["count"] == 400
    assert paced["latencyMs"]["p50"] <= paced["latencyMs"]["p99"] <= paced["latencyMs"]["max"]
    assert "penstock" in found["commands"]


@pytest.mark.more
def test_queue_beside_its_peer_or_saying_why_not(bench):
    found = bench("queue", "--only", "closed", "--batch", "16", "--seconds", "0.2", "--rounds", "1")
    targets = [(cell["target"], cell["client"]) for cell in found["cells"]]
    if found["notes"]:
        assert found["notes"][0].startswith("no peer: ") and targets == [("penstock", "lean")]
    else:
        assert targets == [("penstock", "lean"), ("redis", "lean"), ("redis", "redis-py")]
        assert [cell.get("ratio", 0) > 0 for cell in found["cells"]] == [False, True, False]


@pytest.mark.more
@pytest.mark.promise("Benchmarks and robustness", "`penstock bench queue` and `bench http` account for every envelope")
def test_http_cells_are_accounted_for(bench):
    found = bench(
        "http", "--seconds", "0.2", "--rounds", "1", "--batch", "1,10", "--connections", "4",
        "--queued", "200",
    )  # fmt: skip
    assert len(found["cells"]) == 4
    assert all(cell["rounds"][0]["count"] > 0 for cell in found["cells"])


@pytest.mark.promise("Benchmarks and robustness", "`penstock bench queue` and `bench http` account for every envelope")
def test_an_envelope_that_was_not_acked_fails_the_run():
    with ProcessGroup(BenchResult.begin("test", {})) as group:
        server = group.penstock()
        QueueRounds(group, 300).memory(server, 10)
        with pytest.raises(BenchError, match="10 envelopes were sent"):
            server.check_counts("bench/nowhere", 10, is_held=True)
