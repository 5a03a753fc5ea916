"""The printed reference pages are complete and current."""

from __future__ import annotations

import pytest

from penstock.cli.reference import cli_reference
from penstock.server.http.routes import ROUTES
from penstock.server.metrics.metric_names import METRICS
from penstock.server.ops.reference_pages import http_reference, metrics_reference
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
