"""Figures of `penstock top`: rates between two samples, and a server that restarts."""

from __future__ import annotations

import pytest

from penstock.cli.ops.top_figures import Look, ServerPoller, read
from penstock.client.admin import ServerFigures
from penstock.core.errors import PenstockError, Refusal
from tests.cli.ops.test_top import drawn, figures, queue, stream


@pytest.mark.promise("SDK and command line", "`top` shows rates of counters, bounds its rows, and survives a restart")
def test_rates_are_differences_of_counters_over_the_time_between() -> None:
    before = Look(10.0, figures("x", 100, queue("jobs", 40), streams=[stream(1, 5)]))
    now = Look(12.0, figures("x", 130, queue("jobs", 50), queue("new", 7), streams=[stream(1, 9, ["bob"])]))
    reading = read(before, now)
    courier, mew, relay = reading.doors
    assert (courier.connected, courier.in_rate, mew.connected) == (6, 15.0, 3)
    assert relay.note.startswith("up")
    assert [(one.name, one.in_rate) for one in reading.queues] == [("jobs", 5.0), ("new", None)]
    [shown] = reading.streams
    assert (shown.to, shown.rate, shown.deliveries_rate) == ("bob", 2.0, 4.0)
    assert reading.latency_ms["0.95"] == 1279.5
    assert reading.pipeline is not None
    assert (reading.pipeline.state, reading.pipeline.lag_rows) == ("running", 12)
    assert reading.pipeline.batch_ms == {"ingest": 40.0}


@pytest.mark.promise("SDK and command line", "`top` shows rates of counters, bounds its rows, and survives a restart")
def test_the_first_look_at_a_server_and_at_a_new_run_of_it_has_no_rates() -> None:
    now = Look(12.0, figures("y", 3, queue("jobs", 2)))
    assert [one.in_rate for one in read(None, now).queues] == [None]
    before = Look(10.0, figures("x", 100, queue("jobs", 40)))
    reading = read(before, now)
    assert (reading.doors[0].in_rate, reading.queues[0].in_rate) == (None, None)


def test_the_fullest_queues_come_first_then_the_busiest() -> None:
    before = Look(0.0, figures("x", 0, queue("busy", 0), queue("calm", 0), queue("full", 0)))
    now = Look(1.0, figures("x", 0, queue("busy", 9), queue("calm", 1), queue("full", 0, depth=4)))
    assert [one.name for one in read(before, now).queues] == ["full", "busy", "calm"]


class Server:
    """ServerFigures that are there, or not."""

    def __init__(self) -> None:
        self.answers: list[ServerFigures | PenstockError] = []

    def fetch(self) -> ServerFigures:
        answer = self.answers.pop(0)
        if isinstance(answer, PenstockError):
            raise answer
        return answer


@pytest.mark.promise("SDK and command line", "`top` shows rates of counters, bounds its rows, and survives a restart")
def test_a_server_that_is_gone_for_a_while_is_waited_for() -> None:
    server = Server()
    gone = PenstockError(Refusal("Unreachable", "nobody listens there"))
    server.answers = [figures("x", 1), gone, figures("y", 1), PenstockError(Refusal("Unauthorized", "no"))]
    watch = ServerPoller(server.fetch, lambda: 0.0)
    watch.look()
    watch.look()
    assert watch.reading is not None and watch.trouble == "nobody listens there"
    assert "reconnecting: nobody listens there" in drawn(watch.reading, trouble=watch.trouble)
    watch.look()
    assert watch.trouble is None
    with pytest.raises(PenstockError, match="Unauthorized"):
        watch.look()
