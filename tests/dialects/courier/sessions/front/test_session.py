"""A client in front of several cells: each line reaches its cell, and the client notices no difference."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.limits import Limits
from penstock.core.scopes import Principal, require
from penstock.dialects.courier.sessions.front.lines import shard_of_stream
from tests.simulation.cells.world import CellsWorld

A, B, C = "jobs/a", "jobs/b", "{red}/c"
TS = "2026-01-01T00:00:00Z"
OPERATOR = Principal("operator", scopes=require(["admin:*"]), operator=True)


def env(id_: str, **fields: Any) -> dict[str, Any]:
    return {"id": id_, "ts": TS, "type": "t", "payload": None, **fields}


def test_the_streams_of_these_tests_are_on_different_shards() -> None:
    assert len({shard_of_stream(name) for name in (A, B, C)}) == 3


@pytest.mark.promise("Cells", "a connection that uses several cells gets its answers in the order of its requests")
def test_answers_come_in_request_order_although_one_cell_is_slow() -> None:
    world = CellsWorld(leg_latency_us=500)
    client = world.connect()
    world.journals.all[shard_of_stream(A)].mood = "slow"
    for number in range(6):
        client.request("enqueue", to=(A, B, C)[number % 3], env=env(f"e{number}"))
        client.request("ping")
    world.advance(ms=15)
    assert client.answers == {}
    world.advance(ms=5_000)
    assert [line["reqId"] for line in client.lines] == list(range(1, 13))


def test_an_unordered_client_gets_each_answer_as_it_comes() -> None:
    world = CellsWorld(leg_latency_us=500)
    client = world.connect()
    world.journals.all[shard_of_stream(A)].mood = "slow"
    client.send_line({"type": "hello", "unordered": True})
    client.send_line({"type": "enqueue", "to": A, "env": env("e1"), "reqId": "slow"})
    client.send_line({"type": "enqueue", "to": B, "env": env("e2"), "reqId": "fast"})
    client.send_line({"type": "metrics", "reqId": "metrics"})
    world.advance(ms=15)
    assert [line["reqId"] for line in client.lines] == ["hello", "fast"]
    world.advance(ms=5_000)
    assert [line["reqId"] for line in client.lines[2:]] == ["slow", "metrics"]
    assert {row["id"] for row in client.lines[-1]["result"]["streams"]} == {A, B}


def test_a_delivery_waits_for_no_answer() -> None:
    world = CellsWorld()
    client = world.connect()
    client.request("enqueue", to=B, env=env("e1"))
    world.advance(ms=50)
    world.journals.all[shard_of_stream(A)].mood = "slow"
    slow = client.request("enqueue", to=A, env=env("e2"))
    client.request("subscribe", stream=B, credit=1)
    world.advance(ms=15)
    assert slow not in client.answers
    assert [line["env"]["id"] for line in client.deliveries] == ["e1"]


def test_a_read_sees_what_was_enqueued_before_it_at_every_cell() -> None:
    world = CellsWorld(leg_latency_us=300)
    client = world.connect()
    for name in (A, B, C):
        client.request("enqueue", to=name, env=env("same"))
    where, metrics = client.request("where", id="same"), client.request("metrics")
    gone = client.request("where", id="never")
    world.advance(ms=200)
    assert {place["stream"] for place in client.answers[where]["result"]["places"]} == {A, B, C}
    rows = client.answers[metrics]["result"]["streams"]
    assert {row["id"]: row["q"]["q.in"] for row in rows} == dict.fromkeys((A, B, C), 1)
    assert client.answers[gone]["code"] == "UnknownEnvelope"


def test_snapshots_have_the_rows_of_all_cells() -> None:
    world = CellsWorld()
    client = world.connect()
    agents = [f"agents/n{number}/inbox" for number in range(5)]
    for name in agents:
        client.request("send", to=name, kind="note", payload=1)
    asked = client.request("snapshot", view="latestPerAgent")
    world.advance(ms=200)
    result = client.answers[asked]["result"]
    assert sorted(row["addr"] for row in result["rows"]) == agents
    assert result["watermark"] >= 5


@pytest.mark.parametrize("latency_us", [0, 500])
def test_a_client_without_labels_settles_at_the_cell_that_holds_the_envelope(latency_us: int) -> None:
    world = CellsWorld(leg_latency_us=latency_us)
    client = world.connect()
    for name in (A, B):
        client.send_line({"type": "subscribe", "stream": name}, {"type": "grant", "n": 2})
    for name, id_ in ((A, "a1"), (B, "b1"), (A, "twice"), (B, "twice")):
        client.request("enqueue", to=name, env=env(id_))
    world.advance(ms=200)
    assert len(client.deliveries) == 4
    first = client.request("ack", id=["b1", "twice"])
    world.advance(ms=100)
    assert client.answers[first]["result"] == {"id": ["b1", "twice"]}
    held = {name: world.machine_of(name).leased for name in (A, B)}
    assert held == {A: 1, B: 1}, "the same id at another cell is still held"
    second, third = client.request("ack", id="twice"), client.request("ack", id=["a1", "other"])
    world.advance(ms=100)
    assert client.answers[second]["type"] == "ok"
    assert (client.answers[third]["code"], client.answers[third]["ref"]) == ("UnknownEnvelope", "other")
    again = client.request("nack", id="b1")
    world.advance(ms=100)
    assert client.answers[again]["code"] == "AlreadyAcked"
    assert all(world.machine_of(name).live == 0 for name in (A, B))


def test_labels_are_unique_over_all_cells() -> None:
    world = CellsWorld()
    client = world.connect()
    mine = client.request("subscribe", stream=A, subId="mine")
    again = client.request("subscribe", stream=B, subId="mine")
    grant = client.request("grant", n=1)
    automatic = [client.request("subscribe", stream=name) for name in (A, B)]
    world.advance(ms=50)
    assert client.answers[mine]["result"] == {"subId": "mine"}
    assert client.answers[again]["code"] == "InvalidRequest"
    assert client.answers[grant]["detail"] == "subscribe first", "it meant the subscribe that was refused"
    labels = [client.answers[each]["result"]["subId"] for each in automatic]
    assert len(set(labels)) == 2
    grants = [client.request("grant", n=1, subId=label) for label in labels]
    client.request("enqueue", to=B, env=env("b1"))
    ended = client.request("unsubscribe", subId="mine")
    once_more = client.request("subscribe", stream=B, subId="mine")
    world.advance(ms=50)
    assert [client.answers[each]["result"] for each in grants] == [{"credit": 1}] * 2
    assert client.deliveries[0]["subId"] == labels[1]
    assert [client.answers[each]["type"] for each in (ended, once_more)] == ["ok", "ok"]


def test_a_label_of_a_refused_subscription_is_free_again() -> None:
    world = CellsWorld()
    client = world.connect()
    refused = client.request("subscribe", stream=A, subId="mine", batch=0)
    world.advance(ms=50)
    assert client.answers[refused]["ref"] == "batch"
    again = client.request("subscribe", stream=B, subId="mine")
    world.advance(ms=50)
    assert client.answers[again]["type"] == "ok"


def test_a_lease_id_names_its_cell() -> None:
    world = CellsWorld()
    client, other = world.connect("one"), world.connect("two")
    client.request("enqueue", to=C, env=env("c1"))
    pulled = client.request("pull", stream=C)
    world.advance(ms=50)
    lease = client.answers[pulled]["result"]["deliveries"][0]["leaseId"]
    done = other.request("settle", id="c1", op="ack", leaseId=lease)
    odd = [other.request("settle", id="c1", op="ack", leaseId=text) for text in ("-", "x-zz", "x-ff", "-1", "")]
    world.advance(ms=50)
    assert other.answers[done]["result"]["settled"] is True
    assert {other.answers[each]["code"] for each in odd} <= {"UnknownEnvelope", "AlreadyAcked", "LeaseExpired"}


def test_what_cannot_be_read_is_refused_as_without_a_front() -> None:
    world = CellsWorld(limits=Limits(strikes_max=2, frame_max=1_000))
    client = world.connect()
    client.send_line(b'{"type":"enqueue","reqId":7,"env":{}}', b'{"type":"dance","reqId":8}')
    client.send_line(b'{"type":"enqueue","reqId":9,"to":"jobs/a","env":"' + b"x" * 2_000 + b'"}')
    client.send_line(b"{", b"{", b"{")
    world.advance(ms=50)
    codes = [line["code"] for line in client.lines]
    assert codes == ["InvalidRequest", "UnknownOp", "TooLarge", "InvalidJSON", "InvalidJSON", "InvalidJSON"]
    assert client.closed is not None and client.closed[0] == 1007


@pytest.mark.promise(
    "Cells", "a lost cell ends the connections that use it, and no answer is matched with a wrong request"
)
def test_after_a_lost_cell_no_later_answer_is_given() -> None:
    world = CellsWorld(leg_latency_us=500)
    client = world.connect()
    world.journals.all[shard_of_stream(A)].mood = "slow"
    before = client.request("enqueue", to=B, env=env("b0"))
    client.request("enqueue", to=A, env=env("a1"))
    client.request("enqueue", to=B, env=env("b1"))
    world.advance(ms=15)
    assert set(client.answers) == {before}
    world.crash_cell(shard_of_stream(A))
    world.advance(ms=50)
    assert client.closed == (1012, "the cell of a stream was restarted")
    assert set(client.answers) == {before}
    assert world.machine_of(B).live == 2, "the envelope is there: a retry with the same id finds it"


def test_leases_return_when_the_client_leaves() -> None:
    world = CellsWorld(leg_latency_us=500)
    client = world.connect()
    for name in (A, B):
        client.request("subscribe", stream=name, credit=1)
        client.request("enqueue", to=name, env=env(name))
    world.advance(ms=100)
    assert [world.machine_of(name).leased for name in (A, B)] == [1, 1]
    client.pipe.cut()
    world.advance(ms=100)
    assert [world.machine_of(name).leased for name in (A, B)] == [0, 0]
    assert all(not machine.links for machine in world.machines())


@pytest.mark.promise("Cells", "a client that does not read pauses its deliveries at every cell")
@pytest.mark.parametrize("latency_us", [0, 500])
def test_a_client_that_does_not_read_is_given_no_more(latency_us: int) -> None:
    world = CellsWorld(limits=Limits(outbox_max=100_000), leg_latency_us=latency_us)
    client, producer = world.connect(), world.connect()
    for name in (A, B):
        client.request("subscribe", stream=name, credit=1_000)
    world.advance(ms=50)
    client.pipe.pause()
    for number in range(400):
        producer.request("enqueue", to=(A, B)[number % 2], env=env(f"e{number}", payload="x" * 2_000))
        if number % 20 == 0:
            world.advance(ms=20)
    world.advance(ms=500)
    leased = sum(world.machine_of(name).leased for name in (A, B))
    assert 0 < leased < 200, "of 800,000 bytes only what the outboxes have room for is handed over"
    client.pipe.resume()
    world.advance(ms=2_000)
    assert len(client.deliveries) == 400


def test_a_cell_that_is_behind_holds_the_client() -> None:
    world = CellsWorld(limits=Limits(undecided_max=5))
    client = world.connect()
    world.journals.all[shard_of_stream(A)].mood = "slow"
    for number in range(60):
        client.request("enqueue", to=A, env=env(f"e{number}", payload="x" * 500))
    world.advance(ms=19)
    machine = world.machine_of(A)
    assert machine.commit_log.undecided < 60, "the rest is not read"
    world.journals.all[shard_of_stream(A)].mood = "well"
    world.advance(ms=20_000)
    assert len(client.answers) == 60


def test_rights_that_change_reach_the_cells() -> None:
    world = CellsWorld()
    client = world.connect(principal=OPERATOR)
    client.request("subscribe", stream=A, credit=1)
    world.advance(ms=50)
    session = client.pipe.endpoint.session  # type: ignore[union-attr]
    session.link.principal = Principal("less", scopes=require([f"streams:{B}:*"]))
    session.identified_as()
    world.advance(ms=50)
    assert client.lines[-1]["code"] == "Forbidden"
    assert client.closed is not None and client.closed[0] == 1008


def test_triggers_are_listed_once_with_the_sums_of_all_cells() -> None:
    world = CellsWorld()
    client = world.connect(principal=OPERATOR)
    rule = {"id": "r1", "when": {"to": C}, "do": [{"action": "notify", "to": "{red}/n"}]}
    put = client.request("trigger", op="put", rule=rule)
    client.request("enqueue", to=C, env=env("a1"))
    world.advance(ms=100)
    listed, shown = client.request("trigger"), client.request("trigger", op="explain", id="r1")
    tried = client.request("trigger", op="try", to=C, env=env("a2"))
    removed, unknown = client.request("trigger", op="remove", id="r1"), client.request("trigger", op="show", id="r1")
    world.advance(ms=200)
    assert client.answers[put]["result"] == {"id": "r1", "created": True}
    (row,) = client.answers[listed]["result"]["triggers"]
    assert row["counters"]["run"] == 1
    assert client.answers[shown]["result"]["counters"]["run"] == 1
    assert client.answers[tried]["result"]["triggers"][0]["fits"] is True
    assert client.answers[removed]["result"]["removed"] is True
    assert client.answers[unknown]["code"] == "UnknownTrigger"


def test_a_cell_takes_no_stream_of_another() -> None:
    world = CellsWorld()
    machine = world.machine_of(A)
    refused = machine.open_channel(B)
    assert getattr(refused, "code", "") == "CrossShard"


def test_views_are_followed_at_the_front() -> None:
    world = CellsWorld()
    world.machine.views.is_copy = True
    client = world.connect()
    client.request("subscribe", stream=A, subId="mine")
    taken = client.request("live", view="inflight", subId="mine")
    followed = client.request("live", view="inflight", subId="v", since=7)
    again = client.request("subscribe", stream=B, subId="v")
    world.advance(ms=50)
    assert [client.answers[each]["ref"] for each in (taken, again)] == ["subId", "subId"]
    assert client.answers[followed]["result"] == {"subId": "v"}
    assert [line["snapshot"]["rows"] for line in client.lines if line["type"] == "live"] == [[]]
    world.machine.views.inflight.put("jobs/a#1", A, b"{}")
    world.runtime.live.changed(world.clock.now())
    world.advance(ms=500)
    assert client.lines[-1]["delta"]["addr"] == "jobs/a#1"
    ended = client.request("unsubscribe", subId="v")
    world.advance(ms=50)
    assert client.answers[ended]["result"] == {"subId": "v"}


def test_a_cell_that_closes_its_leg_does_not_disturb_the_answers_of_others() -> None:
    world = CellsWorld()
    client, other = world.connect(), world.connect("other")
    world.journals.all[shard_of_stream(B)].mood = "slow"
    enqueues = [client.frame("enqueue", to=name, env=env(id_)) for name, id_ in ((B, "1"), (A, "2"), (B, "3"))]
    strikes = [b"no request"] * 30
    client.send_line(*enqueues[:2], *strikes, enqueues[2])
    kept = other.request("enqueue", to=B, env=env("4"))
    world.advance(ms=3_000)
    assert (client.answers[1]["type"], client.answers[2]["type"]) == ("ok", "ok")
    assert 3 not in client.answers, "an answer is missing before it"
    assert other.answers[kept]["type"] == "ok"


@pytest.mark.parametrize("ids", [b'"\xff"', b'["\xff"]', b'["a","b","c"]'])
def test_a_settle_that_no_cell_can_take_is_refused(ids: bytes) -> None:
    world = CellsWorld(limits=Limits(batch_max=2))
    client = world.connect()
    for name in (A, B):
        client.request("subscribe", stream=name)
    client.send_line(b'{"type":"ack","reqId":9,"id":%b}' % ids)
    world.advance(ms=50)
    assert client.lines[-1]["code"] in ("InvalidJSON", "InvalidRequest")
    assert len(client.lines) == 3
