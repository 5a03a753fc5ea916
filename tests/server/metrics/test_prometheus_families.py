"""Metrics of the parts of a server: exactly those that are named, and none of a part that is off.

Scrapes over several turns: sums balance and never decrease, whatever happens between two turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from penstock.core.clock import Now
from penstock.core.limits import Limits
from penstock.core.queue.machine import QueueMachine
from penstock.core.queue.policy import Policy
from penstock.core.records import Record
from penstock.core.relay.topic import RelayCounts
from penstock.core.scopes import OPERATOR, Principal, require
from penstock.core.steps import Survey
from penstock.dialects.courier.operations import queries
from penstock.dialects.courier.operations.queries import STREAMS_A_TURN
from penstock.dialects.streamservice.relay_memory import RelayMemory
from penstock.ipc.pipeline import ExpectationStatus, PipelineStatus, QueryStatus
from penstock.server.config.sections import RelaySection
from penstock.server.engine.machines import make_machine
from penstock.server.engine.runtime import Runtime
from penstock.server.engine.schedulers import HandScheduler, TurnTimes
from penstock.server.http.idempotency import Replays
from penstock.server.metrics.metric_names import METRICS
from penstock.server.metrics.prometheus_families import (
    SAMPLES_A_TURN,
    ByStream,
    Exporter,
    Scrape,
    Together,
    _pipeline,
    relay_metrics,
    space_metrics,
)
from penstock.server.relay.reports import RelayTotals
from penstock.server.relay.supervisor import RelaySupervisor, TopicFigures
from tests.core.driving import QueueDriver
from tests.dialects.mew.driving import GatewayDriver, settings

COUNT = 2 * STREAMS_A_TURN + 7
NOW = Now(5_000_000, 5_000_000)


def many(count: int, limits: Limits | None = None) -> QueueMachine:
    machine = make_machine(limits or Limits(), lambda _: Policy(), lambda n: b"\1" * n)
    for number in range(count):
        machine.enqueue(NOW, f"q{number}", [Record(f"e{number}", "t", b"{}")])
    if count:
        machine.commit_log.take_batch()
        machine.committed(NOW, 0)
    return machine


def exporter(machine: QueueMachine, **parts: Any) -> Exporter:
    runtime = Runtime(machine, None, HandScheduler(lambda: NOW), authenticate=lambda _: None, version="t")  # type: ignore[arg-type]
    return Exporter(runtime, lambda: 3, Replays(), **parts)


def steps(survey: Survey) -> int:
    count = 1
    while not survey.step(NOW):
        count += 1
    return count


def names(group: str) -> set[str]:
    return {one.name for one in METRICS if one.group == group}


def values(families: Iterable[Metric]) -> dict[str, float]:
    """Samples by their name and, in brackets, their labels."""
    return {
        sample.name + "".join(f"[{label}]" for label in sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


def scraped(exporter: Exporter, **options: Any) -> dict[str, float]:
    scrape = exporter.scrape(OPERATOR, **options)
    steps(scrape)
    return values(text_string_to_metric_families(scrape.text().decode()))


def test_a_scrape_is_summed_and_written_over_several_turns() -> None:
    machine = many(COUNT, Limits(metric_streams_max=SAMPLES_A_TURN // 4))
    scrape = exporter(machine, per_stream=True).scrape(OPERATOR)
    assert steps(scrape) > 4
    families = {one.name: one for one in text_string_to_metric_families(scrape.text().decode())}
    depth = {sample.labels["stream"]: sample.value for sample in families["penstock_q_depth"].samples}
    assert sum(depth.values()) == COUNT
    assert depth["other"] == COUNT - machine.limits.metric_streams_max
    assert families["penstock_streams"].samples[0].value == COUNT


@pytest.mark.promise("Operations", "every metric has one name, kind and meaning, and a scrape has exactly those")
def test_a_server_without_other_parts_exports_only_its_own_metrics() -> None:
    found = {family.name for family in exporter(many(0))._rest(NOW)}
    optional = {"penstock_events_dropped", "penstock_schema_warned", "penstock_schema_refused"}
    optional |= {
        "penstock_loop_turn_seconds",
        "penstock_loop_turn_longest_seconds",
        "penstock_loop_turn_longest_cpu_seconds",
    }
    assert found == (names("server") | names("views") | names("triggers")) - optional


def test_turns_of_the_loop_are_a_histogram() -> None:
    loop = asyncio.new_event_loop()
    turns = TurnTimes(loop)
    loop.close()
    turns.counts = [5, 0, 2, 0, 0, 1, 0, 0, 0]
    turns.total_s, turns.longest_s, turns.longest_cpu_s = 0.2, 0.09, 0.04
    found = scraped(exporter(many(0), turns=turns))
    assert [found[f"penstock_loop_turn_seconds_bucket[{le}]"] for le in ("0.001", "0.05", "0.1", "+Inf")] == [
        5,
        7,
        8,
        8,
    ]
    assert found["penstock_loop_turn_seconds_count"] == 8 and found["penstock_loop_turn_seconds_sum"] == 0.2
    assert found["penstock_loop_turn_longest_seconds"] == 0.09
    assert found["penstock_loop_turn_longest_cpu_seconds"] == 0.04


def test_a_request_chooses_between_sums_and_streams() -> None:
    summed = exporter(many(2))
    assert scraped(summed)["penstock_q_depth"] == 2
    by_stream = scraped(summed, per_stream=True)
    assert (by_stream["penstock_q_depth[q0]"], by_stream["penstock_q_depth[q1]"]) == (1, 1)
    assert scraped(exporter(many(2), per_stream=True), per_stream=False)["penstock_q_depth"] == 2


def test_figures_are_read_when_a_scrape_asks() -> None:
    bench = QueueDriver()
    made = exporter(bench.machine)
    before = scraped(made)
    bench.put("jobs", "1")
    after = scraped(made)
    assert (before["penstock_streams"], after["penstock_streams"]) == (0, 1)
    assert after["penstock_bytes"] > before["penstock_bytes"] == 0
    assert after["penstock_log_lines_dropped_total"] == 3


@pytest.mark.promise("Operations", "every metric has one name, kind and meaning, and a scrape has exactly those")
def test_the_metrics_of_the_pipeline_are_those_that_are_named() -> None:
    made: list[Metric] = _pipeline(PipelineStatus(state="running"))
    assert {family.name for family in made} == {one.name for one in METRICS if one.group == "pipeline"}


def test_the_pipeline_is_up_only_while_it_runs() -> None:
    status = PipelineStatus(state="running", end=9, queries={"ingest": QueryStatus(offset=7, batches=2, batch_ms=40)})
    found = values(_pipeline(status))
    assert (found["penstock_pipeline_up"], found["penstock_pipeline_halted"]) == (1, 0)
    assert found["penstock_pipeline_lag_rows"] == 2 and found["penstock_pipeline_offset[ingest]"] == 7
    halted = values(_pipeline(PipelineStatus(state="halted")))
    assert (halted["penstock_pipeline_up"], halted["penstock_pipeline_halted"]) == (0, 1)
    assert _pipeline(None) == []


def test_failed_batches_and_the_queries_of_users_are_counted() -> None:
    status = PipelineStatus(state="running", own_queries={"own-means": QueryStatus(batches=4)})
    for at_us in (1, 2):
        status.fail_batch(at_us, "ingest", "conversations.commit", "the disk is full")
    status.fail_batch(3, "own-means", None, "no such stream")
    found = values(_pipeline(status))
    assert found["penstock_pipeline_failed_batches_total[ingest][conversations][commit]"] == 2
    assert found["penstock_pipeline_failed_batches_total[own-means][][]"] == 1
    assert found["penstock_pipeline_batches_total[own-means]"] == 4
    assert "penstock_pipeline_offset[own-means]" not in found, "Spark does not report it"


@pytest.mark.promise("Spark: pipeline", "rows that fail an expectation are counted in `/metrics`")
def test_failed_expectations_and_stopped_tables_are_counted() -> None:
    expected = [
        ExpectationStatus("jobs", "has an id", "drop", 3, "offset=1"),
        ExpectationStatus("jobs", "small", "warn"),
    ]
    found = values(_pipeline(PipelineStatus(state="running", expectations=expected, stopped={"sent": "no"})))
    assert found["penstock_pipeline_expectation_failed_total[jobs][has an id][drop]"] == 3
    assert found["penstock_pipeline_expectation_failed_total[jobs][small][warn]"] == 0
    assert found["penstock_pipeline_tables_stopped"] == 1


@pytest.mark.promise("Operations", "every metric has one name, kind and meaning, and a scrape has exactly those")
def test_each_space_has_its_own_counts() -> None:
    driver = GatewayDriver(settings("p1", "p2"), settings("p1", id_="other"))
    driver.joined("p1", "p2")
    made = space_metrics(driver.spaces)
    assert {family.name for family in made} == names("spaces")
    found = values(made)
    assert (found["penstock_space_participants[demo]"], found["penstock_space_participants[other]"]) == (2, 0)
    assert space_metrics(None) == []


@pytest.mark.promise("Operations", "every metric has one name, kind and meaning, and a scrape has exactly those")
def test_the_relay_has_counts_of_its_latest_report_and_bounded_topics(tmp_path: Path) -> None:
    async def go() -> None:
        runtime = exporter(many(0)).runtime
        relay = RelaySupervisor(RelaySection(), tmp_path, RelayMemory(), runtime, keeps_rows=False)
        found = values(relay_metrics(relay, 10, per_topic=True))
        assert found == {
            "penstock_relay_up": 0,
            "penstock_relay_restarts_total": 0,
            "penstock_relay_sockets_cut_total": 0,
        }, "nothing was reported yet"
        relay.is_up = True
        relay.figures = RelayTotals(RelayCounts(), 4, 0, 100, 0, refused={"signature": 2})
        relay.topics = {f"t{number}": TopicFigures(messages=number) for number in range(4)}
        made = relay_metrics(relay, 3, per_topic=True)
        assert {family.name for family in made} == names("relay") | names("topics")
        found = values(made)
        assert (found["penstock_relay_up"], found["penstock_relay_refusals_total[signature]"]) == (1, 2)
        topics = {name: value for name, value in found.items() if name.startswith("penstock_relay_topic_messages")}
        assert list(topics.values()) == [0, 1, 2], "at most as many as the limit"
        assert {family.name for family in relay_metrics(relay, 3, per_topic=False)} == names("relay")

    asyncio.run(go())
    assert relay_metrics(None, 3, per_topic=True) == []


def finish(bench: QueueDriver, figures: ByStream | Together, between: object = None) -> dict[tuple[str, str], float]:
    """Make a scrape of a stream a turn, with something happening after its first turn."""
    scrape = Scrape(figures, lambda now: [])
    turns = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queries, "STREAMS_A_TURN", 1)
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
