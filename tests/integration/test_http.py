"""The HTTP routes of a real server: accepted requests."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.server.http.routes import ROUTES
from tests.integration.serving import (
    PATIENCE_S,
    Http,
    connected,
    encode,
    envelope,
    ids,
    read_answer,
    request_bytes,
    run,
    sockets,
    until,
)
from tests.server_process import ServerProcess

SEED_STATS = {"depth", "inflight", "rateIn", "rateOut", "latP50", "latP95", "lastTs"}


@pytest.fixture(scope="session")
def operator(server: ServerProcess) -> Http:
    return Http(server.http, (server.data / "run" / "operator.token").read_text().strip())


# Enqueue


@pytest.mark.promise("The document's testing strategy", "Unit: enqueue")
def test_enqueue_answers_id_and_number_from_1(http, stream):
    first = http.post("/v1/enqueue", {"to": stream, "envelope": envelope("a")})
    second = http.post("/v1/enqueue", {"to": stream, "envelope": envelope("b", to=stream)})
    assert (first.status, first.json) == (200, {"id": "a", "seq": 1})
    assert (second.status, second.json) == (200, {"id": "b", "seq": 2})
    assert first.headers["Content-Type"] == "application/json"


def test_an_array_is_numbered_in_its_order_and_names_its_duplicates(http, stream):
    many = [envelope(id_) for id_ in ("a", "b", "c")]
    answer = http.post("/v1/enqueue", {"to": stream, "envelopes": many})
    assert (answer.status, answer.json) == (200, {"ids": ["a", "b", "c"], "seqs": [1, 2, 3]})
    again = http.post("/v1/enqueue", {"to": stream, "envelopes": [many[1], envelope("d")]})
    assert again.json == {"ids": ["b", "d"], "seqs": [2, 4], "duplicates": ["b"]}


def test_an_array_goes_in_whole_or_not_at_all(http, stream):
    http.enqueue(stream, "a")
    wrong = [envelope("b"), envelope("c", version="one")]
    answer = http.post("/v1/enqueue", {"to": stream, "envelopes": wrong})
    assert (answer.status, answer.code) == (400, "InvalidEnvelope")
    assert answer.error["ref"] == "envelopes[1].version"
    conflict = http.post("/v1/enqueue", {"to": stream, "envelopes": [envelope("b"), envelope("a", "other")]})
    assert (conflict.status, conflict.code) == (409, "IdConflict")
    assert http.stats(stream)["depth"] == 1
    assert http.settle("b", "ack", stream=stream).code == "UnknownEnvelope"


def test_the_same_bytes_again_are_a_duplicate_and_others_a_conflict(http, stream):
    body = {"to": stream, "envelope": envelope("a", {"n": 1})}
    http.post("/v1/enqueue", body)
    assert http.post("/v1/enqueue", body).json == {"id": "a", "seq": 1, "duplicate": True}
    # Still so while it is leased, and after it was acked.
    http.pull(stream)
    assert http.post("/v1/enqueue", body).json == {"id": "a", "seq": 1, "duplicate": True}
    assert http.settle("a", "ack", stream=stream).status == 200
    assert http.post("/v1/enqueue", body).json == {"id": "a", "seq": 1, "duplicate": True}
    other = http.post("/v1/enqueue", {"to": stream, "envelope": envelope("a", {"n": 2})})
    assert (other.status, other.code, other.error["ref"]) == (409, "IdConflict", "a")
    stats = http.stats(stream)
    assert (stats["depth"], stats["inflight"]) == (0, 0)
    assert http.counters()[stream]["q.dup"] == 3


def test_an_id_belongs_to_its_stream(http, stream):
    assert http.enqueue(f"{stream}/one", "a") == [1]
    assert http.enqueue(f"{stream}/two", "a") == [1]
    places = http.get("/v1/envelopes/a").json["places"]
    assert {f"{stream}/one", f"{stream}/two"} <= {place["stream"] for place in places}


def test_the_bytes_of_an_envelope_are_kept(http, stream):
    raw = (
        b'{ "type" : "note","id":"a","ts":"2026-01-01T09:30:00.5+09:30","payload":{"b":1.0,"a":1e40,'
        b'"text":"\\u00e9\xc3\xa9","big":12345678901234567890123},"x-mine":[true],"to":%b}'
    ) % encode(stream)
    answer = http.post("/v1/enqueue", b'{"to":%b,"envelope":%b}' % (encode(stream), raw))
    assert answer.status == 200, answer
    taken = http.post("/v1/pull", {"stream": stream})
    assert raw in taken.body


def test_assign_id_fills_a_missing_id(http, stream):
    bare = {"ts": "2026-01-01T00:00:00Z", "type": "note", "payload": 1}
    assert http.post("/v1/enqueue", {"to": stream, "envelope": bare}).code == "InvalidEnvelope"
    answer = http.post("/v1/enqueue", {"to": stream, "envelope": bare, "assignId": True})
    assert answer.status == 200 and answer.json["id"]
    assert http.pull(stream)[0]["deliver"]["id"] == answer.json["id"]


@pytest.mark.parametrize("key", ["delayMs", "deliverAt"])
def test_a_scheduled_envelope_waits(http, stream, key):
    due = datetime.now(UTC) + timedelta(hours=1)
    when = {"delayMs": 3_600_000, "deliverAt": due.isoformat()}[key]
    answer = http.post("/v1/enqueue", {"to": stream, "envelope": envelope("a"), key: when})
    assert answer.status == 200, answer
    assert http.pull(stream) == []
    rows = http.get("/v1/peek", stream=stream, state="delayed").json["rows"]
    assert [row["state"] for row in rows] == ["delayed"]
    assert rows[0]["dueAt"] > time.time() * 1000 + 3_500_000
    assert http.counters()[stream]["q.delayed"] == 1


def test_a_delay_ends_by_itself(http, stream):
    http.enqueue(stream, "a", delayMs=200)
    assert http.pull(stream) == []
    assert ids(http.pull(stream, wait_ms=9_000)) == ["a"]


def test_null_is_a_payload(http, stream):
    assert http.post("/v1/enqueue", {"to": stream, "envelope": envelope("a", None)}).status == 200
    assert http.pull(stream)[0]["deliver"]["payload"] is None


# Send


def test_send_fills_what_a_person_leaves_out(http):
    answer = http.post("/v1/send", {"to": "sam", "type": "hello", "payload": {"n": 1}, "tags": ["x"]})
    assert answer.status == 200
    assert answer.json["to"] == "agents/sam/inbox" and answer.json["seq"] == 1
    assert answer.json["recipient"] == {"known": False, "present": False}
    again = http.post("/v1/send", {"to": "sam", "type": "hello", "payload": 2, "id": "mine", "from": "kim"})
    assert again.json["id"] == "mine" and again.json["recipient"] == {"known": True, "present": False}
    first, second = (one["deliver"] for one in http.pull("agents/sam/inbox", max=2))
    assert (first["to"], first["payload"], first["tags"]) == ("agents/sam/inbox", {"n": 1}, ["x"])
    assert first["id"] == answer.json["id"] and first["from"] and first["ts"].endswith("Z")
    assert (second["id"], second["from"]) == ("mine", "kim")


@pytest.mark.promise("Queue protocols", "`/v1/send`, `/v1/pull` and `/v1/settle` work")
def test_send_reports_whether_the_recipient_listens(http, server):
    async def go():
        async with sockets(server.http) as ways:
            socket_ = await ways.subscribe("agents/pat/inbox", "credit=1")
            answer = http.post("/v1/send", {"to": "pat", "type": "hello", "payload": 1})
            assert answer.json["recipient"] == {"known": True, "present": True}
            (delivery,) = await socket_.deliveries(1)
            assert delivery["deliver"]["id"] == answer.json["id"]

    run(go())


def test_send_to_a_path_uses_it_as_it_is(http, stream):
    assert http.post("/v1/send", {"to": stream, "type": "t", "payload": 0}).json["to"] == stream


# Pull and settle


def test_pull_takes_up_to_max_in_order(http, stream):
    http.enqueue(stream, "a", "b", "c")
    two = http.pull(stream, max=2, lease_ms=60_000)
    assert ids(two) == ["a", "b"]
    for number, delivery in enumerate(two, 1):
        assert set(delivery) == {"deliver", "stream", "seq", "attempt", "leaseId", "leaseExpiresAt"}
        assert (delivery["stream"], delivery["seq"], delivery["attempt"]) == (stream, number, 1)
        assert 50_000 < delivery["leaseExpiresAt"] - time.time() * 1000 <= 61_000
    assert ids(http.pull(stream, max=10)) == ["c"]
    assert http.pull(stream) == []


@pytest.mark.promise("The document's testing strategy", "Integration: HTTP and WebSocket flows")
@pytest.mark.promise("Queue protocols", "`/v1/send`, `/v1/pull` and `/v1/settle` work")
def test_a_waiting_pull_answers_when_something_arrives(http, stream):
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(http.pull, stream, wait_ms=9_000)
        until(lambda: http.get("/v1/stats", stream=stream).json.get("consumers"), "the pull waits")
        started = time.monotonic()
        http.enqueue(stream, "a")
        assert ids(waiting.result(PATIENCE_S)) == ["a"]
        assert time.monotonic() - started < 5


def test_a_pull_that_waits_in_vain_answers_empty(http, stream):
    started = time.monotonic()
    assert http.pull(stream, wait_ms=300) == []
    assert 0.25 < time.monotonic() - started < 5


def test_a_client_that_leaves_while_waiting_takes_nothing_with_it(http, server, stream):
    body = encode({"stream": stream, "wait_ms": 60_000})
    with connected(server.http.replace("http:", "tcp:")) as connection:
        connection.write(
            b"POST /v1/pull HTTP/1.1\r\nHost: %b\r\nContent-Length: %d\r\n\r\n%b"
            % (http.host.encode(), len(body), body)
        )
        until(lambda: http.get("/v1/stats", stream=stream).json.get("consumers"), "the pull waits")
    until(lambda: http.get("/v1/stats", stream=stream).json.get("consumers") == 0, "the pull is gone")
    http.enqueue(stream, "a")
    (delivery,) = http.pull(stream)
    assert delivery["attempt"] == 1


@pytest.mark.promise("Queue protocols", "`/v1/send`, `/v1/pull` and `/v1/settle` work")
def test_pulled_leases_outlive_the_connection(http, stream):
    http.enqueue(stream, "a")
    (delivery,) = http.pull(stream)  # its connection is closed by now
    assert http.stats(stream)["inflight"] == 1
    assert http.pull(stream) == []
    answer = http.settle("a", "ack", leaseId=delivery["leaseId"])
    assert answer.json == {"id": "a", "op": "ack", "settled": True}
    assert http.stats(stream)["inflight"] == 0


def test_nack_counts_and_release_does_not(http, stream):
    http.enqueue(stream, "a")
    for op in ("nack", "release"):
        (delivery,) = http.pull(stream)
        answer = http.settle("a", op, leaseId=delivery["leaseId"])
        assert (answer.status, answer.json) == (200, {"id": "a", "op": op, "settled": True})
    (delivery,) = http.pull(stream)
    assert delivery["attempt"] == 3
    counters = http.counters()[stream]
    assert (counters["q.nack"], counters["q.release"], counters["q.re"]) == (1, 1, 2)


def test_nack_with_a_delay_holds_it_back(http, stream):
    http.enqueue(stream, "a")
    http.pull(stream)
    assert http.settle("a", "nack", stream=stream, delayMs=250).status == 200
    assert http.pull(stream) == []
    (delivery,) = http.pull(stream, wait_ms=9_000)
    assert (delivery["deliver"]["id"], delivery["attempt"]) == ("a", 2)


@pytest.mark.promise("Delivery", "term sends an envelope to the dead letters")
@pytest.mark.parametrize(
    "settle", [{"op": "term", "reason": "broken"}, {"op": "nack", "requeue": False, "reason": "broken"}]
)
def test_term_sends_to_the_dead_letters_and_redrive_brings_back(http, stream, settle):
    original = envelope("a", {"keep": 1}, headers={"k": "v"})
    http.post("/v1/enqueue", {"to": stream, "envelope": original})
    http.pull(stream)
    assert http.post("/v1/settle", {"id": "a", "stream": stream, **settle}).status == 200
    (row,) = http.get("/v1/peek", stream=stream, state="dead").json["rows"]
    assert row["stream"] == f"dlq/{stream}"
    cause = row["env"]["headers"]["x-courier"]
    assert (cause["stream"], cause["attempts"], cause["lastError"]) == (stream, 1, "broken")
    answer = http.post("/v1/redrive", {"stream": stream})
    assert (answer.status, answer.json["moved"], answer.json["left"]) == (200, 1, 0)
    (delivery,) = http.pull(stream)
    assert delivery["deliver"] == {**original, "to": stream}
    counters = http.counters()
    assert counters[stream]["q.dead"] == 1 and counters[f"dlq/{stream}"]["q.moved"] == 1


def test_redrive_moves_no_more_than_max(http, stream):
    http.enqueue(stream, "a", "b", "c")
    for delivery in http.pull(stream, max=3):
        http.settle(delivery["deliver"]["id"], "term", leaseId=delivery["leaseId"])
    answer = http.post("/v1/redrive", {"stream": stream, "max": 2})
    assert (answer.json["moved"], answer.json["left"]) == (2, 1)
    assert ids(http.pull(stream, max=3)) == ["a", "b"]


def test_extend_moves_the_end_of_a_lease_from_now(http, stream):
    http.enqueue(stream, "a")
    (delivery,) = http.pull(stream, lease_ms=1_000)
    answer = http.settle("a", "extend", leaseId=delivery["leaseId"], ms=60_000)
    assert set(answer.json) == {"id", "op", "leaseExpiresAt"}
    assert answer.json["leaseExpiresAt"] > delivery["leaseExpiresAt"] + 50_000
    # The lease keeps its name, so the next settle needs no new one.
    assert http.settle("a", "ack", leaseId=delivery["leaseId"]).status == 200


@pytest.mark.promise("Delivery", "a settle that is too late answers 409 with a distinct code, an unknown id 404")
def test_every_way_to_settle_too_late_has_its_own_code(http, stream):
    a, b, c = (f"{stream}-{letter}" for letter in "abc")
    http.enqueue(stream, a, b, c)
    first, second = http.pull(stream, max=2)
    http.settle(a, "ack", leaseId=first["leaseId"])
    assert http.settle(a, "ack", leaseId=first["leaseId"]).code == "AlreadyAcked"
    assert http.settle(a, "ack", stream=stream).code == "AlreadyAcked"
    http.settle(b, "release", leaseId=second["leaseId"])
    assert http.settle(b, "ack", leaseId=second["leaseId"]).code == "LeaseExpired"
    assert http.settle(b, "ack", stream=stream).code == "LeaseExpired"
    assert http.settle(c, "ack", stream=stream).code == "NotLeaseHolder"
    unknown = http.settle("never", "ack", stream=stream)
    assert (unknown.status, unknown.code, unknown.error["ref"]) == (404, "UnknownEnvelope", "never")
    assert http.settle(a, "ack", stream=f"{stream}/absent").code == "UnknownStream"
    # A lease that has been given to the next one is not settled by the last one's name.
    (again,) = http.pull(stream)
    assert again["deliver"]["id"] == b
    late = http.settle(b, "ack", leaseId=second["leaseId"])
    assert (late.status, late.code) == (409, "LeaseExpired")
    assert http.settle(b, "ack", leaseId=again["leaseId"]).status == 200


def test_a_late_settle_is_not_answered_from_another_stream(http, stream):
    id_ = f"{stream}-a"
    for name in (stream, f"{stream}/other"):
        http.enqueue(name, id_)
    (mine,) = http.pull(stream)
    (other,) = http.pull(f"{stream}/other")
    http.settle(id_, "ack", leaseId=other["leaseId"])
    http.settle(id_, "release", leaseId=mine["leaseId"])
    assert http.settle(id_, "ack", leaseId=mine["leaseId"]).code == "LeaseExpired"
    late = http.settle(id_, "ack", leaseId=other["leaseId"], stream=f"{stream}/other")
    assert late.code == "AlreadyAcked"


# Looking


def test_stats_and_metrics_have_the_figures_of_the_document(http, stream):
    http.enqueue(stream, "a", "b")
    http.pull(stream)
    stats = http.stats(stream)
    assert set(stats) >= SEED_STATS
    assert (stats["depth"], stats["inflight"]) == (1, 1)
    assert stats["lastTs"].endswith("Z") and stats["latP95"] < 60_000
    body = http.get("/v1/metrics").json
    assert list(body) == ["streams"]
    assert all(
        {"q.in", "q.lat.p50", "q.lat.p95", "q.lat.p99", "q.oldestMs"} <= set(one["q"]) for one in body["streams"]
    )
    (row,) = [row for row in body["streams"] if row["id"] == stream]
    assert set(row) == {"id", "stats", "q"} and set(row["stats"]) >= SEED_STATS
    assert (row["q"]["q.in"], row["q"]["q.out"], row["q"]["q.depth"], row["q"]["q.if"]) == (2, 1, 1, 1)


@pytest.mark.promise("Queue protocols", "`/v1/peek`, `/v1/envelopes` and explain report the state")
def test_peek_takes_nothing(http, stream):
    http.enqueue(stream, *"abcdefghijkl")
    rows = http.get("/v1/peek", stream=stream).json["rows"]
    assert [row["env"]["id"] for row in rows] == list("abcdefghij")
    assert all((row["state"], row["attempt"]) == ("ready", 0) for row in rows)
    assert len(http.get("/v1/peek", stream=stream, max=3).json["rows"]) == 3
    assert http.stats(stream)["depth"] == 12
    http.pull(stream, max=2)
    rows = http.get("/v1/peek", stream=stream, state="inflight").json["rows"]
    assert [(row["env"]["id"], row["attempt"]) for row in rows] == [("a", 1), ("b", 1)]
    assert all(row["holder"] and row["leaseExpiresAt"] for row in rows)


@pytest.mark.promise("Queue protocols", "`/v1/peek`, `/v1/envelopes` and explain report the state")
def test_where_follows_an_envelope(http, stream):
    id_ = f"{stream}/é ?#"
    http.enqueue(stream, id_)

    def places():
        path = "/v1/envelopes/" + "".join(f"%{byte:02X}" for byte in id_.encode())
        return [(row["stream"], row["state"]) for row in http.get(path).json["places"]]

    assert places() == [(stream, "ready")]
    http.pull(stream)
    assert places() == [(stream, "inflight")]
    http.settle(id_, "nack", stream=stream, delayMs=600_000)
    assert places() == [(stream, "delayed")]


def test_where_tells_how_an_envelope_ended(http, stream):
    id_ = f"{stream}-done"
    http.enqueue(stream, id_)
    http.pull(stream)
    http.settle(id_, "ack", stream=stream)
    (place,) = http.get(f"/v1/envelopes/{id_}").json["places"]
    assert (place["state"], place["seq"], place["outcome"]) == ("settled", 1, "acked")


@pytest.mark.promise("Queue protocols", "`/v1/peek`, `/v1/envelopes` and explain report the state")
def test_explain_says_why_nothing_flows(http, stream):
    def reasons():
        body = http.get(f"/v1/streams/{stream}/explain").json
        assert body["stream"] == stream and body["flowing"] is False
        assert all(reason["message"] for reason in body["reasons"])
        return [reason["code"] for reason in body["reasons"]]

    http.enqueue(stream, "a")
    assert reasons() == ["no_consumer"]
    http.pull(stream)
    assert reasons() == ["all_leased"]
    http.settle("a", "nack", stream=stream, delayMs=600_000)
    assert "delayed" in reasons()


@pytest.mark.promise("Security", "operator routes need the operator token, and only its owner can read it")
def test_purge_needs_the_operator_and_drops_what_waits(http, operator, stream):
    http.enqueue(stream, "a", "b")
    http.enqueue(stream, "c", delayMs=600_000)
    http.pull(stream)
    refused = http.post("/v1/purge", {"stream": stream})
    assert (refused.status, refused.code) == (403, "Forbidden")
    answer = operator.post("/v1/purge", {"stream": stream})
    assert (answer.status, answer.json) == (200, {"purged": 2})
    http.enqueue(stream, "again")
    key = {"Idempotency-Key": f"purge-{stream}"}
    twice = [operator.post("/v1/purge", {"stream": stream}, key) for _ in range(2)]
    assert [(one.status, one.json) for one in twice] == [(200, {"purged": 1})] * 2
    stats = http.stats(stream)
    assert (stats["depth"], stats["delayed"], stats["inflight"]) == (0, 0, 1)


@pytest.mark.promise("Streams", "enqueue and subscribe create a stream, a read never does")
def test_a_look_never_makes_a_stream(http, operator, stream):
    looks = [
        http.get("/v1/stats", stream=stream),
        http.get("/v1/peek", stream=stream),
        http.get("/v1/peek", stream=stream, state="dead"),
        http.get(f"/v1/streams/{stream}/explain"),
        http.post("/v1/redrive", {"stream": stream}),
        operator.post("/v1/purge", {"stream": stream}),
        http.settle("a", "ack", stream=stream),
    ]
    assert [(look.status, look.code) for look in looks] == [(404, "UnknownStream")] * len(looks)
    assert not [name for name in http.counters() if stream in name]
    assert http.enqueue(stream, "a") == [1]


@pytest.mark.promise("Queue protocols", "`/health` reports the server's health")
def test_health_and_welcome(http):
    answer = http.get("/health")
    body = answer.json
    about = {"ok", "status", "version", "bootId", "features", "spaces", "clients", "uptime", "journal", "lake"}
    assert set(body) == about | {"parts"}
    assert (answer.status, body["ok"], body["status"]) == (200, True, "ok")
    assert {"courier", "control", "credit", "views", "live", "triggers", "partition"} <= set(body["features"])
    assert body["bootId"] == http.get("/health").json["bootId"] and body["uptime"] > 0
    welcome = http.get("/", {"Accept": "text/plain"})
    assert welcome.status == 200 and http.url.encode() in welcome.body


@pytest.mark.promise("Invariants", "2: the counters balance")
def test_the_counters_balance_in_the_text_for_prometheus(http, operator, stream):
    http.enqueue(stream, *"abcdefgh")
    http.enqueue(stream, "i", delayMs=600_000)
    http.enqueue(stream, "a")
    for id_, op in zip("abcd", ("ack", "nack", "term", "release"), strict=True):
        (delivery,) = http.pull(stream)
        assert delivery["deliver"]["id"] == id_
        http.settle(id_, op, leaseId=delivery["leaseId"])
    http.pull(stream, max=2)
    answer = http.get("/metrics", streams=1)
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    values: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(answer.body.decode()):
        for sample in family.samples:
            if sample.name.startswith("penstock_q_") and "quantile" not in sample.labels:
                name = sample.name.removeprefix("penstock_q_").removesuffix("_total")
                values.setdefault(sample.labels["stream"], {})[name] = sample.value
    assert {stream, f"dlq/{stream}"} <= set(values)
    for label, q in values.items():
        gone = q["ack"] + q["dead"] + q["drop"] + q["purged"] + q["moved"]
        assert q["in"] == gone + q["depth"] + q["if"] + q["delayed"], (label, q)
    own = values[stream]
    assert (own["in"], own["ack"], own["dead"], own["if"], own["delayed"]) == (9, 1, 1, 2, 1)
    assert (own["dup"], own["nack"], own["release"]) == (1, 1, 1)


# The protocol itself


def test_head_is_get_without_the_body(http):
    for path in ("/health", "/v1/metrics", "/openapi.json"):
        head, get = http.ask("HEAD", path), http.get(path)
        assert (head.status, head.body) == (200, b"") and get.body
        assert head.headers["Content-Type"] == get.headers["Content-Type"]


PATHS = {path: {route.method for route in ROUTES if route.path == path} for path in {route.path for route in ROUTES}}
PATHS["/v1/triggers/try"] |= PATHS["/v1/triggers/{rule}"]


@pytest.mark.parametrize("path", sorted(PATHS))
def test_a_wrong_method_names_the_right_ones(http, path):
    taken = PATHS[path] | ({"HEAD"} if "GET" in PATHS[path] else set())
    right = ", ".join(method for method in ("GET", "HEAD", "POST", "PUT", "DELETE") if method in taken)
    for method in {"GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"} - taken:
        answer = http.ask(method, path.replace("{", "").replace("}", ""))
        assert (answer.status, answer.code, answer.headers["Allow"]) == (405, "MethodNotAllowed", right)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("/v1/enqeue", "/v1/enqueue"), ("/v1/stat", "/v1/stats"), ("/healthz", "/health")],
)
def test_an_unknown_path_gets_the_nearest_as_a_hint(http, wrong, right):
    answer = http.get(wrong)
    assert (answer.status, answer.code) == (404, "UnknownRoute")
    assert f"`{right}`" in answer.error["hint"]


def test_requests_of_one_connection_are_answered_in_order(http, server, stream):
    bodies = [encode({"to": stream, "envelope": envelope(str(n))}) for n in range(20)]
    with connected(server.http.replace("http:", "tcp:")) as connection:
        connection.write(
            b"".join(
                b"POST /v1/enqueue HTTP/1.1\r\nHost: %b\r\nContent-Length: %d\r\n\r\n%b"
                % (http.host.encode(), len(body), body)
                for body in bodies
            )
        )
        received = b""
        while received.count(b'"seq"') < len(bodies):
            received += connection.socket.recv(65_536)
    seqs = [int(part.split(b"}")[0]) for part in received.split(b'"seq":')[1:]]
    assert seqs == list(range(1, 21))


def test_a_chunked_body_in_pieces_is_read_whole(http, server, stream):
    body = encode({"to": stream, "envelope": envelope("a", "x" * 100)})
    cuts = [body[start : start + 7] for start in range(0, len(body), 7)]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(cut), cut) for cut in cuts) + b"0\r\n\r\n"
    head = b"POST /v1/enqueue HTTP/1.1\r\nHost: %b\r\nTransfer-Encoding: chunked\r\n\r\n" % http.host.encode()
    assert request_bytes(server.http, head + chunks).json == {"id": "a", "seq": 1}


def test_many_at_once_are_all_numbered_once(http, stream):
    def put(number: int) -> list[int]:
        return [http.enqueue(stream, f"{number}-{n}")[0] for n in range(20)]

    with ThreadPoolExecutor(8) as pool:
        seqs = [seq for part in pool.map(put, range(8)) for seq in part]
    assert sorted(seqs) == list(range(1, 161))


def test_expect_100_continue_is_honoured(http, server, stream):
    body = encode({"to": stream, "envelope": envelope("a")})
    with connected(server.http.replace("http:", "tcp:")) as connection:
        connection.write(
            b"POST /v1/enqueue HTTP/1.1\r\nHost: %b\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
            % (http.host.encode(), len(body))
        )
        assert connection.line() == b"HTTP/1.1 100 Continue\r" and connection.line() == b"\r"
        connection.write(body)
        assert read_answer(connection).json == {"id": "a", "seq": 1}
