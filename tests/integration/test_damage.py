"""Damaged files under a real server: what it refuses, what it announces, and how an operator goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import main
from penstock.journal.disk import RealDisk
from penstock.journal.open_and_repair import WATERMARK, segments
from penstock.journal.segments import Scan
from tests.integration.serving import Http
from tests.server_process import ServerProcess

Start = Callable[..., ServerProcess]


def operator(server: ServerProcess) -> Http:
    return Http(server.http, (server.data / "run" / "operator.token").read_text().strip())


def killed(start_server: Start) -> Path:
    """The journal of a killed server with acknowledged envelopes `a` and `b`."""
    server = start_server()
    http = Http(server.http)
    http.enqueue("jobs", "a")
    http.enqueue("jobs", "b")
    server.kill()
    return server.data


def cut_last_frame(data: Path) -> bytes:
    """Take the last frame from the newest segment; returns it."""
    path = data / "journal" / segments(RealDisk(data / "journal"))[-1].name
    content = path.read_bytes()
    end = [frame.end for frame in Scan(content, path.name, is_last=True).frames()][-2]
    path.write_bytes(content[:end])
    return content[end:]


def penstock(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, Any]:
    capsys.readouterr()
    assert main([*words, "--json"]) == code
    shown: dict[str, Any] = json.loads(capsys.readouterr().out or "{}")
    return shown


@pytest.mark.promise("Journal", "without its watermark a journal never passes as whole")
def test_a_lost_watermark_begins_an_epoch_that_health_and_readers_show(start_server: Start) -> None:
    data = killed(start_server)
    cut_last_frame(data)
    (data / "journal" / WATERMARK).unlink()
    again = operator(start_server())
    journal = again.get("/health").json["journal"]
    assert (journal["ok"], journal["epoch"]) == (True, 1) and "rows may have been lost" in journal["notice"]
    tail = again.get("/v1/tail", event="epoch").json
    assert tail["epoch"] == 1 and [row["event"] for row in tail["rows"]] == ["epoch"]


@pytest.mark.promise("Journal", "a loss is accepted only by a command, and what was lost is a row of the journal")
def test_a_torn_row_that_may_be_acknowledged_waits_for_the_operator(
    start_server: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    data = killed(start_server)
    frame = cut_last_frame(data)
    path = data / "journal" / segments(RealDisk(data / "journal"))[-1].name
    torn = path.read_bytes() + frame[:-1]
    path.write_bytes(torn)
    (data / "journal" / WATERMARK).unlink()
    with pytest.raises(AssertionError, match=r"code 1.*(?s:.)*log repair --accept-loss"):
        start_server()
    where = ["--data", str(data)]
    assert penstock(capsys, "log", "check", *where, code=3)["ok"] is False
    assert main(["log", "repair", *where]) == 1
    assert "JournalDamaged" in capsys.readouterr().err
    assert path.read_bytes() == torn
    done = penstock(capsys, "log", "repair", "--accept-loss", *where)
    assert (done["epoch"], done["bytes"]) == (1, len(frame) - 1)
    server = start_server()
    http = operator(server)
    (row,) = http.get("/v1/tail", event="repair").json["rows"]
    assert row["meta"] == {"epoch": 1, "from": done["from"], "to": None, "bytes": len(frame) - 1}
    assert http.get("/health").json["journal"]["epoch"] == 1
    assert [one["deliver"]["id"] for one in http.pull("jobs", max=9)] == ["a"]
    http.enqueue("jobs", "c")
    assert server.stop() == 0
    assert penstock(capsys, "log", "check", *where)["ok"] is True
    assert "nothing to repair" in _plain(capsys, "log", "repair", *where)


def _plain(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main([*words]) == 0
    return capsys.readouterr().out


# The lake


@pytest.mark.promise("Journal", "a damaged table is announced, and a seal that fails names its cause")
def test_a_damaged_table_is_announced_everywhere(start_server: Start, capsys: pytest.CaptureFixture[str]) -> None:
    server = start_server()
    operator(server).enqueue("jobs", "a")
    assert operator(server).post("/v1/journal/seal", {}).status == 200
    assert operator(server).get("/health").json["lake"] == {"ok": True, "trouble": None}
    entry = sorted((server.data / "lake/events/_delta_log").glob("*.json"))[-1]
    sound = entry.read_bytes()
    entry.write_bytes(b"{" + sound)
    place = str(server.data)
    operator(server).enqueue("jobs", "b")
    refused = operator(server).post("/v1/journal/seal", {})
    assert refused.code == "JournalUnavailable" and "the table cannot be opened" in refused.error["message"]
    trouble = Http(server.http).get("/health").json["lake"]["trouble"]
    assert "the table cannot be opened" in trouble and place not in trouble
    server.kill()
    server = start_server()  # a damaged table does not stop the start
    http = operator(server)
    assert http.get("/health").json["lake"]["ok"] is False
    assert b"penstock_lake_damaged 1" in http.get("/metrics").body
    where = ["--data", str(server.data)]
    checks = {one["check"]: one for one in penstock(capsys, "doctor", *where, code=3)["checks"]}
    assert checks["lake"]["status"] == "failed" and entry.name in checks["lake"]["detail"]
    for words in (["lake", "history", "events"], ["lake", "ls"], ["log", "ls"], ["log", "cat"]):
        capsys.readouterr()
        assert main([*words, *where]) == 1
        assert "JournalDamaged" in capsys.readouterr().err
    report = penstock(capsys, "log", "check", *where, code=3)
    assert {finding["place"] for finding in report["findings"]} == {
        "lake/events",
        f"lake/events/_delta_log/{entry.name}",
    }
    entry.write_bytes(sound)
    assert http.post("/v1/journal/seal", {}).status == 200
    assert http.get("/health").json["lake"] == {"ok": True, "trouble": None}
