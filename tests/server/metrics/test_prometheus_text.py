"""Scrapes over several turns: sums balance and never decrease, whatever happens between two turns."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.core.limits import Limits
from penstock.core.scopes import OPERATOR, Principal, require
from penstock.dialects.courier.operations import queries
from penstock.server.metrics.prometheus_text import ByStream, Scrape, Together
from tests.core.driving import QueueDriver


@pytest.fixture(autouse=True)
def one_stream_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "STREAMS_A_TURN", 1)


def finish(bench: QueueDriver, figures: ByStream | Together, between: object = None) -> dict[tuple[str, str], float]:
    """Make a scrape, with something happening after its first turn."""
    scrape = Scrape(bench.machine, figures, lambda now: [])
    turns = 0
    while not scrape.step(bench.now):
        turns += 1
        if turns == 1 and callable(between):
            between()
    return {
        (sample.name, ",".join(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(scrape.text().decode())
        for sample in family.samples
    }


def used(*names: str, **limits: int) -> QueueDriver:
    bench = QueueDriver(limits=Limits(idle_unload_ms=1_000, **limits))
    for name in names:
        consumer = bench.subscribe(name, 1)
        bench.put(name, "1")
        bench.ack(consumer, "1")
        bench.unsubscribe(consumer)
    return bench


def test_a_stream_that_goes_to_sleep_during_a_scrape_is_counted_once() -> None:
    for name in ("a", "b", "c"):
        bench = used("a", "b", "c")
        keep = [bench.subscribe(other) for other in ("a", "b", "c") if other != name]
        found = finish(bench, Together(bench.machine, OPERATOR), lambda bench=bench: bench.advance(2_000))
        assert len(bench.machine.channels) == len(keep) == 2
        assert found["penstock_q_in_total", ""] == found["penstock_q_ack_total", ""] == 3


def test_a_stream_that_wakes_during_a_scrape_is_counted_once() -> None:
    bench = used("a", "b", "c")
    keep = bench.subscribe("a"), bench.subscribe("b")
    bench.advance(2_000)
    found = finish(bench, Together(bench.machine, OPERATOR), lambda: bench.subscribe("c"))
    assert len(bench.machine.channels) == 3 and keep
    assert found["penstock_q_in_total", ""] == 3


def test_only_what_the_caller_may_read_is_summed() -> None:
    bench = used("a/1", "a/2", "b/1")
    reader = Principal("reader", scopes=require(["streams:a/*:read"]))
    assert finish(bench, Together(bench.machine, reader))["penstock_q_in_total", ""] == 2
    assert ("penstock_q_in_total", "b/1") not in finish(bench, ByStream(bench.machine, reader))


def test_percentiles_are_those_of_all_deliveries_together() -> None:
    bench = QueueDriver()
    for name, wait_ms in (("a", 10), ("b", 1_000)):
        bench.put(name, "1")
        bench.advance(wait_ms)
        bench.subscribe(name, 1)
    found = finish(bench, Together(bench.machine, OPERATOR))
    assert 10 <= found["penstock_q_lat_ms", "0.5"] < 12
    assert 1_000 <= found["penstock_q_lat_ms", "0.99"] < 1_130


def test_streams_beyond_the_bound_are_summed_as_other() -> None:
    bench = used("a", "b", "c", metric_streams_max=1)
    found = finish(bench, ByStream(bench.machine, OPERATOR))
    assert (found["penstock_q_in_total", "a"], found["penstock_q_in_total", "other"]) == (1, 2)


@pytest.mark.promise("Operations", "dead letters that wait now and envelopes that ever died are two numbers")
def test_dead_now_and_dead_ever_are_two_numbers() -> None:
    bench = QueueDriver()
    for id_ in ("1", "2", "3"):
        bench.put("jobs", id_)
    consumer = bench.subscribe("jobs", 2)
    for id_ in ("1", "2"):
        bench.term(consumer, id_)
    reader = bench.subscribe("dlq/jobs", 1)
    bench.ack(reader, "1")
    bench.unsubscribe(reader)
    for figures in (Together(bench.machine, OPERATOR), ByStream(bench.machine, OPERATOR)):
        found = finish(bench, figures)
        assert found["penstock_dead_letters", ""] == 1
        assert sum(value for (name, _), value in found.items() if name == "penstock_q_dead_total") == 2
        ready = sum(value for (name, _), value in found.items() if name == "penstock_q_depth")
        assert ready - found["penstock_dead_letters", ""] == 1, "the one that is not dead"
