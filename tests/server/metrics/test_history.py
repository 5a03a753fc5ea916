"""The history of the metrics: rates, minutes, bounds, and what a server answers."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from penstock.server.metrics.history import (
    DAY_S,
    FINE_ROWS,
    FOLD,
    METRICS,
    MINUTE_ROWS,
    SAMPLE_S,
    HistoryQuery,
    MetricsHistory,
)
from tests.integration.serving import Http, until
from tests.server_process import ServerProcess

IN, DEPTH = "penstock_q_in_total", "penstock_q_depth"


def test_a_counter_becomes_a_rate_and_what_is_unknown_stays_unknown() -> None:
    history = MetricsHistory()
    history.add(100, {IN: 1_000, DEPTH: 7})
    history.add(105, {IN: 1_050})
    history.add(110, {IN: 20, DEPTH: 9})  # it restarted
    history.add(110, {IN: 99})  # the clock stood still
    reply = history.reply(HistoryQuery())
    assert reply.times == [100, 105, 110]
    assert reply.columns[IN] == [None, 10, 4]
    assert reply.columns[DEPTH] == [7, None, 9]


def test_a_day_is_kept_in_minutes_and_no_more() -> None:
    history = MetricsHistory()
    samples = int(DAY_S / SAMPLE_S) + 10 * FOLD + 1
    tracemalloc.start()
    for number in range(samples):
        history.add(SAMPLE_S * number, {DEPTH: float(number)})
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 1_000_000
    hour, day = (history.reply(HistoryQuery(seconds)) for seconds in (int(FINE_ROWS * SAMPLE_S), DAY_S))
    assert len(hour.times) == FINE_ROWS and len(day.times) == MINUTE_ROWS + 1
    assert day.times[1] - day.times[0] == FOLD * SAMPLE_S
    last = samples - 2  # the newest whole minute ends here; a row is the mean of its samples
    assert day.columns[DEPTH][-2:] == [last - (FOLD - 1) / 2, samples - 1]
    assert len(history.reply(HistoryQuery(60)).times) == 13


@pytest.mark.promise("Console", "plots come from the server's own history of a day, also after a reload of the page")
def test_a_server_answers_with_its_history_to_administrators_only(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path)
    try:
        operator = Http(server.http, (server.data / "run" / "operator.token").read_text().strip())
        history = until(lambda: (found := operator.get("/v1/history").json)["times"] and found, "the first sample")
        assert history["columns"].keys() == set(METRICS)
        assert history["columns"][DEPTH][0] == 0
        for seconds in (0, DAY_S + 1, "x"):
            assert operator.get("/v1/history", seconds=seconds).code == "InvalidRequest"
        assert Http(server.http).get("/v1/history").status == 401
    finally:
        server.kill()
