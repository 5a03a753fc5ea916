"""Dashboard and alert rules: every name is an exported metric, and every expression is valid in Prometheus."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from penstock.server.metrics import grafana
from penstock.server.metrics.metric_names import BY_NAME, METRICS

NOT_SHOWN = {
    "loop_turn_seconds": "a histogram; the longest turn is shown",
    "dedup_ids": "a bounded size",
    "pipeline_rows": "the input rate is shown",
    "table_rows": "the bytes are shown",
    "table_version": "for comparison with other programs",
    "table_files": "compaction bounds it",
    "table_lag_rows": "the lag in seconds is shown",
    "dedup_evicted": "for tuning `limits`, not for daily use",
    "rate_buckets": "a bounded size",
    "rate_buckets_forgotten": "for tuning `limits`, not for daily use",
    "streams_forgotten": "for tuning `limits`, not for daily use",
    "idempotency_keys": "a bounded size",
    "idempotency_replays": "retries of clients are harmless",
    "idempotency_forgotten": "for tuning `limits`, not for daily use",
    "relay_topic_messages": "a line for each topic; only with `?streams=1`",
    "relay_topic_bytes": "a line for each topic; only with `?streams=1`",
    "relay_topic_waiting": "a line for each topic; only with `?streams=1`",
    "relay_observations_dropped": "only counts are missing from the journal",
}
"""Metrics without a plot, and the reason."""

SAMPLES = {metric.sample for metric in METRICS}
FUNCTIONS = {"rate": True, "increase": True, "resets": True, "predict_linear": True, "label_values": False}
"""What expressions call, and whether it takes a range."""
WORDS = {"and", "or", "unless", "by", "e9"}
THEIRS = {"up"}
"""Metrics that Prometheus makes itself."""


def names(expression: str) -> set[str]:
    """The metrics of an expression."""
    bare = re.sub(r"\{[^}]*\}|\[[^]]*\]", "", expression)
    found = set(re.findall(r"[a-zA-Z_][a-zA-Z0-9_]*", re.sub(r"\d+e\d+", "", bare)))
    return found - set(FUNCTIONS) - WORDS


def faults(expression: str) -> list[str]:
    """What Prometheus would not take, as far as that can be said without it."""
    found = [
        f"{one} and {other} do not match"
        for one, other in ("()", "[]", "{}")
        if expression.count(one) != expression.count(other)
    ]
    for call, has_range in re.findall(r"(\w+)\([\w_]+(?:\{[^}]*\})?(\[[^]]+\])?", expression):
        if call not in FUNCTIONS:
            found.append(f"there is no function {call}")
        elif FUNCTIONS[call] is not bool(has_range):
            found.append(f"{call} is not given what it takes")
    matchers = re.findall(r"\{([^}]*)\}", expression)
    found += [f"{{{one}}} is no matcher" for one in matchers if not re.fullmatch(r'\w+=~?"[^"]*"', one)]
    lengths = re.findall(r"\[([^]]*)\]", expression)
    found += [f"[{one}] is no range" for one in lengths if not re.fullmatch(r"\d+[smhd]|\$__rate_interval", one)]
    return found


def expressions() -> list[str]:
    rules = yaml.safe_load(grafana.alert_rules())["groups"][0]["rules"]
    board = json.loads(grafana.dashboard())
    targets = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    return [rule["expr"] for rule in rules] + targets


@pytest.mark.promise(
    "Operations",
    "alert rules and dashboard use exported metrics in valid Prometheus expressions",
)
def test_every_expression_names_metrics_that_are_exported_and_reads_like_one() -> None:
    found = expressions()
    assert len(found) > 80
    for expression in found:
        assert names(expression) and names(expression) <= SAMPLES | THEIRS, expression
        assert faults(expression) == [], expression


@pytest.mark.promise(
    "Operations",
    "alert rules and dashboard use exported metrics in valid Prometheus expressions",
)
@pytest.mark.parametrize(
    "wrong",
    [
        "rate(penstock_q_in_total)",
        "rte(penstock_q_in_total[5m])",
        "rate(penstock_q_in_total[5m]",
        "penstock_q_lat_ms{quantile=0.99}",
        "rate(penstock_q_in_total[5 minutes])",
    ],
)  # fmt: skip
def test_a_wrong_expression_is_noticed(wrong: str) -> None:
    assert faults(wrong)


def test_a_rule_that_names_no_metric_cannot_be_printed() -> None:
    with pytest.raises(KeyError):
        grafana.with_samples("@no_such_metric > 0")


@pytest.mark.promise(
    "Operations",
    "alert rules and dashboard use exported metrics in valid Prometheus expressions",
)
def test_counters_are_asked_for_their_rate_and_gauges_are_not() -> None:
    for expression in expressions():
        for name in names(expression) - THEIRS:
            metric = next(one for one in METRICS if one.sample == name)
            if name == "penstock_uptime_seconds" and "resets(" in expression:
                continue  # a gauge that only falls when it begins again
            called = f"rate({name}" in expression or f"increase({name}" in expression
            assert called is (metric.kind == "counter"), expression


@pytest.mark.promise("Operations", "every metric is in a plot, or on the list of exceptions")
def test_every_metric_is_on_the_dashboard_or_on_the_list_of_those_that_are_not() -> None:
    shown = [name for plots in grafana.board().values() for plot in plots for name in plot.metrics]
    assert len(shown) == len(set(shown)), "a metric is in two plots"
    hidden = set(NOT_SHOWN)
    assert not hidden & set(shown)
    assert {f"penstock_{name}" for name in [*shown, *hidden]} == set(BY_NAME)


def test_panels_have_places_of_their_own() -> None:
    board = json.loads(grafana.dashboard())
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken and place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))


@pytest.mark.promise("Operations", "every alert says what to do")
def test_alerts_say_what_is_wrong_and_what_to_do() -> None:
    rules = yaml.safe_load(grafana.alert_rules())["groups"][0]["rules"]
    alerts = [rule["alert"] for rule in rules]
    assert len(alerts) == len(set(alerts)) >= 15
    for rule in rules:
        assert re.fullmatch(r"\d+[smh]", rule["for"])
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"]["summary"] and rule["annotations"]["description"]
