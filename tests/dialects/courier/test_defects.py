"""Defects of the first Courier: each test asserts the correct behaviour.

The numbers are those of the list of defects that the dialect was designed against.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.core.queue.policy import Policy
from penstock.core.rate_limits import Rate, Rates
from penstock.core.scopes import UNAUTHENTICATED, Principal, require
from penstock.server.auth.tokens import TokenStore
from penstock.server.config.load import load, policy_for
from tests.dialects.courier.talking import Broker, envelope, filled, line


@pytest.mark.promise("The document's testing strategy", "each of the eighteen defects of the first Courier is fixed")
@pytest.mark.promise("Defects of the upstream program, fixed here", "1: each socket has its own subscription")
def test_defect_01_sockets_do_not_share_one_subscription() -> None:
    broker = Broker()
    on_a, on_b = broker.subscribe("a", credit=5), broker.subscribe("b", credit=5)
    producer = broker.control()
    producer.say(type_="enqueue", to="a", env=envelope("for a"))
    producer.say(type_="enqueue", to="b", env=envelope("for b"))
    assert [frame["deliver"]["id"] for frame in on_a.heard()] == ["for a"]
    assert [frame["deliver"]["id"] for frame in on_b.heard()] == ["for b"]


@pytest.mark.promise(
    "Defects of the upstream program, fixed here", "2: a stream has many subscribers and outlives the first"
)
def test_defect_02_a_stream_has_many_subscribers_and_outlives_its_first() -> None:
    broker = Broker()
    first, second = broker.subscribe("a", credit=1), broker.subscribe("a", credit=1)
    producer = broker.control()
    producer.say(type_="enqueue", to="a", env=envelope("1"))
    producer.say(type_="enqueue", to="a", env=envelope("2"))
    assert [frame["deliver"]["id"] for frame in first.heard() + second.heard()] == ["1", "2"]
    first.gone()
    second.gone()
    third = broker.subscribe("a", credit=5)
    assert sorted(frame["deliver"]["id"] for frame in third.heard()) == ["1", "2"]


@pytest.mark.promise("Defects of the upstream program, fixed here", "3: an expired lease is redelivered")
def test_defect_03_an_expired_lease_is_redelivered_by_itself() -> None:
    broker = Broker()
    peer = broker.subscribe("a", credit=5)
    broker.control().say(type_="enqueue", to="a", env=envelope("1"))
    assert [frame["attempt"] for frame in peer.heard()] == [1]
    broker.advance(29_999)
    assert peer.heard() == []
    broker.advance(1)
    assert [(frame["deliver"]["id"], frame["attempt"]) for frame in peer.heard()] == [("1", 2)]


@pytest.mark.promise(
    "Defects of the upstream program, fixed here",
    "4, 5: an id is remembered from its enqueue on, and a lease belongs to one delivery",
)
def test_defect_04_an_id_is_remembered_from_its_enqueue_on() -> None:
    broker = Broker()
    producer = broker.control()
    producer.say(type_="enqueue", to="a", env=envelope("1"))
    (answer,) = producer.say(type_="enqueue", to="a", env=envelope("1"))
    assert answer["result"] == {"id": "1", "seq": 1, "duplicate": True}
    assert broker.counts("a")["q.depth"] == 1


@pytest.mark.promise(
    "Defects of the upstream program, fixed here",
    "4, 5: an id is remembered from its enqueue on, and a lease belongs to one delivery",
)
def test_defect_05_a_lease_belongs_to_one_delivery_and_not_to_an_id() -> None:
    broker = Broker(Policy(lease_us=2_000_000))
    slow, quick = broker.subscribe("a", credit=1), broker.subscribe("a")
    broker.control().say(type_="enqueue", to="a", env=envelope("1"))
    (first,) = slow.heard()
    broker.advance(2_000)
    quick.send({"credit": 1})
    broker.run()
    (second,) = quick.heard()
    assert first["leaseId"] != second["leaseId"]
    slow.send({"ack": "1", "leaseId": first["leaseId"]})
    slow.send({"ack": "1"})
    broker.run()
    assert [frame["error"]["code"] for frame in slow.heard()] == ["LeaseExpired", "LeaseExpired"]
    assert broker.counts("a")["q.if"] == 1


@pytest.mark.promise("Defects of the upstream program, fixed here", "6: stats create no stream")
def test_defect_06_a_look_at_an_unknown_stream_is_refused_and_makes_nothing() -> None:
    broker = Broker()
    (error,) = broker.control().say(type_="stats", stream="nowhere", reqId=1)
    assert (error["code"], error["status"]) == ("UnknownStream", 404)
    assert not broker.machine.known("nowhere")


@pytest.mark.promise("Defects of the upstream program, fixed here", "7: a second ack is rejected")
def test_defect_07_a_second_ack_and_an_unknown_one_are_refused() -> None:
    broker = Broker()
    peer = broker.control()
    peer.say(type_="subscribe", stream="a", credit=1)
    peer.say(type_="enqueue", to="a", env=envelope("1"))
    assert peer.say(type_="ack", id="1") == []
    (twice,) = peer.say(type_="ack", id="1")
    (never,) = peer.say(type_="ack", id="2")
    assert (twice["code"], twice["status"]) == ("AlreadyAcked", 409)
    assert (never["code"], never["status"]) == ("UnknownEnvelope", 404)


@pytest.mark.promise("Defects of the upstream program, fixed here", "8: a payload is required")
def test_defect_08_payload_is_required_and_may_be_null() -> None:
    peer = Broker().control()
    bare = envelope("1")
    del bare["payload"]
    (error,) = peer.say(type_="enqueue", to="a", env=bare)
    assert (error["code"], error["ref"]) == ("InvalidEnvelope", "payload")
    (answer,) = peer.say(type_="enqueue", to="a", env=envelope("1", payload=None))
    assert answer["type"] == "ok"


@pytest.mark.promise(
    "Defects of the upstream program, fixed here", "9: the inner address never overrides the outer one"
)
def test_defect_09_an_inner_address_never_beats_the_outer_one() -> None:
    broker = Broker()
    (error,) = broker.control().say(type_="enqueue", to="jen", env=envelope("1", to="other"))
    assert error["code"] == "AddressMismatch"
    assert broker.machine.channels == {}


@pytest.mark.promise("Defects of the upstream program, fixed here", "10: a full stream rejects and drops nothing")
def test_defect_10_a_full_stream_refuses_and_drops_nothing() -> None:
    broker = Broker(Policy(max_depth=1))
    producer = broker.control()
    producer.say(type_="enqueue", to="a", env=envelope("1"))
    (error,) = producer.say(type_="enqueue", to="a", env=envelope("2"))
    assert (error["code"], error["status"]) == ("StreamFull", 429)
    assert error["retryAfterMs"] > 0
    assert [record.id for record in broker.machine.channels["a"].ready] == ["1"]


@pytest.mark.promise(
    "Defects of the upstream program, fixed here",
    "11: rates are rates, and latencies are measured by the server",
)
def test_defect_11_rates_are_rates_and_latency_is_ours() -> None:
    broker = Broker()
    peer = broker.control()
    peer.say(type_="subscribe", stream="a", credit=100)
    for n in range(10):
        peer.say(type_="enqueue", to="a", env=envelope(str(n), ts="1999-01-01T00:00:00Z"))
    broker.advance(1_000)
    peer.heard()
    (answer,) = peer.say(type_="stats", stream="a", reqId=1)
    stats = answer["result"]
    assert (stats["rateIn"], stats["rateOut"]) == (1.0, 1.0)
    assert stats["latP95"] < 1_000
    broker.advance(20_000)
    (answer,) = peer.say(type_="stats", stream="a", reqId=1)
    assert (answer["result"]["rateIn"], answer["result"]["rateOut"]) == (0.0, 0.0)


def notifying(when: dict[str, object], **more: object) -> dict[str, object]:
    action = {"action": "notify", "to": "told", "payload": {"ref": "${env.id}"}}
    return {"id": "r", "when": when, "do": [action], **more}


def told(broker: Broker) -> list[dict[str, Any]]:
    return [msgspec.json.decode(record.body) for record in broker.machine.channels["told"].ready]


def test_defect_12_placeholders_are_filled() -> None:
    broker = Broker(triggers=[notifying({"type": "note"})])
    filled(broker, "jobs", "e-7")
    assert [one["payload"]["ref"] for one in told(broker)] == ["e-7"]


def test_defect_13_a_rule_about_headers_looks_at_headers() -> None:
    broker = Broker(triggers=[notifying({"headers": {"priority": "high"}})])
    producer = broker.control()
    producer.say(type="enqueue", to="jobs", env=envelope("plain"))
    assert "told" not in broker.machine.channels
    producer.say(type="enqueue", to="jobs", env=envelope("urgent", headers={"priority": "high"}))
    assert [one["refs"] for one in told(broker)] == [["urgent"]]


def test_defect_14_one_envelope_never_becomes_thousands() -> None:
    broker = Broker(triggers=[notifying({"type": ["note", "notify"]})])
    filled(broker, "jobs", "e-1")
    assert len(told(broker)) == 1
    assert sum(channel.counters.in_ for channel in broker.machine.channels.values()) == 2


def test_defect_15_notices_of_two_rules_and_two_actions_do_not_collide() -> None:
    two = {"id": "q", "when": {"type": "note"}, "do": [{"action": "notify", "to": "told"}] * 2}
    broker = Broker(triggers=[notifying({"type": "note"}), two])
    filled(broker, "jobs", "e-1")
    assert len({one["id"] for one in told(broker)}) == 3


def test_defect_16_a_sender_below_its_rate_is_never_refused_and_a_refused_one_recovers() -> None:
    broker = Broker()
    broker.machine.limit_rates(Rates(token=Rate(10, 1_000_000, 10), address=Rate(10, 1_000_000, 10)))
    producer = broker.control()
    for n in range(60):
        (answer,) = producer.say(type_="enqueue", to="a", env=envelope(f"paced {n}"))
        assert answer["type"] == "ok", n
        broker.advance(333)
    burst = [producer.say(type_="enqueue", to="a", env=envelope(f"burst {n}"))[0] for n in range(15)]
    refused = [answer for answer in burst if answer["type"] == "error"]
    assert [(one["code"], one["status"]) for one in refused] == [("RateLimited", 429)] * 5
    broker.advance(refused[-1]["retryAfterMs"])
    (answer,) = producer.say(type_="enqueue", to="a", env=envelope("after the time that was told"))
    assert answer["type"] == "ok"


@pytest.mark.promise(
    "Defects of the upstream program, fixed here", "17: an enqueue is one change, and a snapshot comes first"
)
def test_defect_17_an_enqueue_is_one_change_and_a_snapshot_comes_first() -> None:
    broker = Broker()
    producer, follower = broker.control(), broker.control()
    producer.say(type_="enqueue", to="agents/jen/inbox", env=envelope("1"))
    (first,) = follower.say(type_="live", view="latestPerAgent")
    assert [row["env"]["id"] for row in first["snapshot"]["rows"]] == ["1"]
    producer.say(type_="enqueue", to="agents/jen/inbox", env=envelope("2"))
    broker.advance(5_000)
    (change,) = follower.heard()
    assert change["delta"]["env"]["id"] == "2"


@pytest.mark.promise("Defects of the upstream program, fixed here", "18: a view needs the scope of views")
def test_defect_18_views_are_not_for_everybody() -> None:
    peer = Broker().control(Principal("x", scopes=require(["streams:*:*"])))
    assert [frame["code"] for frame in peer.say(type_="live", view="latestPerAgent")] == ["Forbidden"]
    assert [frame["code"] for frame in peer.say(type_="snapshot", view="latestPerAgent")] == ["Forbidden"]


def test_defect_18_a_view_is_followed_only_with_a_token_where_tokens_are_needed() -> None:
    broker = Broker(tokens={"secret": Principal("x", scopes=require(["views:*:read", "streams:*:read"]))})
    stranger = broker.control(UNAUTHENTICATED, token_needed=True)
    assert [frame["code"] for frame in stranger.say(type_="live", view="latestPerAgent")] == ["Unauthorized"]
    assert stranger.wire.closed == (1008, "Unauthorized")
    known = broker.control(UNAUTHENTICATED, token_needed=True)
    known.say(type_="hello", version="v1", token="secret")
    (first,) = known.say(type_="live", view="latestPerAgent")
    assert first["snapshot"]["rows"] == []


@pytest.mark.promise("The document's testing strategy", "each of the eighteen defects of the first Courier is fixed")
def test_defect_18_every_section_of_the_config_counts(tmp_path: Path) -> None:
    path = tmp_path / "courier.yaml"
    path.write_text(
        """\
streams: {defaultLeaseMs: 2000, perStreamCaps: {"agents/*": {maxDepth: 1}}}
auth: {tokens: [{token: dev-local, scopes: ["streams:agents/*:enqueue"]}]}
"""
    )
    config = load(path, {})
    assert policy_for(config, "other").lease_us == 2_000_000
    tokens = TokenStore(config.auth)
    assert tokens.resolve("guess") is None
    jen = tokens.resolve("dev-local")
    assert jen is not None
    inbox = "agents/jen/inbox"
    broker = Broker(policies={inbox: policy_for(config, inbox)})
    producer = broker.control(jen)
    answers = [producer.say(type_="enqueue", to=inbox, env=envelope(id_))[0] for id_ in "ab"]
    assert [answer.get("code") for answer in answers] == [None, "StreamFull"]
    assert [frame["code"] for frame in producer.say(type_="subscribe", stream=inbox)] == ["Forbidden"]


@pytest.mark.promise(
    "Defects of the upstream program, fixed here",
    "18: credit below one is rejected, and concurrent hellos each get their own answer",
)
@pytest.mark.parametrize("credit", [-1, 0])
def test_defect_18_credit_below_one_is_refused(credit: int) -> None:
    broker = Broker()
    socket, pipe = broker.subscribe("a"), broker.control()
    socket.send({"credit": credit})
    broker.run()
    assert [frame["error"]["code"] for frame in socket.heard()] == ["InvalidCredit"]
    pipe.say(type_="subscribe", stream="a")
    assert [frame["code"] for frame in pipe.say(type_="grant", n=credit)] == ["InvalidCredit"]
    assert sum(consumer.credit for consumer in broker.machine.consumers.values()) == 0


@pytest.mark.promise(
    "Defects of the upstream program, fixed here",
    "18: credit below one is rejected, and concurrent hellos each get their own answer",
)
def test_defect_18_hellos_at_once_each_get_their_own_answer() -> None:
    broker = Broker()
    peer = broker.control()
    peer.send(line(type_="hello", reqId="x") + line(type_="hello", reqId="y") + line(type_="hello"))
    broker.run()
    assert [frame["reqId"] for frame in peer.heard()] == ["x", "y", "hello"]
