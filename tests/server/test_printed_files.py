"""What `penstock print` makes: every name in it is a metric that is exported, and every file is one that its reader takes."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client.core import Metric

from penstock.cli import build
from penstock.cli.reference import cli_reference
from penstock.core.limits import Limits
from penstock.ipc.pipeline import PipelineStatus
from penstock.server.http.routes import ROUTES
from penstock.server.metrics import alert_rules, grafana
from penstock.server.metrics.metric_names import BY_NAME, METRICS, families
from penstock.server.metrics.prometheus_families import _pipeline
from penstock.server.ops.deployment import containerfile, stop_seconds, systemd_unit
from penstock.server.ops.reference_pages import http_reference, metrics_reference
from tests.paths import ROOT

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
    found += [
        f"[{one}] is no range" for one in lengths if not re.fullmatch(r"\d+[smhd]|\$__rate_interval", one)
    ]
    return found


def expressions() -> list[str]:
    rules = yaml.safe_load(alert_rules.alert_rules())["groups"][0]["rules"]
    board = json.loads(grafana.dashboard())
    targets = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    return [rule["expr"] for rule in rules] + targets


@pytest.mark.promise(
    "Operations",
    "alert rules and dashboard name metrics that are exported, in expressions that Prometheus takes",
)
def test_every_expression_names_metrics_that_are_exported_and_reads_like_one() -> None:
    found = expressions()
    assert len(found) > 80
    for expression in found:
        assert names(expression) and names(expression) <= SAMPLES | THEIRS, expression
        assert faults(expression) == [], expression


@pytest.mark.promise(
    "Operations",
    "alert rules and dashboard name metrics that are exported, in expressions that Prometheus takes",
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
        alert_rules.expression("@no_such_metric > 0")


@pytest.mark.promise(
    "Operations",
    "alert rules and dashboard name metrics that are exported, in expressions that Prometheus takes",
)
def test_counters_are_asked_for_their_rate_and_gauges_are_not() -> None:
    for expression in expressions():
        for name in names(expression) - THEIRS:
            metric = next(one for one in METRICS if one.sample == name)
            if name == "penstock_uptime_seconds" and "resets(" in expression:
                continue  # a gauge that only falls when it begins again
            called = f"rate({name}" in expression or f"increase({name}" in expression
            assert called is (metric.kind == "counter"), expression


@pytest.mark.promise("Operations", "every metric is in a plot, or on the list of those that are not")
def test_every_metric_is_on_the_dashboard_or_on_the_list_of_those_that_are_not() -> None:
    shown = [name for plots in grafana.board().values() for plot in plots for name in plot.metrics]
    assert len(shown) == len(set(shown)), "a metric is in two plots"
    hidden = set(grafana.NOT_SHOWN)
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
    rules = yaml.safe_load(alert_rules.alert_rules())["groups"][0]["rules"]
    alerts = [rule["alert"] for rule in rules]
    assert len(alerts) == len(set(alerts)) >= 15
    for rule in rules:
        assert re.fullmatch(r"\d+[smh]", rule["for"])
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"]["summary"] and rule["annotations"]["description"]


@pytest.mark.promise(
    "Operations", "every metric has one name, kind and meaning, and a scrape has those and no others"
)
def test_the_metrics_of_the_pipeline_are_those_that_are_named() -> None:
    made: list[Metric] = _pipeline(PipelineStatus(state="running"))
    assert {family.name for family in made} == {one.name for one in METRICS if one.group == "pipeline"}


@pytest.mark.promise(
    "Operations", "every metric has one name, kind and meaning, and a scrape has those and no others"
)
def test_what_is_not_named_cannot_be_exported() -> None:
    with pytest.raises(KeyError):
        families({"penstock_no_such": 1})


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=True, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(systemd_unit("/usr/bin/penstock", config="/etc/penstock.yaml"))
    return parser


@pytest.mark.promise("Operations", "the systemd unit is sound, hardened, and waits for the drain")
def test_the_unit_runs_the_server_and_waits_for_its_drain() -> None:
    service = unit()["Service"]
    program, *words = service["ExecStart"].split()
    assert program == "/usr/bin/penstock"
    _, bound, _ = build(words).parse_args(words, exit_on_error=False)
    assert bound.arguments["data"] == "/var/lib/penstock"
    assert str(bound.arguments["config"]) == "/etc/penstock.yaml"
    assert int(service["TimeoutStopSec"]) == stop_seconds() > Limits().drain_ms / 1000 + 10
    assert (service["Type"], service["KillSignal"], service["KillMode"]) == ("exec", "SIGTERM", "mixed")
    assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert service["Restart"] == "on-failure" and service["StateDirectory"] == "penstock"
    for hardened in ("NoNewPrivileges", "ProtectHome", "PrivateTmp"):
        assert service[hardened] == "yes"
    assert service["ProtectSystem"] == "strict"


@pytest.mark.promise("Operations", "the systemd unit is sound, hardened, and waits for the drain")
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    file = tmp_path / "penstock.service"
    file.write_text(systemd_unit("/bin/true"))
    command = ["systemd-analyze", "verify", "--man=no", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and "penstock.service" not in done.stderr, done.stderr


@pytest.mark.promise(
    "Operations", "the container runs as nobody special, needs tokens, and is asked for its health"
)
def test_the_container_has_nothing_of_root_and_starts_the_server() -> None:
    text = containerfile()
    lines = [line for line in text.replace("\\\n", "").splitlines() if line and not line.startswith("#")]
    steps = [line.split(maxsplit=1) for line in lines]
    of = dict(steps)
    assert of["FROM"].startswith("python:") and of["USER"] == "penstock" and of["VOLUME"] == "/data"
    order = [word for word, _ in steps]
    assert order.index("USER") < order.index("ENTRYPOINT")
    assert json.loads(of["ENTRYPOINT"]) == ["penstock"]
    words = json.loads(of["CMD"])
    _, bound, _ = build(words).parse_args(words, exit_on_error=False)
    assert bound.arguments["http"] == "0.0.0.0:8787" and bound.arguments["data"] == "/data"
    for word, rest in steps:
        if word == "COPY":
            assert all((ROOT / name).exists() for name in rest.split()[:-1]), rest
    check = json.loads(of["HEALTHCHECK"].partition("CMD ")[2])
    compile(check[2], "healthcheck", "exec")
    assert "/health" in check[2] and "COURIER_TOKENS" in text


@pytest.mark.promise("Operations", "the references of metrics, routes and commands are printed, and fresh")
def test_every_route_and_metric_is_in_its_reference() -> None:
    page = http_reference()
    assert all(f"## {route.method} `{route.path}`\n" in page for route in ROUTES)
    page = metrics_reference()
    assert all(f"| `{metric.sample}` |" in page for metric in METRICS)


@pytest.mark.promise("Operations", "the references of metrics, routes and commands are printed, and fresh")
@pytest.mark.parametrize(
    ("name", "text"),
    [("http.md", http_reference()), ("metrics.md", metrics_reference()), ("cli.md", cli_reference())],
)
def test_the_printed_page_is_fresh(name: str, text: str) -> None:
    page = ROOT / "docs" / "reference" / name
    command = f"penstock print {name.removesuffix('.md')} > docs/reference/{name}"
    assert page.read_text(encoding="utf-8") == text, f"it is stale: `{command}`"
