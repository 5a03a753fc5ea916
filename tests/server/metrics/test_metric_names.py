"""Only named metrics are exported."""

from __future__ import annotations

import pytest
from prometheus_client.core import Metric

from penstock.ipc.pipeline import PipelineStatus
from penstock.server.metrics.metric_names import METRICS, families
from penstock.server.metrics.prometheus_families import _pipeline


@pytest.mark.promise("Operations", "every metric has one name, kind and meaning, and a scrape has exactly those")
def test_the_metrics_of_the_pipeline_are_those_that_are_named() -> None:
    made: list[Metric] = _pipeline(PipelineStatus(state="running"))
    assert {family.name for family in made} == {one.name for one in METRICS if one.group == "pipeline"}


@pytest.mark.promise("Operations", "every metric has one name, kind and meaning, and a scrape has exactly those")
def test_what_is_not_named_cannot_be_exported() -> None:
    with pytest.raises(KeyError):
        families({"penstock_no_such": 1})
