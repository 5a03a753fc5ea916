"""Alerts: equal rows give equal alerts, however the rows are batched."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock.core.limits import Limits
from penstock.core.patterns import matches
from penstock.core.records import Record
from penstock.core.scopes import Principal
from penstock.dialects.courier.wire import envelopes
from penstock.ipc.pipeline import AnyAlertRule, DeadLetterRule, LatencyRule, RateRule, SilenceRule
from penstock.spark.lake.schemas import ALERTS, QUEUE_MINUTES
from penstock.spark.lake_tables.minutes import GRACE_US, MINUTE_US, floor_minute, is_final, reach_us
from penstock.spark.pipeline import alerts
from penstock.spark.pipeline.alerts import (
    Act,
    Alert,
    Breach,
    alert_id,
    breaches,
    broken_minutes,
    envelope,
    episodes,
    silences,
)
from tests.spark.journaled import JOURNAL, MINUTE_0

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RATE = RateRule("busy", above=2, severity="critical")
SLOW = LatencyRule("slow", above=100)
DEAD = DeadLetterRule("dead", channel="jobs")
QUIET = SilenceRule("quiet", for_ms=10_000, agent="s*")
TableDefinition = dict[str, Alert]


def minute(number: float) -> int:
    return MINUTE_0 + round(number * MINUTE_US)


def breach(number: int, value: float = 5.0, rule: AnyAlertRule = RATE, subject: str = "jobs") -> Breach:
    return Breach(JOURNAL, rule.id, rule.severity, subject, minute(number), value, getattr(rule, "above", 0.0))


def told(found: list[Breach], until_us: int, known: list[Alert] | None = None, *rules: AnyAlertRule) -> list[Alert]:
    return episodes(rules or (RATE, SLOW, QUIET), known or [], found, {JOURNAL: until_us})


# Episodes


def test_minutes_in_a_row_are_one_alert_with_their_greatest_value() -> None:
    found = [breach(2, 5), breach(0, 3), breach(1, 9), breach(4, 4), breach(1, 7, subject="other")]
    alerts_ = told(found, minute(4.5))
    assert [(a.subject, a.window_start, a.window_end, a.value, a.state) for a in alerts_] == [
        ("jobs", minute(0), minute(3), 9, "resolved"),
        ("jobs", minute(4), minute(5), 4, "firing"),
        ("other", minute(1), minute(2), 7, "resolved"),
    ]
    first = alerts_[0]
    assert (first.id, first.severity, first.threshold) == (
        alert_id("busy", "jobs", minute(0)),
        "critical",
        2.0,
    )
    assert (first.fired_at, first.resolved_at) == (minute(0), minute(3))
    assert len({a.id for a in alerts_}) == 3


def test_an_alert_is_over_when_the_next_minute_can_no_longer_break_the_rule() -> None:
    over_us = minute(2) + GRACE_US
    assert told([breach(0)], over_us - 1)[0].state == "firing"
    assert told([breach(0)], over_us)[0].state == "resolved"


def test_latency_fires_at_the_end_of_its_minute_counts_at_its_start() -> None:
    assert told([breach(0, rule=SLOW)], minute(2))[0].fired_at == minute(1)
    assert told([breach(0)], minute(2))[0].fired_at == minute(0)


def test_only_changed_alerts_are_announced_again() -> None:
    (first,) = told([breach(0, 3)], minute(0.5))
    known = [replace(first, envelope_id="alert-x")]
    assert told([breach(0, 3)], minute(0.6), known) == []
    (more,) = told([breach(0, 4)], minute(0.7), known)
    assert (more.id, more.value, more.state, more.envelope_id) == (first.id, 4, "firing", "alert-x")
    (over,) = told([], minute(3), known)
    assert (over.id, over.value, over.state, over.resolved_at) == (first.id, 3, "resolved", minute(1))
    assert over.envelope_id is None


def test_alerts_that_are_over_stay_so_when_old_rows_come_again() -> None:
    (over,) = told([breach(0), breach(1)], minute(4))
    assert told([breach(1)], minute(2), [over]) == []


def test_an_alert_whose_rule_is_gone_ends_too() -> None:
    (firing,) = told([breach(0)], minute(0.5))
    (over,) = told([], minute(3), [firing], SLOW)
    assert (over.id, over.state) == (firing.id, "resolved")


def test_silence_is_no_matter_of_minutes() -> None:
    (quiet,), _ = silences(JOURNAL, [QUIET], {"sam": MINUTE_0}, [], [], MINUTE_0 + 11_000_000)
    assert told([], minute(9), [quiet]) == []


arrivals = st.lists(
    st.tuples(st.integers(0, 9 * MINUTE_US), st.sampled_from(["jobs", "other"])), min_size=1, max_size=40
)


def counted(rows: list[tuple[int, str]], from_us: int, until_us: int) -> list[Breach]:
    """What `breaches` finds when the minutes from `from_us` on are computed: a count, and a latency when it is final."""
    found = []
    counts: dict[tuple[str, int], int] = {}
    for at_us, channel in rows:
        key = channel, floor_minute(at_us)
        counts[key] = counts.get(key, 0) + 1
    for (channel, minute_us), count in counts.items():
        if minute_us < from_us:
            continue
        if count > RATE.above:
            found.append(Breach(JOURNAL, "busy", "critical", channel, minute_us, count, RATE.above))
        if count > 3 and is_final(minute_us, until_us):
            found.append(Breach(JOURNAL, "slow", "warning", channel, minute_us, count * 50.0, SLOW.above))
    return found


@pytest.mark.promise(
    "Spark: pipeline",
    "alerts on rate, latency, dead letters, failing triggers and silence do not depend on how rows are batched",
)
@given(arrivals, st.sets(st.integers(1, 39)))
def test_episodes_are_the_same_however_the_rows_are_cut(rows: list[tuple[int, str]], cuts: set[int]) -> None:
    rows = sorted((MINUTE_0 + at_us, channel) for at_us, channel in rows)
    table: TableDefinition = {}
    from_us = 0
    for end in [*sorted(cut for cut in cuts if cut < len(rows)), len(rows)]:
        until_us = rows[end - 1][0]
        firing = [alert for alert in table.values() if alert.state == "firing"]
        changed = told(counted(rows[:end], from_us, until_us), until_us, firing)
        assert all(table.get(alert.id) != alert for alert in changed)
        table.update({alert.id: alert for alert in changed})
        from_us = reach_us(until_us)
    until_us = rows[-1][0]
    assert table == {alert.id: alert for alert in told(counted(rows, 0, until_us), until_us)}


# Silence


def test_a_silence_fires_while_it_lasts_and_ends_with_the_next_row() -> None:
    start, later = MINUTE_0, MINUTE_0 + 25_000_000
    seen = {"sam": start, "kim": start, "pipeline/s": start}
    none, _ = silences(JOURNAL, [QUIET], seen, [], [], start + 10_000_000)
    assert none == []
    (firing,), same = silences(JOURNAL, [QUIET], seen, [], [], start + 10_000_001)
    assert same == seen
    assert (firing.subject, firing.state, firing.value, firing.threshold) == ("sam", "firing", 10_000, 10_000)
    assert (firing.window_start, firing.window_end, firing.fired_at) == (
        start,
        start + 10_000_000,
        start + 10_000_000,
    )
    assert silences(JOURNAL, [QUIET], seen, [], [firing], start + 20_000_000)[0] == []
    (over,), after = silences(JOURNAL, [QUIET], seen, [Act("sam", later)], [firing], later)
    assert (over.id, over.state, over.value, over.resolved_at) == (firing.id, "resolved", 25_000, later)
    assert (over.window_end, over.fired_at) == (firing.window_end, firing.fired_at)
    assert after["sam"] == later


def test_a_new_agent_is_not_silent_and_a_pipeline_never_is() -> None:
    acts = [Act("sam", MINUTE_0), Act("pipeline/s", MINUTE_0)]
    found, seen = silences(JOURNAL, [SilenceRule("all", for_ms=1)], {}, acts, [], MINUTE_0 + 1_000)
    assert (found, seen) == ([], {"sam": MINUTE_0, "pipeline/s": MINUTE_0})
    found, _ = silences(JOURNAL, [SilenceRule("all", for_ms=1)], seen, [], [], MINUTE_0 + 9_000_000)
    assert [alert.subject for alert in found] == ["sam"]


def test_an_alert_announced_too_soon_or_while_unwatched_is_resolved_too() -> None:
    (firing,), seen = silences(JOURNAL, [QUIET], {"sam": MINUTE_0}, [], [], MINUTE_0 + 11_000_000)
    late = MINUTE_0 + 9_000_000
    (over,), _ = silences(JOURNAL, [QUIET], seen, [Act("sam", late)], [firing], late)
    assert (over.id, over.state, over.resolved_at, over.value) == (firing.id, "resolved", late, 9_000)
    (missed,), _ = silences(JOURNAL, [QUIET], {"sam": late}, [], [firing], late)
    assert missed == over


@pytest.mark.promise(
    "Spark: pipeline",
    "alerts on rate, latency, dead letters, failing triggers and silence do not depend on how rows are batched",
)
@given(
    st.lists(st.tuples(st.integers(0, 60_000), st.sampled_from(["sam", "sue", "kim"])), max_size=20),
    st.sets(st.integers(0, 20)),
    st.integers(0, 30_000),
)
def test_silences_are_the_same_however_the_rows_are_cut(
    rows: list[tuple[int, str]], cuts: set[int], rest_ms: int
) -> None:
    acts = sorted((Act(agent, MINUTE_0 + ms * 1000) for ms, agent in rows), key=lambda act: act.at_us)
    rules = [QUIET, SilenceRule("very-quiet", for_ms=20_000, severity="info")]
    end_us = (acts[-1].at_us if acts else MINUTE_0) + rest_ms * 1000
    table: TableDefinition = {}
    seen: dict[str, int] = {}
    start = 0
    for end in [*sorted(cut for cut in cuts if cut < len(acts)), len(acts)]:
        now_us = end_us if end == len(acts) else acts[end].at_us  # as late as can be: all before it was read
        firing = [alert for alert in table.values() if alert.state == "firing"]
        changed, seen = silences(JOURNAL, rules, seen, acts[start:end], firing, now_us)
        assert all(table.get(alert.id) != alert for alert in changed)
        table.update({alert.id: alert for alert in changed})
        start = end
    once, seen_once = silences(JOURNAL, rules, {}, acts, [], end_us)
    assert (table, seen) == ({alert.id: alert for alert in once}, seen_once)


@given(st.lists(st.integers(0, 60), min_size=1, max_size=10), st.integers(0, 30))
def test_every_gap_that_is_too_long_is_an_alert_and_no_other(seconds: list[int], rest: int) -> None:
    times = sorted({MINUTE_0 + second * 1_000_000 for second in seconds})
    now_us = times[-1] + rest * 1_000_000
    found, _ = silences(JOURNAL, [QUIET], {}, [Act("sam", at_us) for at_us in times], [], now_us)
    gaps = [(a, b) for a, b in pairwise(times) if b - a > 10_000_000]
    assert [(a.window_start, a.resolved_at) for a in found if a.state == "resolved"] == gaps
    assert [a.window_start for a in found if a.state == "firing"] == times[-1:] * (rest > 10)


# Breaches


def rows_of_minutes() -> pa.Table:
    blank: dict[str, Any] = {field.name: None for field in QUEUE_MINUTES.schema}
    at = datetime.fromtimestamp(MINUTE_0 // 1_000_000, UTC)
    made = [
        {"channel": "jobs", "enqueued": 3, "dead": 1, "wait_p95_ms": 200.0, "final": False},
        {"channel": "jobs/more", "enqueued": 2, "dead": 9, "wait_p95_ms": 200.0, "final": True},
        {"channel": "j%bs_", "enqueued": 0, "dead": 0, "wait_p95_ms": None, "final": True},
    ]
    return pa.Table.from_pylist(
        [{**blank, "journal": JOURNAL, "minute": at, **row} for row in made], QUEUE_MINUTES.schema
    )


@pytest.mark.promise(
    "Spark: pipeline",
    "alerts on rate, latency, dead letters, failing triggers and silence do not depend on how rows are batched",
)
def test_minutes_that_break_a_rule_are_found_in_one_pass(spark: SparkSession) -> None:
    minutes = spark.createDataFrame(rows_of_minutes())
    exact = RateRule("exact", above=-0.0, channel="j%bs_")
    some = RateRule("some", above=1, channel="jobs*")
    rules: list[AnyAlertRule] = [RATE, SLOW, DEAD, QUIET, exact, some]
    by_spark = sorted(Breach(*row) for row in breaches(minutes, rules).collect())
    assert by_spark == sorted(broken_minutes(rows_of_minutes(), rules))
    assert by_spark == [
        Breach(JOURNAL, "busy", "critical", "jobs", MINUTE_0, 3.0, 2.0),
        Breach(JOURNAL, "dead", "warning", "jobs", MINUTE_0, 1.0, 0.0),
        Breach(JOURNAL, "slow", "warning", "jobs/more", MINUTE_0, 200.0, 100.0),
        Breach(JOURNAL, "some", "warning", "jobs", MINUTE_0, 3.0, 1.0),
        Breach(JOURNAL, "some", "warning", "jobs/more", MINUTE_0, 2.0, 1.0),
    ]
    assert breaches(minutes, [QUIET]).collect() == []


def test_a_channel_pattern_means_the_same_here_as_everywhere(spark: SparkSession) -> None:
    from pyspark.sql import functions as f

    names = ["a", "ab", "aba", "a%", "a_b", "a\\b", "axb", "a/b/c", "a.c"]
    patterns = ["*", "a", "a*", "*b", "a*a", "a%", "a_b", "a\\b", "a*b*", "a.c", "*%", "a\\*"]
    frame = spark.createDataFrame([(name,) for name in names], "name string")
    asked = frame.select("name", *(f.col("name").like(alerts.like(text)) for text in patterns)).collect()
    for row in asked:
        assert [bool(hit) for hit in row[1:]] == [matches(pattern, row[0]) for pattern in patterns]


# Telling


@pytest.fixture
def pair() -> tuple[Alert, Alert]:
    (firing,) = told([breach(0, 3)], minute(0.5))
    (over,) = told([breach(0, 7)], minute(3), [firing])
    return firing, over


def test_rows_come_back_from_their_table_as_they_were(pair: tuple[Alert, Alert]) -> None:
    table = alerts.table(pair)
    assert table.schema.equals(ALERTS.schema)
    assert alerts.read(table) == list(pair)
    assert alerts.read(alerts.table([])) == []


def test_an_alert_says_in_plain_words_what_happened(pair: tuple[Alert, Alert]) -> None:
    assert [alert.message for alert in pair] == [
        "`jobs` has had more than 2 envelopes enqueued in a minute, since 2025-10-09T08:53:00.000Z",
        "`jobs` had up to 7 envelopes enqueued in a minute, from 2025-10-09T08:53:00.000Z to 2025-10-09T08:54:00.000Z; 2 are allowed",
    ]
    (slow,) = told([breach(0, 250.5, SLOW)], minute(3))
    assert "had up to 250.5 ms of waiting at the 95th percentile" in slow.message
    (dead,) = told([breach(0, 1, DEAD)], minute(0.5), None, DEAD)
    assert "has had more than 0 dead letters in a minute" in dead.message
    (gone,) = told([], minute(3), [pair[0]], SLOW)
    assert "by the rule `busy`" in gone.message
    (quiet,), _ = silences(JOURNAL, [QUIET], {"sam": MINUTE_0}, [], [], minute(1))
    assert quiet.message == "`sam` has done nothing since 2025-10-09T08:53:00.000Z, for more than 10000 ms"


def test_its_envelope_is_taken_by_the_door_and_is_the_same_whenever_it_is_made(
    pair: tuple[Alert, Alert],
) -> None:
    firing, over = pair
    grown = replace(firing, value=9.0, window_end=minute(3), envelope_id="other")
    assert envelope(firing, "sam") == envelope(grown, "sam")
    made = envelope(over, "ops/alerts")
    assert (made["id"], made["type"], made["to"]) == (
        f"alert-{over.id}-resolved",
        "alert.resolved",
        "ops/alerts",
    )
    assert made["payload"]["value"] == 7
    assert made["payload"]["window_end"] == "2025-10-09T08:54:00.000Z"
    assert set(made["payload"]) == set(ALERTS.schema.names)
    sent = envelope(firing, "sam")
    assert sent["headers"]["severity"] == "critical"
    assert sent["corr"] == made["corr"]
    record = envelopes.parse(
        msgspec.json.encode(sent), "agents/sam/inbox", Principal("app", "pipeline/penstock"), Limits()
    )
    assert isinstance(record, Record)
    assert (record.id, record.sender) == (f"alert-{firing.id}-firing", "pipeline/penstock")
