"""Several subscriptions on one connection: labels, and which one a settle without a label affects."""

import time
from typing import Any

import pytest

from penstock.core.limits import Limits
from tests.dialects.courier.talking import Broker, Peer, codes, envelope


def test_labels_are_made_where_none_is_given_and_never_used_twice() -> None:
    peer = Broker().control()
    assert peer.say(type="subscribe", stream="a", reqId=1)[0]["result"] == {"subId": "s1"}
    assert peer.say(type="subscribe", stream="b", subId="mine", reqId=2)[0]["result"] == {"subId": "mine"}
    (refused,) = peer.say(type="subscribe", stream="c", subId="mine", reqId=3)
    assert (refused["code"], refused["ref"]) == ("InvalidRequest", "subId")


def test_a_settle_without_a_label_reaches_the_subscription_that_holds_the_envelope() -> None:
    peer = Broker().control()
    for stream in ("a", "b"):
        peer.say(type="subscribe", stream=stream, credit=5, reqId=1)
    peer.say(type="enqueue", to="a", env=envelope(id="1", to="a"))
    answers = [frame for frame in peer.say(type="release", id="1", reqId=4) if frame["type"] != "deliver"]
    assert [answer["result"] for answer in answers] == [{"id": "1"}]


def test_a_grant_without_a_label_goes_to_the_newest_subscription() -> None:
    peer = Broker().control()
    assert peer.say(type="grant", n=1, reqId=1)[0]["code"] == "InvalidRequest"
    peer.say(type="subscribe", stream="a", subId="old", credit=3, reqId=2)
    peer.say(type="subscribe", stream="b", subId="new", reqId=3)
    assert peer.say(type="grant", n=2, reqId=4)[0]["result"] == {"credit": 2}
    peer.say(type="unsubscribe", subId="new", reqId=5)
    assert peer.say(type="grant", n=2, reqId=6)[0]["result"] == {"credit": 5}


@pytest.mark.promise("Queue protocols", "After a refused subscribe an unlabelled grant reaches no other subscription")
@pytest.mark.parametrize(
    "refused",
    [
        b'{"type":"subscribe","stream":"a:b"}',
        b'{"type":"subscribe","stream":"b","leaseMs":1}',
        b'{"type":"subscribe"}',
        b'{"type":"subscribe","stream":7}',
        rb'{"type":"subscribe","stream":"\ud800"}',
        b'{"type":"subscribe","stream":"b","stream":"c"}',
        b'{"type":"subscribe","pad":"%b"}' % (b"x" * 1000),
    ],
)
def test_after_a_refused_subscribe_a_grant_without_a_label_belongs_to_nothing(refused: bytes) -> None:
    """Behind a gateway the older subscription is another user's, who would lose mail to the one that was refused."""
    peer = Broker(limits=Limits(frame_max=500)).control()
    peer.say(type="subscribe", stream="a")
    peer.say(type="enqueue", to="a", env=envelope("1"))
    peer.send(refused + b"\n")
    peer.broker.run()
    assert [frame["type"] for frame in peer.heard()] == ["error"]
    assert codes(peer.say(type="grant", n=1)) == [("req", "InvalidRequest")]
    assert codes(peer.say(type="unsubscribe")) == [("req", "InvalidRequest")]
    assert peer.say(type="grant", n=1, subId="s1")[0]["type"] == "deliver"
    peer.say(type="enqueue", to="c", env=envelope("2"))
    peer.say(type="subscribe", stream="c")
    assert [frame["env"]["id"] for frame in peer.say(type="grant", n=1)] == ["2"]


def test_after_a_refused_subscribe_what_is_held_can_be_settled_and_the_rest_cannot() -> None:
    peer = Broker().control()
    for stream in ("a", "b"):
        peer.say(type="subscribe", stream=stream, credit=1)
    peer.say(type="enqueue", to="a", env=envelope("1"))
    peer.say(type="subscribe", stream="a:b")
    assert codes(peer.say(type="ack", id="other", reqId=1)) == [(1, "InvalidRequest")]
    assert peer.say(type="ack", id="1", reqId=2) == [{"type": "ok", "reqId": 2, "result": {"id": "1"}}]


def ids(frames: list[dict[str, Any]]) -> list[str]:
    return [frame["env"]["id"] for frame in frames if frame["type"] == "deliver"]


@pytest.mark.promise("Queue protocols", "An unlabelled subscribe replaces the older one of its stream and connection")
def test_a_subscribe_without_a_label_replaces_the_older_one_of_its_stream() -> None:
    broker = Broker()
    peer, other = broker.control(), broker.control()
    peer.say(type="subscribe", stream="a", credit=2, leaseMs=1_000)
    other.say(type="enqueue", to="a", env=envelope("1"))
    assert ids(peer.heard()) == ["1"]
    peer.say(type="subscribe", stream="a", subId="mine")
    peer.say(type="subscribe", stream="a")
    consumers = broker.machine.channels["a"].consumers.values()
    assert [(consumer.label, consumer.credit, consumer.lease_us) for consumer in consumers] == [
        ("s1", 0, 30_000_000),
        ("mine", 0, 30_000_000),
    ]
    other.say(type="enqueue", to="a", env=envelope("2"))
    assert peer.heard() == [], "the older subscription kept its credit"
    assert peer.say(type="ack", id="1", reqId=1)[0]["result"] == {"id": "1"}
    assert ids(peer.say(type="grant", n=1)) == ["2"]


def full(*, limit: int = 3) -> Peer:
    """A connection with as many subscriptions without a label as it may have, all with credit."""
    peer = Broker(limits=Limits(subscriptions_max=limit)).control()
    for number in range(limit):
        peer.say(type="subscribe", stream=f"s/{number}", credit=1)
    return peer


def subscribed(peer: Peer) -> list[str]:
    return sorted(consumer.channel.name for consumer in peer.session.link.consumers)


@pytest.mark.promise(
    "Queue protocols", "At the bound of subscriptions the idlest unlabelled one is evicted and counted"
)
def test_at_the_bound_the_idlest_one_without_a_label_is_evicted() -> None:
    peer = full()
    peer.say(type="enqueue", to="s/0", env=envelope("1"))  # holds an envelope
    peer.say(type="subscribe", stream="s/1")  # used again
    assert peer.say(type="subscribe", stream="new", reqId=1)[0]["type"] == "ok"
    assert subscribed(peer) == ["new", "s/0", "s/1"]
    assert peer.broker.runtime.subscriptions_evicted == 1
    for number in range(50):
        assert peer.say(type="subscribe", stream=f"u/{number}", reqId=number)[0]["type"] == "ok"
    assert subscribed(peer) == ["s/0", "u/48", "u/49"]
    assert peer.say(type="ack", id="1", reqId=2)[0]["result"] == {"id": "1"}


def test_labelled_subscriptions_are_never_evicted() -> None:
    peer = Broker(limits=Limits(subscriptions_max=2)).control()
    for label in ("x", "y"):
        peer.say(type="subscribe", stream=label, subId=label)
    assert codes(peer.say(type="subscribe", stream="new", reqId=1)) == [(1, "QuotaExceeded")]
    assert peer.broker.runtime.subscriptions_evicted == 0


def test_one_that_holds_envelopes_is_evicted_last_and_gives_them_back() -> None:
    peer = full(limit=1)
    logged: list[tuple[str, dict[str, Any]]] = []
    peer.broker.runtime._log = lambda event, **fields: logged.append((event, fields))
    peer.say(type="enqueue", to="s/0", env=envelope("1"))
    peer.say(type="subscribe", stream="new")
    ((event, fields),) = logged
    assert (event, fields["stream"]) == ("conn.evicted", "s/0") and "subscriptions_max" in fields["reason"]
    assert subscribed(peer) == ["new"]
    assert peer.broker.counts("s/0")["q.depth"] == 1


def test_a_subscribe_that_is_refused_evicts_nothing() -> None:
    peer = Broker(limits=Limits(subscriptions_max=2, streams_max=2)).control()
    for stream in ("a", "b"):
        peer.say(type="subscribe", stream=stream)
    ((_, code),) = codes(peer.say(type="subscribe", stream="new", reqId=1))
    assert code == "QuotaExceeded"
    assert subscribed(peer) == ["a", "b"]
    assert peer.broker.runtime.subscriptions_evicted == 0


def test_an_array_of_acks_reaches_each_subscription_that_holds_one_of_them() -> None:
    peer = Broker().control()
    for stream in ("a", "b", "c"):
        peer.say(type="subscribe", stream=stream, subId=stream, credit=5)
        peer.say(type="enqueue", to=stream, env=envelope("same"))
        peer.say(type="enqueue", to=stream, env=envelope(f"only {stream}"))
    answers = peer.say(type="ack", id=["only b", "same", "only a", "same", "only b", "unknown"], reqId=1)
    assert [(answer["code"], answer["ref"]) for answer in answers] == [
        ("AlreadyAcked", "only b"),
        ("UnknownEnvelope", "unknown"),
    ]
    depths = [peer.broker.counts(stream)["q.if"] for stream in ("a", "b", "c")]
    assert depths == [0, 0, 2], "the oldest subscriptions that hold it come first"


def test_an_array_of_unknown_ids_costs_one_search_of_the_subscriptions() -> None:
    def cost(subscriptions: int) -> int:
        peer = Broker().control()
        for number in range(subscriptions):
            peer.say(type="subscribe", stream=f"s/{number}", subId=f"{number}")
        times = []
        for _ in range(3):
            start = time.process_time_ns()
            peer.send({"type": "ack", "id": [str(number) for number in range(2_000)]})
            times.append(time.process_time_ns() - start)
            peer.broker.run()
        return min(times)

    assert cost(400) < 8 * cost(2)
