"""The ledger of `bench cluster` notices what is lost and what returns, and takes pauses of affected shards only. No NATS is needed."""

from __future__ import annotations

import asyncio
import threading

import pytest

from penstock.bench.cluster.commands import add_pauses
from penstock.bench.cluster.ledger import ClusterLedger, percentiles
from penstock.bench.harness.result import BenchError, BenchResult
from penstock.core.errors import LeaseLost, PenstockError, Refusal
from tests.server_process import ServerProcess

ENDED = LeaseLost(Refusal("LeaseExpired", "the lease ended with its owner"))
UNANSWERED = PenstockError(Refusal("Timeout", "no answer"))


def test_percentiles_are_taken_of_the_sorted_pauses() -> None:
    assert percentiles(number / 10 for number in range(100, 0, -1)) == [100, 5.1, 10.0, 10.0]
    assert percentiles([0.25]) == [1, 0.25, 0.25, 0.25]
    assert percentiles([]) == [1, 0.0, 0.0, 0.0]


def test_what_is_confirmed_and_never_received_is_lost() -> None:
    ledger = ClusterLedger()
    for name in ("a", "b"):
        ledger.confirm(name)
    ledger.settle("a")
    assert (ledger.confirmed, ledger.lost) == (2, 1)
    assert ledger.failures() == ["1 confirmed envelopes are lost"]


def test_a_receipt_before_the_answer_to_its_enqueue_is_not_lost() -> None:
    ledger = ClusterLedger()
    ledger.settle("a")
    ledger.confirm("a")
    assert ledger.failures() == []


def test_a_settled_envelope_that_returns_is_a_failure() -> None:
    ledger = ClusterLedger()
    ledger.confirm("a")
    ledger.settle("a")
    ledger.settle("a")
    assert ledger.failures() == ["1 settled envelopes returned"]
    ledger.settle("a", UNANSWERED)
    assert ledger.returned == 2


def test_a_late_delivery_of_an_old_owner_is_counted_and_no_failure() -> None:
    ledger = ClusterLedger()
    ledger.confirm("a")
    ledger.settle("a")
    ledger.settle("a", ENDED)
    assert (ledger.stale, ledger.returned, ledger.failures()) == (1, 0, [])


def test_a_settle_without_an_answer_is_unsure_until_the_envelope_comes_again() -> None:
    ledger = ClusterLedger()
    ledger.confirm("a")
    ledger.settle("a", UNANSWERED)
    assert (ledger.unsure, ledger.lost, ledger.failures()) == (1, 0, [])
    ledger.settle("a")
    assert (ledger.unsure, ledger.returned) == (0, 0)


class Nothing:
    """Disturbs nothing, or fails."""

    def __init__(self, *, fails: bool = False) -> None:
        self.seen: list[tuple[str, int]] = []
        self.is_aborted = threading.Event()
        self._fails = fails

    def disturb(self, event: str, number: int) -> list[int]:
        self.seen.append((event, number))
        if self._fails:
            raise BenchError("it does not happen")
        return [0, 7]

    def abort(self) -> None:
        self.is_aborted.set()


def test_clients_of_one_server_are_promised_and_given_everything(server: ServerProcess) -> None:
    ledger, found = ClusterLedger(server.control), Nothing()
    asyncio.run(ledger.run(found, ["move", "kill"], 2))
    assert found.seen == [("move", 0), ("kill", 0), ("move", 1), ("kill", 1)] and found.is_aborted.is_set()
    assert {event: len(pauses) for event, pauses in ledger.pauses.items()} == {"move": 4, "kill": 4}
    assert ledger.failures() == [] and ledger.confirmed >= 16 * 2 and not ledger.refused
    result = BenchResult.begin("cluster", {})
    assert [row[:2] for row in add_pauses(result, ledger)] == [["move", 4], ["kill", 4]]
    assert [cell.workload for cell in result.cells] == ["move", "kill"]
    assert result.notes[-1].startswith('envelopes: {"confirmed":')


def test_an_event_that_fails_ends_the_run(server: ServerProcess) -> None:
    ledger, found = ClusterLedger(server.control), Nothing(fails=True)
    with pytest.raises(BenchError, match="it does not happen"):
        asyncio.run(ledger.run(found, ["move"], 1))
    assert found.is_aborted.is_set() and ledger.pauses == {}
