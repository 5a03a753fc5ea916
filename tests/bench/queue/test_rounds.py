"""A round fails when an envelope is missing."""

from __future__ import annotations

import pytest

from penstock.bench.harness.processes import ProcessGroup
from penstock.bench.harness.result import BenchError, BenchResult
from penstock.bench.queue.rounds import QueueRounds


@pytest.mark.promise("Benchmarks and robustness", "`penstock bench queue` and `bench http` account for every envelope")
def test_an_envelope_that_was_not_acked_fails_the_run():
    with ProcessGroup(BenchResult.begin("test")) as group:
        server = group.penstock()
        QueueRounds(group, 300).memory(server, 10)
        with pytest.raises(BenchError, match="10 envelopes were sent"):
            server.check_counts("bench/nowhere", 10, is_held=True)
