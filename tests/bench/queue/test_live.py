"""Followers of a view receive every change and agree on its version."""

from __future__ import annotations

import pytest


@pytest.mark.more
def test_followers_of_a_view_all_come_to_the_same_version(bench):
    found = bench("live", "--seconds", "0.5", "--watchers", "0,5", "--rows", "10", "--changes", "200")
    alone, followed = (cell["rounds"][0] for cell in found["cells"])
    assert alone["count"] == 100
    assert 50 <= followed["count"] <= 500  # each row at least once, each change at most once a follower
    assert followed["latencyMs"]["p50"] > 0 and followed["serverCpuShare"] > 0
