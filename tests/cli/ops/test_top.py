"""`penstock top`: rates between two samples, a server that restarts, and the drawn table."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from penstock.cli import main
from penstock.cli.ops.top import picture
from penstock.cli.ops.top_figures import Look, Reading, read
from penstock.client.admin import ServerFigures, parse_counters
from tests.server_process import ServerProcess

TEXT = """\
# TYPE penstock_q_in_total counter
penstock_q_in_total {q_in}
# TYPE penstock_q_lat_ms gauge
penstock_q_lat_ms{{quantile="0.95"}} 1279.5
# TYPE penstock_dead_letters gauge
penstock_dead_letters 4.0
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
def test_what_is_shown_is_bounded_and_says_what_is_left_out() -> None:
    many = [queue(f"queue-{number}", 0) for number in range(40)]
    shown = drawn(read(None, Look(0.0, figures("x", 0, *many))), rows=5)
    assert shown.count("queue-") == 5
    assert "and 35 more" in shown
    assert "only the operator's token" in shown
    assert "4 dead letters now, 0 ever" in shown and "p95 1300 ms" in shown


def test_parts_in_trouble_are_named_with_their_reason() -> None:
    found = figures("x", 0)
    found.health["parts"] = {"disk": {"state": "failed", "reason": "the disk is full"}, "lake": {"state": "ok"}}
    shown = drawn(read(None, Look(0.0, found)))
    assert "disk: the disk is full" in shown and "lake" not in shown


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
