"""`penstock top`: rates between two samples, a server that restarts, and the drawn table."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from penstock.cli import main
from penstock.cli.ops.top import picture
from penstock.cli.ops.top_figures import Look, Reading, ServerPoller, read
from penstock.client.admin import ServerFigures, parse_counters
from penstock.core.errors import PenstockError, Refusal
from tests.server_process import ServerProcess

TEXT = """\
# TYPE penstock_q_in_total counter
penstock_q_in_total {q_in}
# TYPE penstock_q_lat_ms gauge
penstock_q_lat_ms{{quantile="0.95"}} 7.5
# TYPE penstock_links gauge
penstock_links 9.0
# TYPE penstock_space_participants gauge
penstock_space_participants{{space="a"}} 2.0
penstock_space_participants{{space="b"}} 1.0
# TYPE penstock_relay_up gauge
penstock_relay_up 1.0
# TYPE penstock_pipeline_lag_rows gauge
penstock_pipeline_lag_rows 12.0
# TYPE penstock_pipeline_batch_ms gauge
penstock_pipeline_batch_ms{{query="ingest"}} 40.0
"""


def queue(name: str, sent: int, depth: int = 0) -> dict[str, Any]:
    stats = {"depth": depth, "inflight": 0, "latP50": 1.5, "latP95": 2.5}
    return {"id": name, "stats": stats, "q": {"q.in": sent, "q.out": sent}}


def stream(number: int, frames: int, target: list[str] | None = None) -> dict[str, Any]:
    shown: dict[str, Any] = {"stream_id": f"stream-{number}", "owner": "ann", "frames": frames}
    return shown | {"deliveries": 2 * frames, "dropped": 0, "target": target}


def figures(
    boot: str, sent: int, *queues: dict[str, Any], streams: list[dict[str, Any]] | None = None
) -> ServerFigures:
    health = {"bootId": boot, "version": "9", "status": "ok", "uptime": 3.0, "spaces": 2}
    more = {"relay": {"ok": True}, "pipeline": "running"}
    spaces = None if streams is None else [{"id": "a", "streams": streams}]
    return ServerFigures(health | more, list(queues), parse_counters(TEXT.format(q_in=sent)), spaces)


def drawn(reading: Reading, rows: int = 15, trouble: str | None = None) -> str:
    console = Console(file=io.StringIO(), width=160)
    console.print(picture(reading, rows, trouble))
    return str(console.file.getvalue())  # type: ignore[attr-defined]


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
    assert reading.latency_ms["0.95"] == 7.5
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


@pytest.mark.promise("SDK and command line", "`top` shows rates of counters, bounds its rows, and survives a restart")
def test_what_is_shown_is_bounded_and_says_what_is_left_out() -> None:
    many = [queue(f"queue-{number}", 0) for number in range(40)]
    shown = drawn(read(None, Look(0.0, figures("x", 0, *many))), rows=5)
    assert shown.count("queue-") == 5
    assert "and 35 more" in shown
    assert "only the operator's token" in shown


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


@pytest.mark.promise("SDK and command line", "`top` shows rates of counters, bounds its rows, and survives a restart")
def test_one_reading_of_a_real_server(server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--url", server.http, "--interval", "0.2"]
    assert main(["send", "top-reader", "hello", "--as", "ann", "--url", server.http]) == 0
    capsys.readouterr()
    assert main(["top", "--json", *words]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {"agents/top-reader/inbox"} <= {one["name"] for one in told["queues"]}
    assert told["doors"][0]["in_rate"] is not None
    assert main(["top", "--once", "--rows", "1", *words]) == 0
    assert "courier" in capsys.readouterr().out


def test_no_server_is_an_error_with_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--url", "http://127.0.0.1:1"]) == 1
    assert "hint:" in capsys.readouterr().err
