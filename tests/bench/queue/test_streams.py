"""Very many streams are filled, queried and accounted for."""

from __future__ import annotations

import pytest


@pytest.mark.more
def test_very_many_streams_are_filled_asked_and_accounted_for(bench):
    found = bench("streams", "--count", "300", "--no-minute")
    fill, *looks = found["cells"]
    assert fill["workload"] == "fill, 300 streams" and fill["rounds"][0]["bytesEach"] > 0
    assert [cell["workload"] for cell in looks] == ["GET /metrics", "GET /v1/metrics", "GET /v1/envelopes/b-0000000001"]
