"""Metric names and the container's health check, on a real server with every protocol."""

from __future__ import annotations

import json
import re

import pytest

from penstock.server.metrics.metric_names import METRICS
from penstock.server.ops.reference_pages import containerfile
from tests.integration.serving import Http, until
from tests.server_process import ServerProcess

CONFIG = """
logs: {events: events.jsonl}
schemas: {dir: schemas}
spaces:
  - space: {id: workshop}
    participants: {ada: {tokens: [ada-token], capabilities: [{kind: chat}]}}
"""
ELSEWHERE = {"cluster", "pipeline"}
"""Groups whose metrics need Spark or a cluster; `tests/server/metrics/test_grafana.py` looks at them."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A server with a space, schemas, an event log and a relay."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "schemas").mkdir()
    process = ServerProcess(folder, "--relay", config=CONFIG)
    yield process
    process.kill()


def exported(http: Http, path: str) -> dict[str, str]:
    text = http.get(path).body.decode()
    return dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.M))


@pytest.mark.promise("Operations", "every metric has one name, kind and meaning, and a scrape has exactly those")
def test_a_scrape_has_every_metric_that_is_named_and_no_other(whole):
    http = Http(whole.http)
    wanted = {metric.sample: metric.kind for metric in METRICS if metric.group not in ELSEWHERE}
    # The relay reports its figures once a second.
    until(lambda: "penstock_relay_topics" in exported(http, "/metrics"), "the relay's first report")
    assert exported(http, "/metrics?streams=1") == wanted
    assert exported(http, "/metrics") == {
        metric.sample: metric.kind for metric in METRICS if metric.group not in {*ELSEWHERE, "topics"}
    }


def test_the_journal_tells_of_its_disk(whole):
    http = Http(whole.http)
    http.enqueue("metered", "a")
    text = http.get("/metrics").body.decode()
    figures = dict(re.findall(r"^(penstock_journal_\w+) (\S+)$", text, re.M))
    assert float(figures["penstock_journal_refusing"]) == 0
    assert float(figures["penstock_journal_rows"]) > 0
    assert float(figures["penstock_journal_disk_free_bytes"]) > 0


@pytest.mark.promise("Operations", "the container runs as an unprivileged user, needs tokens, and has a health check")
def test_the_health_check_of_the_container_is_answered(whole, tmp_path):
    line = next(line for line in containerfile().splitlines() if line.strip().startswith('CMD ["python"'))
    code = json.loads(line.strip().removeprefix("CMD "))[2]
    exec(code.replace("http://127.0.0.1:8787", whole.http))
    with pytest.raises(OSError):
        exec(code.replace("127.0.0.1:8787", "127.0.0.1:1"))
