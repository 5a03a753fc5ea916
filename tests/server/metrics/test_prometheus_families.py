"""Metrics of the parts of a server: exactly those that are named, and none of a part that is off."""

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
from penstock.core.scopes import OPERATOR
from penstock.core.steps import Survey
from penstock.dialects.courier.operations.queries import STREAMS_A_TURN
from penstock.dialects.streamservice.relay_memory import RelayMemory
from penstock.ipc.pipeline import PipelineStatus, QueryStatus
from penstock.server.config.sections import RelaySection
from penstock.server.engine.machines import make_machine
from penstock.server.engine.runtime import Runtime
from penstock.server.engine.schedulers import HandScheduler, TurnTimes
from penstock.server.http.idempotency import Replays
from penstock.server.metrics.metric_names import METRICS
from penstock.server.metrics.prometheus_families import Exporter, _pipeline, relay_metrics, space_metrics
from penstock.server.metrics.prometheus_text import SAMPLES_A_TURN
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
    optional |= {"penstock_loop_turn_seconds", "penstock_loop_turn_longest_seconds"}
    assert found == (names("server") | names("views") | names("triggers")) - optional


def test_turns_of_the_loop_are_a_histogram() -> None:
    loop = asyncio.new_event_loop()
    turns = TurnTimes(loop)
    loop.close()
    turns.counts = [5, 0, 2, 0, 0, 1, 0, 0, 0]
    turns.total_s, turns.longest_s = 0.2, 0.09
    found = scraped(exporter(many(0), turns=turns))
    assert [found[f"penstock_loop_turn_seconds_bucket[{le}]"] for le in ("0.001", "0.05", "0.1", "+Inf")] == [
        5,
        7,
        8,
        8,
    ]
    assert found["penstock_loop_turn_seconds_count"] == 8 and found["penstock_loop_turn_seconds_sum"] == 0.2
    assert found["penstock_loop_turn_longest_seconds"] == 0.09


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
