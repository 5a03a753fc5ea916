"""One server with schemas, a skill and an event log, from outside: rejections, answers, counts and events."""

from __future__ import annotations

import subprocess

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.serving import Http, connected, envelope, until
from tests.server_process import ServerProcess

CONFIG = """
schemas: {dir: schemas}
streams:
  perStreamCaps:
    strict/*: {schemaMode: enforce}
    lenient/*: {schemaMode: warn}
skills: {git: {root: repos}}
logs: {events: events.jsonl}
auth:
  tokens:
    - {token: all-5c1d, scopes: ["admin:*"]}
    - {token: some-5c1d, scopes: ["streams:lenient/*:*"]}
"""
TASK = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("seeing")
    (folder / "schemas/xeno").mkdir(parents=True)
    (folder / "schemas/xeno/task@v1.json").write_bytes(msgspec.json.encode(TASK))
    (folder / "repos/one").mkdir(parents=True)
    for words in (["init", "-q", "-b", "main"], ["commit", "-q", "--allow-empty", "-m", "x"]):
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
        subprocess.run(command, cwd=folder / "repos/one", check=True)
    server = ServerProcess(folder, config=CONFIG)
    yield server
    server.stop()


@pytest.fixture
def http(place):
    return Http(place.http, "all-5c1d")


def events(place):
    lines = (place.folder / "events.jsonl").read_bytes().splitlines(keepends=True)
    return [msgspec.json.decode(line) for line in lines if line.endswith(b"\n")]


def metrics(http, **query):
    answer = http.get("/metrics", **query)
    assert answer.status == 200
    families = text_string_to_metric_families(answer.body.decode())
    return [sample for family in families for sample in family.samples]


def value(http, name):
    (sample,) = [sample for sample in metrics(http) if sample.name == name]
    assert sample.labels == {}
    return sample.value


@pytest.mark.promise(
    "Schemas, skills and observability", "`schemaMode: off`, `warn` and `enforce` apply to every protocol"
)
def test_a_payload_that_does_not_fit_is_refused_and_named(http):
    refused = value(http, "penstock_schema_refused_total")
    bad = {**envelope("a", {"n": "x"}), "schema": "xeno/task@v1"}
    answer = http.post("/v1/enqueue", {"to": "strict/a", "envelope": bad})
    assert (answer.status, answer.code, answer.error["ref"]) == (422, "SchemaMismatch", "payload.n")
    answer = http.post("/v1/enqueue", {"to": "strict/a", "envelope": {**bad, "schema": "xeno/task@v2"}})
    assert (answer.status, answer.code) == (422, "UnknownSchema")
    assert "strict/a" not in http.counters()
    assert value(http, "penstock_schema_refused_total") == refused + 2
    good = {"to": "strict/a", "type": "note", "payload": {"n": 1}, "schema": "xeno/task@v1"}
    assert http.post("/v1/send", good).status == 200
    assert http.post("/v1/send", {**good, "schema": None}).code == "UnknownSchema"


def test_a_warning_is_counted_and_logged_without_the_payload(place, http):
    warned = value(http, "penstock_schema_warned_total")
    bad = {**envelope("w", {"n": "hush-hush"}), "schema": "xeno/task@v1"}
    assert http.post("/v1/enqueue", {"to": "lenient/a", "envelope": bad}).status == 200
    assert value(http, "penstock_schema_warned_total") == warned + 1
    until(lambda: "schema.misfit" in place.log())
    assert "hush-hush" not in place.log()
    assert "hush-hush" not in (place.folder / "events.jsonl").read_text()


@pytest.mark.promise(
    "Schemas, skills and observability",
    "`schema.validate`, `/v1/schemas` and `penstock schema` validate envelopes",
)
def test_schemas_can_be_asked_for(place, http):
    assert http.get("/v1/schemas").json == {"schemas": [{"name": "xeno/task", "versions": ["v1"]}]}
    for payload, ok in (({"n": 1}, True), ({}, False)):
        body = {"envelope": {"schema": "xeno/task@v1", "payload": payload}}
        answer = http.post("/v1/schemas/validate", body)
        assert (answer.status, answer.json["ok"], answer.json["against"]) == (200, ok, "xeno/task@v1")
    assert http.post("/v1/schemas/validate", {"envelope": {"payload": 1, "schema": 1}}).code == "InvalidEnvelope"
    assert Http(place.http).get("/v1/schemas").status == 401


def test_a_diff_is_answered_over_the_wire(place, http):
    body = {**envelope("ask", {"repo": "one", "base": "HEAD"}), "type": "git.diff.request", "from": "jen"}
    assert http.post("/v1/enqueue", {"to": "skills/git.diff", "envelope": body}).status == 200
    (delivery,) = http.pull("agents/jen/inbox", wait_ms=10_000)
    answer = delivery["deliver"]
    assert (answer["type"], answer["corr"], answer["payload"]["ok"]) == ("git.diff.result", "ask", True)
    assert http.settle(answer["id"], "ack", leaseId=delivery["leaseId"]).status == 200
    until(lambda: http.stats("skills/git.diff")["inflight"] == 0)


def test_the_event_log_tells_what_happened(place, http):
    with connected(place.control) as peer:
        peer.say({"type": "hello", "token": "all-5c1d"})
        peer.frame("ok")
        peer.say({"type": "subscribe", "stream": "told/a", "credit": 1})
        http.enqueue("told/a", "story")
        peer.frame("deliver")
        peer.say({"type": "ack", "id": "story", "reqId": 1})
        peer.frame("ok")

    def told():
        found = events(place)
        (opened,) = [e["link"] for e in found if e["event"] == "deliver" and e["id"] == "story"] or [None]
        mine = [e for e in found if e.get("id") == "story" or (opened and e.get("link") == opened)]
        return mine if any(e["event"] == "conn.close" for e in mine) else None

    found = until(told)
    assert sorted(e["event"] for e in found) == ["ack", "conn.close", "conn.open", "deliver", "enqueue"]
    by_name = {e["event"]: e for e in found}
    assert by_name["deliver"]["durMs"] >= 0 and by_name["ack"]["durMs"] >= 0
    assert (by_name["conn.close"]["delivered"], by_name["conn.close"]["settled"]) == (1, 1)
    assert "5c1d" not in (place.folder / "events.jsonl").read_text()


@pytest.mark.promise(
    "Schemas, skills and observability",
    "Prometheus metrics are sums by default, labelled on request, and no counter decreases",
)
def test_sums_are_the_default_and_streams_have_labels_where_asked(place, http):
    http.enqueue("lenient/sums", *"abc")
    streams = [s for s in metrics(http, streams=1) if s.name == "penstock_q_in_total"]
    assert sum(s.value for s in streams) == value(http, "penstock_q_in_total")
    assert "lenient/sums" in {s.labels["stream"] for s in streams}
    assert all("stream" not in sample.labels for sample in metrics(http))
    some = Http(place.http, "some-5c1d")
    own = [s for s in streams if s.labels["stream"].startswith("lenient/")]
    assert value(some, "penstock_q_in_total") == sum(s.value for s in own)
    q = {s.name.removeprefix("penstock_q_").removesuffix("_total"): s.value for s in metrics(http)}
    gone = q["ack"] + q["dead"] + q["drop"] + q["purged"] + q["moved"]
    assert q["in"] == gone + q["depth"] + q["if"] + q["delayed"]
    assert http.get("/metrics", streams="perhaps").status == 400
