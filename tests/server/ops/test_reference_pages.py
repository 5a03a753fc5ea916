"""The printed reference pages are complete and current."""

from __future__ import annotations

import configparser
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from penstock.cli import build
from penstock.cli.print_files import cli_reference
from penstock.core.limits import Limits
from penstock.server.http.routes import ROUTES
from penstock.server.metrics.metric_names import METRICS
from penstock.server.ops.reference_pages import (
    containerfile,
    http_reference,
    metrics_reference,
    stop_seconds,
    systemd_unit,
)
from tests.paths import ROOT


@pytest.mark.promise("Operations", "the reference pages of metrics, routes and commands are generated and current")
def test_every_route_and_metric_is_in_its_reference() -> None:
    page = http_reference()
    assert all(f"## {route.method} `{route.path}`\n" in page for route in ROUTES)
    page = metrics_reference()
    assert all(f"| `{metric.sample}` |" in page for metric in METRICS)


@pytest.mark.promise("Operations", "the reference pages of metrics, routes and commands are generated and current")
@pytest.mark.parametrize(
    ("name", "text"),
    [("http.md", http_reference()), ("metrics.md", metrics_reference()), ("cli.md", cli_reference())],
)
def test_the_printed_page_is_fresh(name: str, text: str) -> None:
    page = ROOT / "docs" / "reference" / name
    command = f"penstock print {name.removesuffix('.md')} > docs/reference/{name}"
    assert page.read_text(encoding="utf-8") == text, f"it is stale: `{command}`"


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=True, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(systemd_unit("/usr/bin/penstock", config="/etc/penstock.yaml"))
    return parser


@pytest.mark.promise("Operations", "the systemd unit is valid, hardened, and waits for the drain")
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


@pytest.mark.promise("Operations", "the systemd unit is valid, hardened, and waits for the drain")
@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="no systemd; the test above checks the unit without it"
)
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    file = tmp_path / "penstock.service"
    file.write_text(systemd_unit("/bin/true"))
    command = ["systemd-analyze", "verify", "--man=no", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and "penstock.service" not in done.stderr, done.stderr


@pytest.mark.promise("Operations", "the container runs as an unprivileged user, needs tokens, and has a health check")
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
