"""Taps: copies of a stream's envelopes, without leases."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.limits import Limits
from penstock.core.queue.policy import Policy
from penstock.core.scopes import Principal, require
from tests.dialects.courier.talking import Broker, HandJournal, Peer, codes, envelope, filled


def tap(broker: Broker, stream: str = "jobs", **more: Any) -> Peer:
    peer = broker.control(**more)
    assert peer.say(type_="tap", stream=stream, reqId=1) == [{"type": "ok", "reqId": 1, "result": {"stream": stream}}]
    return peer


def seen(peer: Peer) -> list[str]:
    return [frame["env"]["id"] for frame in peer.heard() if frame["type"] == "tap"]


@pytest.mark.promise("Stream Kernel", "a tap sends each envelope once, when it is durable, and leases nothing")
def test_a_copy_has_the_bytes_the_number_and_no_lease() -> None:
    broker = Broker()
    peer = tap(broker)
    filled(broker, "jobs", "a")
    body = msgspec.json.encode(envelope("a", to="jobs"))
    (record,) = broker.machine.channels["jobs"].ready
    assert peer.raw() == b'{"type":"tap","stream":"jobs","seq":1,"env":%b}\n' % record.body
    assert msgspec.json.decode(record.body) == msgspec.json.decode(body)
    assert (broker.counts("jobs")["q.if"], broker.counts("jobs")["q.depth"]) == (0, 1)
    assert broker.counts("jobs")["q.out"] == 0


def test_it_is_announced_and_works_without_a_reqId() -> None:
    broker = Broker()
    peer = broker.control()
    (hello,) = peer.say(type_="hello", version="v1")
    assert "tap" in hello["result"]["features"]
    assert peer.say(type_="tap", stream="jobs") == []
    filled(broker, "jobs", "a")
    assert seen(peer) == ["a"]


def test_consumers_get_everything_all_the_same() -> None:
    broker = Broker()
    watchers = [tap(broker), tap(broker)]
    worker = broker.control()
    worker.say(type_="subscribe", stream="jobs", credit=10)
    filled(broker, "jobs", "a", "b")
    assert [frame["env"]["id"] for frame in worker.heard()] == ["a", "b"]
    assert [seen(peer) for peer in watchers] == [["a", "b"]] * 2


@pytest.mark.promise("Stream Kernel", "a tap sends each envelope once, when it is durable, and leases nothing")
def test_only_what_is_durable_is_shown_and_what_is_refused_never() -> None:
    journal = HandJournal()
    broker = Broker(journal=journal)
    peer = tap(broker)
    producer = broker.control()
    producer.say(type_="enqueue", to="jobs", env=envelope("a"))
    assert seen(peer) == []
    journal.refuse()
    broker.run()
    assert seen(peer) == []
    producer.say(type_="enqueue", to="jobs", env=envelope("b"))
    journal.commit()
    broker.run()
    assert seen(peer) == ["b"]


def test_a_duplicate_is_shown_once_and_so_is_what_is_delivered_again() -> None:
    broker = Broker()
    peer = tap(broker)
    filled(broker, "jobs", "a")
    filled(broker, "jobs", "a")
    worker = broker.control()
    worker.say(type_="subscribe", stream="jobs", credit=10)
    worker.say(type_="nack", id="a")
    assert seen(peer) == ["a"]


def test_tapping_twice_is_tapping_once() -> None:
    broker = Broker()
    peer = tap(broker)
    peer.say(type_="tap", stream="jobs", reqId=2)
    filled(broker, "jobs", "a")
    assert seen(peer) == ["a"]


def test_a_tap_makes_no_stream_and_keeps_none_awake() -> None:
    broker = Broker()
    peer = tap(broker)
    assert broker.machine.channels == {}
    worker = broker.control()
    worker.say(type_="subscribe", stream="jobs", credit=1, subId="s")
    filled(broker, "jobs", "a")
    worker.say(type_="ack", id="a")
    worker.say(type_="unsubscribe", subId="s")
    assert seen(peer) == ["a"]
    broker.advance(200_000)
    assert broker.machine.channels == {}, "it was unloaded although it is tapped"
    filled(broker, "jobs", "b")
    assert seen(peer) == ["b"]


def test_dead_letters_come_into_a_stream_too() -> None:
    broker = Broker(Policy(max_deliveries=1))
    peer = tap(broker, "dlq/jobs")
    filled(broker, "jobs", "a")
    worker = broker.control()
    worker.say(type_="subscribe", stream="jobs", credit=1)
    worker.say(type_="nack", id="a")
    assert seen(peer) == ["a"]


def test_a_peer_that_left_is_shown_nothing_and_costs_nothing() -> None:
    broker = Broker()
    stays, goes = tap(broker), tap(broker)
    goes.gone()
    filled(broker, "jobs", "a")
    assert (seen(stays), goes.raw()) == (["a"], b"")
    stays.gone()
    assert (broker.machine.taps, broker.machine.taps_open) == ({}, 0)


@pytest.mark.promise("Stream Kernel", "a tap needs the scope `read`, and the number of taps is bounded")
def test_reading_rights_are_needed() -> None:
    broker = Broker()
    for scopes, expected in [
        (["streams:jobs:read"], []),
        (["streams:*:subscribe"], [(1, "Forbidden")]),
        (["streams:others:read"], [(1, "Forbidden")]),
    ]:
        peer = broker.control(Principal("someone", scopes=require(scopes)))
        assert codes(peer.say(type_="tap", stream="jobs", reqId=1)) == expected
    assert broker.machine.taps_open == 1
    assert codes(broker.control().say(type_="tap", stream="a:b", reqId=1)) == [(1, "InvalidRequest")]


@pytest.mark.promise("Stream Kernel", "a tap needs the scope `read`, and the number of taps is bounded")
def test_there_are_so_many_taps_and_no_more() -> None:
    broker = Broker(limits=Limits(taps_max=2))
    peer = tap(broker)
    assert codes(peer.say(type_="tap", stream="more", reqId=1)) == []
    assert codes(broker.control().say(type_="tap", stream="jobs", reqId=1)) == [(1, "QuotaExceeded")]
    peer.gone()
    tap(broker)


BOUND = Limits(outbox_max=1_000, copies_max=2_000, outbox_hard_max=100_000)


@pytest.mark.promise("Stream Kernel", "a tap that does not read receives the number of envelopes it missed")
def test_a_tap_that_does_not_read_receives_the_number_it_missed() -> None:
    broker = Broker(limits=BOUND)
    peer, other = tap(broker), tap(broker)
    peer.connection.congested(True)
    names = [f"{n:04}" for n in range(100)]
    filled(broker, "jobs", *names)
    shown = seen(peer)
    assert 5 < len(shown) < 25 and shown == names[: len(shown)]
    filled(broker, "jobs", "late")
    assert peer.heard() == [], "nothing more is handed over"
    assert not peer.wire.aborted, "it is waited for and not cut off"
    peer.connection.congested(False)
    broker.run()
    missed = 100 - len(shown) + 1
    assert peer.heard() == [{"type": "tapped_lost", "stream": "jobs", "n": missed}]
    filled(broker, "jobs", "new")
    assert seen(peer) == ["new"]
    lost_too = sum(frame.get("n", 0) for frame in other.heard())
    assert broker.machine.totals.copies_lost == missed + lost_too


@pytest.mark.promise("Stream Kernel", "a tap that does not read receives the number of envelopes it missed")
@settings(max_examples=60)
@given(st.lists(st.one_of(st.integers(1, 30), st.booleans()), max_size=25))
def test_every_envelope_is_shown_or_counted_in_order(steps: list[int | bool]) -> None:
    """Whatever the peer reads and however much comes: copies and losses add up, and a loss is reported in its place."""
    broker = Broker(limits=BOUND)
    peer = tap(broker)
    sent = 0
    heard: list[dict[str, Any]] = []
    for step in [*steps, False]:
        if isinstance(step, bool):
            peer.connection.congested(step)
            broker.run()
        else:
            filled(broker, "jobs", *(str(sent + n + 1) for n in range(step)))
            sent += step
        heard += peer.heard()
    expected = 0
    for frame in heard:
        if frame["type"] == "tapped_lost":
            expected += frame["n"]
        else:
            expected += 1
            assert frame["seq"] == expected
    assert expected == sent


def test_taps_of_one_commit_hold_the_same_bytes() -> None:
    broker = Broker()
    first, second = tap(broker), tap(broker)
    other = tap(broker, "other")
    filled(broker, "jobs", "a", "b")
    assert first.wire.writes[-1][0] is second.wire.writes[-1][0]
    assert (seen(first), seen(second), seen(other)) == (["a", "b"], ["a", "b"], [])
