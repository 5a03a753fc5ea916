"""The relay's pending reports: bounds, differences, and topics by hash."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.clock import Now
from penstock.core.relay.bounds import RelayLimits
from penstock.core.relay.machine import Relay
from penstock.core.relay.topic import Topic
from penstock.server.relay.reports import (
    BODIES_MAX,
    MessageRelayed,
    RelayReport,
    RelayTotals,
    ResumeRequested,
    SubscribersChanged,
    TopicCounts,
    TopicExpired,
    TopicRegistered,
    TopicStats,
)

ASKED = ResumeRequested("hash", True, 3)
FACT = TopicRegistered("hash", "signer", 5)


def make_stats(**limits: Any) -> tuple[Relay, Topic, TopicStats, list[list[RelayReport]]]:
    relay = Relay(RelayLimits(**limits), lambda message: None)
    topic = relay.register(Now(1, 1), b"a" * 64, "s", 100)
    assert isinstance(topic, Topic)
    reports: list[list[RelayReport]] = []
    return relay, topic, TopicStats(relay, reports.append), reports


@pytest.mark.promise("Relay", "a server that does not read costs observations, never time of the relay's loop")
def test_what_waits_for_a_report_is_bounded() -> None:
    _, topic, stats, reports = make_stats(observations_max=2, facts_max=1)
    for _ in range(3):
        stats.report(ASKED)
        stats.report(FACT)
    for _ in range(2):
        stats.passed(topic, b"x" * (BODIES_MAX // 2 + 1), is_held=False)
    stats.flush()
    assert [type(each) for each in reports[0]] == [
        ResumeRequested,
        TopicRegistered,
        ResumeRequested,
        RelayTotals,
    ]
    figures = reports[0][-1]
    assert isinstance(figures, RelayTotals)
    assert (figures.dropped, figures.facts_dropped) == (3, 2)
    stats.passed(topic, b"t" * 64 + b"body", is_held=True)
    stats.flush()
    assert isinstance(reports[1][0], MessageRelayed)
    assert reports[1][0].body == b"body"


def test_a_count_holds_the_difference_and_an_idle_topic_is_not_counted_again() -> None:
    relay, topic, stats, reports = make_stats()
    relay.publish(2, topic.name, topic.name + b"one", 67)
    stats.count_all()
    relay.publish(3, topic.name, topic.name + b"two!", 68)
    stats.count_all()
    stats.count_all()
    stats.flush()
    counts = [each for each in reports[0] if isinstance(each, TopicCounts)]
    assert [(each.seq, each.chunks, each.bytes) for each in counts] == [(1, 1, 67), (2, 1, 68)]
    assert {each.topic for each in counts} == {topic.hash}


def test_a_busy_topic_is_counted_once_a_report_and_not_after_its_end() -> None:
    relay, topic, stats, reports = make_stats()
    for _ in range(600):
        relay.publish(2, topic.name, b"one", 3)
    stats.count_busy()
    stats.count_busy()
    for _ in range(600):
        relay.publish(2, topic.name, b"two", 3)
    for ended in relay.compact(Now(3, 100_000_000)):
        stats.ended(ended.topic, ended.hash, ended.reason)
    stats.count_busy()
    stats.flush()
    seen = [each.seq if isinstance(each, TopicCounts) else type(each) for each in reports[0]]
    assert seen == [600, 1200, TopicExpired, RelayTotals]


def test_an_ended_topic_is_counted_a_last_time() -> None:
    relay, topic, stats, reports = make_stats()
    relay.publish(2, topic.name, topic.name + b"one", 67)
    stats.ended(topic, topic.hash, "expired")
    stats.flush()
    assert [type(each) for each in reports[0]] == [TopicCounts, TopicExpired, RelayTotals]


def test_the_name_of_a_topic_is_never_reported() -> None:
    _, topic, stats, reports = make_stats()
    stats.passed(topic, topic.name + b"a chunk of " + topic.name, is_held=False)
    stats.subscribers_changed(topic.name, on=True)
    stats.subscribers_changed(b"unknown", on=True)
    stats.flush()
    message, changed, _ = reports[0]
    assert isinstance(message, MessageRelayed) and message.body == b"a chunk of " + topic.hash.encode()
    assert changed == SubscribersChanged(topic.hash, True, topic.subscribers)


def test_refusals_are_counted_by_reason() -> None:
    _, _, stats, reports = make_stats()
    for reason in ("link", "prefix", "link"):
        stats.refuse(reason)
    stats.flush()
    totals = reports[0][-1]
    assert isinstance(totals, RelayTotals) and totals.refused == {"link": 2, "prefix": 1}


def test_without_a_reader_nothing_is_kept() -> None:
    relay = Relay(RelayLimits(), lambda message: None)
    stats = TopicStats(relay, None)
    stats.report(FACT)
    stats.flush()
    assert (stats.dropped, stats.facts_dropped) == (0, 0)
