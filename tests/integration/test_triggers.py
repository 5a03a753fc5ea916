"""Triggers of a real server: the design document's loop, rules at run time, restarts, and crashes between cause and effect."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.journal.reader import JournalReader
from tests.integration.serving import Http, connected, envelope, run, sockets
from tests.server_process import ServerProcess

Start = Callable[..., ServerProcess]

LOOP = """
triggers:
  - id: jen.log
    when: {type: sprint.log, from: agents/Jen/outbox}
    do: [{action: notify, to: agents/architect/inbox, payload: {title: Jen posted, ref: "${env.id}"}}]
  - id: architect.answer
    when: {type: sprint.assign, from: architect}
    do: [{action: notify, to: agents/Jen/inbox, payload: {ref: "${env.id}", wave: "${env.payload.wave}"}}]
"""
AUDIT = """
streams: {maxDepth: 1000000, dedupWindow: 1000000}
triggers:
  - {id: audit, when: {to: jobs}, do: [{action: notify, to: audit}]}
  - {id: again, when: {to: audit}, do: [{action: notify, to: audit/second}]}
"""


def operator(server: ServerProcess) -> Http:
    return Http(server.http, (server.data / "run" / "operator.token").read_text().strip())


@pytest.mark.promise("The document's testing strategy", "Integration: the notification loop, Jen to Architect to Jen")
@pytest.mark.promise("Triggers", "the design document's loop works: Jen, Architect, Jen")
def test_jen_tells_the_architect_and_the_architect_tells_jen(start_server: Start) -> None:
    server = start_server(config=LOOP)
    http = Http(server.http)

    async def both() -> None:
        async with sockets(server.http) as ends:
            jen = await ends.subscribe("agents/Jen/inbox", "&credit=10")
            architect = await ends.subscribe("agents/architect/inbox", "&credit=10")
            log = envelope("log-1", type="sprint.log", **{"from": "agents/Jen/outbox"})
            http.post("/v1/enqueue", {"to": "sprints", "envelope": log})
            (notice,) = await architect.deliveries(1)
            assert notice["deliver"]["payload"] == {"title": "Jen posted", "ref": "log-1"}
            await architect.say({"ack": notice["deliver"]["id"]})
            answer = envelope("assign-1", {"wave": "B"}, type="sprint.assign", corr=notice["deliver"]["corr"])
            http.post("/v1/enqueue", {"to": "sprints", "envelope": {**answer, "from": "architect"}})
            (told,) = await jen.deliveries(1)
            assert told["deliver"]["payload"] == {"title": "Notification", "ref": "assign-1", "wave": "B"}
            assert told["deliver"]["corr"] == "log-1"
            await jen.nothing()
            await architect.nothing()

    run(both())
    counted = operator(server).get("/v1/triggers").json["triggers"]
    assert [one["counters"]["run"] for one in counted] == [1, 1]


@pytest.mark.promise("Triggers", "administrators change rules at run time, and the changes survive restarts")
def test_rules_are_given_shown_tried_and_taken_back_and_outlive_a_restart(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, config=LOOP)
    admin = operator(server)
    rule = {"id": "mine", "when": {"to": "in"}, "do": [{"action": "route", "to": "out"}]}
    assert admin.ask("PUT", "/v1/triggers/mine", rule).json == {"id": "mine", "created": True}
    assert admin.ask("PUT", "/v1/triggers/mine", rule).json["created"] is False
    off = {**rule, "id": "jen.log", "enabled": False}
    assert admin.ask("PUT", "/v1/triggers/jen.log", off).status == 200
    tried = admin.post("/v1/triggers/try", {"to": "in", "envelope": envelope("x")}).json["triggers"]
    assert [(one["id"], one["fits"]) for one in tried] == [
        ("jen.log", False),
        ("architect.answer", False),
        ("mine", True),
    ]
    server.kill()
    server = ServerProcess(tmp_path, config=LOOP)
    admin = operator(server)
    rows = {one["id"]: one for one in admin.get("/v1/triggers").json["triggers"]}
    assert {id_: (row["origin"], row["state"]) for id_, row in rows.items()} == {
        "jen.log": ("runtime", "disabled"),
        "architect.answer": ("config", "ready"),
        "mine": ("runtime", "ready"),
    }
    Http(server.http).enqueue("in", "e-1")
    assert admin.get("/v1/peek", stream="out").json["rows"][0]["env"]["id"] == "e-1"
    explained = admin.get("/v1/triggers/mine/explain").json
    assert explained["recent"][0]["sent"] == [{"to": "out", "id": "e-1"}]
    metrics = admin.get("/metrics").body.decode()
    assert 'penstock_trigger_run_total{trigger="mine"} 1.0' in metrics
    assert admin.ask("DELETE", "/v1/triggers/mine").json == {"id": "mine", "removed": True, "config": False}
    assert admin.ask("DELETE", "/v1/triggers/jen.log").json["config"] is True
    assert admin.get("/v1/triggers/jen.log").json["origin"] == "config"
    admin.post("/v1/journal/seal", {})
    server.stop()
    server = ServerProcess(tmp_path, config=LOOP)
    ids = [one["id"] for one in operator(server).get("/v1/triggers").json["triggers"]]
    assert ids == ["jen.log", "architect.answer"]
    server.stop()


def test_a_rule_given_at_run_time_is_in_the_live_file(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path)
    rule = {"id": "mine", "when": {"to": "in"}, "do": [{"action": "route", "to": "out"}]}
    operator(server).ask("PUT", "/v1/triggers/mine", rule)
    Http(server.http).enqueue("in", "e-1")
    operator(server).post("/v1/journal/seal", {})
    server.kill()
    server = ServerProcess(tmp_path)
    shown = operator(server).get("/v1/triggers/mine").json
    assert shown["rule"]["do"] == [{"action": "route", "to": "out", "mode": "copy"}]
    assert shown["origin"] == "runtime"
    server.stop()


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/v1/triggers/nope", None, 404, "UnknownTrigger"),
        ("GET", "/v1/triggers/nope/explain", None, 404, "UnknownTrigger"),
        ("DELETE", "/v1/triggers/nope", None, 404, "UnknownTrigger"),
        ("PUT", "/v1/triggers/a", {"id": "b", "when": {"to": "x"}, "do": [{"action": "route", "to": "y"}]}, 400, "InvalidRequest"),
        ("PUT", "/v1/triggers/a", {"id": "a", "when": {}, "do": [{"action": "route", "to": "y"}]}, 400, "InvalidRequest"),
        ("PUT", "/v1/triggers/a", {"id": "a", "when": {"to": "x"}, "do": [{"action": "run", "to": "y"}]}, 400, "InvalidRequest"),
        ("PUT", "/v1/triggers/a", {"id": "a", "when": {"too": "x"}, "do": []}, 400, "InvalidRequest"),
        ("POST", "/v1/triggers/a", {}, 405, "MethodNotAllowed"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(
    server: ServerProcess, method: str, path: str, body: Any, status: int, code: str
) -> None:
    answer = operator(server).ask(method, path, body)
    assert (answer.status, answer.code) == (status, code)
    assert operator(server).get("/v1/triggers/a").status == 404


@pytest.mark.promise("Triggers", "administrators change rules at run time, and the changes survive restarts")
def test_rules_need_the_operators_token(server: ServerProcess) -> None:
    http = Http(server.http)
    rule = {"id": "a", "when": {"to": "x"}, "do": [{"action": "route", "to": "y"}]}
    for answer in (
        http.get("/v1/triggers"),
        http.ask("PUT", "/v1/triggers/a", rule),
        http.ask("DELETE", "/v1/triggers/a"),
    ):
        assert (answer.status, answer.code) == (403, "Forbidden")


@pytest.mark.promise("Triggers", "an envelope and its triggered envelopes are one commit, even across crashes")
def test_after_kill_9_every_envelope_has_its_notice_and_only_one(tmp_path: Path) -> None:
    """Cause and effect are one commit: a crash leaves both or neither, and a producer that repeats itself makes no second one."""
    accepted: dict[str, None] = {}
    for life in range(4):
        server = ServerProcess(tmp_path, config=AUDIT)
        offered = [f"e-{life}-{n}" for n in range(400)]
        with connected(server.control) as line:
            repeated = list(accepted)[-50:]
            line.say(
                *[
                    {"type": "enqueue", "to": "jobs", "env": envelope(id_), "reqId": id_}
                    for id_ in [*repeated, *offered]
                ]
            )
            for _ in range(150):
                accepted[line.frame("ok")["result"]["id"]] = None
        server.kill()
    server = ServerProcess(tmp_path, config=AUDIT)
    streams = {one["id"]: one["q"]["q.in"] for one in Http(server.http).get("/v1/metrics").json["streams"]}
    server.stop()
    assert streams["jobs"] == streams["audit"] == streams["audit/second"] >= len(accepted)
    came: dict[str, list[str]] = {}
    reader = JournalReader(tmp_path / "penstock-data")
    for batch in reader.batches(0, reader.bounds().end, ["event", "channel", "id"]):
        for row in batch.to_pylist():
            if row["event"] == "enqueue":
                came.setdefault(row["channel"], []).append(row["id"])
    assert set(accepted) <= set(came["jobs"])
    assert came["audit"] == [f"trg-audit-0-{id_}" for id_ in came["jobs"]]
    assert came["audit/second"] == [f"trg-again-0-{id_}" for id_ in came["audit"]]
