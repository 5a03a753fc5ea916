"""The history of the metrics: rates, minutes, bounds, and what a server answers."""

from __future__ import annotations

import asyncio
import logging
import tracemalloc
from pathlib import Path

import pytest

from penstock.core.clock import Now
from penstock.server import metrics
from penstock.server.http.idempotency import Replays
from penstock.server.metrics.history import (
    DAY_S,
    FINE_ROWS,
    FOLD,
    METRICS,
    MINUTE_ROWS,
    SAMPLE_S,
    STREAMS_MAX,
    WEEK_S,
    Busiest,
    HistoryQuery,
    HistoryReply,
    MetricsHistory,
)
from penstock.server.metrics.prometheus_families import Exporter, Readings, Together
from tests.core.driving import QueueDriver
from tests.integration.serving import Http, until
from tests.server.http.driving import HttpDriver, drive
from tests.server_process import ServerProcess

IN, DEPTH = "penstock_q_in_total", "penstock_q_depth"


def at(monotonic_s: int, wall_s: int) -> Now:
    return Now(monotonic_s * 1_000_000, wall_s * 1_000_000)


def test_a_counter_becomes_a_rate_and_what_is_unknown_stays_unknown() -> None:
    history = MetricsHistory()
    history.server.add(100, {IN: 1_000, DEPTH: 7})
    history.server.add(105, {IN: 1_050})
    history.server.add(110, {IN: 20, DEPTH: 9})  # it restarted
    history.server.add(110, {IN: 99})  # no time has passed
    reply = history.reply(HistoryQuery(), at(110, 1_010))
    assert reply.times == [1_000, 1_005, 1_010]
    assert reply.columns[IN] == [None, 10, 4]
    assert reply.columns[DEPTH] == [7, None, 9]


def test_a_day_is_kept_in_minutes_and_no_more() -> None:
    history = MetricsHistory()
    samples = int(DAY_S / SAMPLE_S) + 10 * FOLD + 1
    tracemalloc.start()
    for number in range(samples):
        history.server.add(SAMPLE_S * number, {DEPTH: float(number)})
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 1_000_000
    hour, day = (history.reply(HistoryQuery(seconds), at(0, 0)) for seconds in (int(FINE_ROWS * SAMPLE_S), DAY_S))
    assert len(hour.times) == FINE_ROWS and len(day.times) == MINUTE_ROWS + 1
    assert day.times[1] - day.times[0] == FOLD * SAMPLE_S
    last = samples - 2  # the newest whole minute ends here; a row is the mean of its samples
    assert day.columns[DEPTH][-2:] == [last - (FOLD - 1) / 2, samples - 1]
    assert len(history.reply(HistoryQuery(60), at(0, 0)).times) == 13


@pytest.mark.parametrize("jump_s", [-7_200, 365 * DAY_S], ids=["two hours back", "a year ahead"])
def test_the_history_goes_on_when_the_wall_clock_is_set(monkeypatch: pytest.MonkeyPatch, jump_s: int) -> None:
    """The second of three samples is taken after the jump; a clock set ahead is right again with the third."""
    walls_s = [1_000_000, 1_000_005 + jump_s, 1_000_010 + min(jump_s, 0)]
    times: list[list[float]] = []

    async def work(driver: HttpDriver) -> None:
        history, exporter, scheduler = driver.services.history, driver.services.exporter, driver.service.scheduler
        moments = [at(100 + 5 * number, wall_s) for number, wall_s in enumerate(walls_s)]
        monkeypatch.setattr(scheduler, "now", lambda: moments[len(times)])
        monkeypatch.setattr(metrics.history, "SHARE", 0)
        monkeypatch.setattr(metrics.history, "SAMPLE_S", 0.0)

        async def pause(seconds: float) -> None:
            times.append(history.reply(HistoryQuery(), moments[len(times)]).times)
            if len(times) == len(moments):
                raise asyncio.CancelledError

        monkeypatch.setattr(metrics.history.asyncio, "sleep", pause)
        with pytest.raises(asyncio.CancelledError):
            await history.run(exporter)

    drive(work)
    assert times == [[wall_s - 5.0 * age for age in range(n, -1, -1)] for n, wall_s in enumerate(walls_s)]


class Traffic:
    """A machine, and a history that samples its streams every five seconds."""

    def __init__(self) -> None:
        self.driver = QueueDriver()
        self.history = MetricsHistory()
        self.sent = 0

    def sample(self, **counts: int) -> None:
        """Send so many envelopes to each stream, then take a sample."""
        for stream, many in counts.items():
            self.driver.put(stream, *(f"e-{self.sent + number}" for number in range(many)))
            self.sent += many
        self.driver.advance(5_000)
        busiest = Busiest(self.driver.machine)
        busiest.add(self.driver.now, busiest.names())
        self.history.add_streams(self.driver.now, self.driver.machine, busiest.streams)

    def of(self, stream: str) -> HistoryReply:
        return self.history.reply(HistoryQuery(stream=stream), self.driver.now)


def test_a_stream_has_a_history_of_its_own() -> None:
    traffic = Traffic()
    traffic.sample(a=10, b=1)
    traffic.sample(a=20)
    assert traffic.of("a").columns[IN] == [None, 4] and traffic.of("a").columns[DEPTH] == [10, 30]
    assert traffic.of("b").columns[DEPTH] == [1, 1]
    unknown = traffic.of("c")
    assert not unknown.sampled and unknown.times == []


def test_the_busiest_streams_have_a_history_and_no_more() -> None:
    traffic = Traffic()
    traffic.sample(**{f"s{number}": 60 for number in range(STREAMS_MAX)}, late=60)
    kept = [name for number in range(STREAMS_MAX) if traffic.of(name := f"s{number}").sampled]
    assert len(kept) + traffic.of("late").sampled == STREAMS_MAX
    lost = next(
        name for name in ("late", *(f"s{number}" for number in range(STREAMS_MAX))) if not traffic.of(name).sampled
    )
    traffic.sample(**{lost: 1_000})
    assert traffic.of(lost).sampled, "it takes the place of a quiet one"
    traffic.sample(steady=100)
    assert not traffic.of("steady").sampled, "it has not twice the traffic of any other"


class FailingExporter(Exporter):
    """Fails twice, then reads."""

    failures: int = 2

    def readings(self, figures: Together) -> Readings:
        if self.failures:
            self.failures -= 1
            raise OSError("stale")
        return super().readings(figures)


def test_a_sample_that_fails_is_logged_once_and_the_next_one_is_taken(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(driver: HttpDriver) -> None:
        history, exporter = driver.services.history, FailingExporter(driver.service.runtime, lambda: 0, Replays())
        monkeypatch.setattr(metrics.history, "SHARE", 0)
        monkeypatch.setattr(metrics.history, "SAMPLE_S", 0.0)
        task = asyncio.ensure_future(history.run(exporter))
        async with asyncio.timeout(10):
            while not history.reply(HistoryQuery(), at(0, 0)).times:  # noqa: ASYNC110 - each turn is a sample
                await asyncio.sleep(0)
        task.cancel()

    with caplog.at_level(logging.ERROR, logger="penstock"):
        drive(work)
    assert [record.getMessage() for record in caplog.records] == ["history.failed"]


@pytest.mark.promise("Console", "plots come from the server's own history of a day, also after a reload of the page")
def test_a_server_answers_with_its_history_to_administrators_only(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path)
    try:
        operator = Http(server.http, (server.data / "run" / "operator.token").read_text().strip())
        history = until(lambda: (found := operator.get("/v1/history").json)["times"] and found, "the first sample")
        assert history["columns"].keys() == set(METRICS)
        assert history["columns"][DEPTH][0] == 0
        for seconds in (0, WEEK_S + 1, "x"):
            assert operator.get("/v1/history", seconds=seconds).code == "InvalidRequest"
        for stream in ("a:b", "x" * 1_000, "a\nb"):
            assert operator.get("/v1/history", stream=stream).code == "InvalidRequest"
        assert Http(server.http).get("/v1/history").status == 401
    finally:
        server.kill()
