"""Rates on control lines: each line counts by itself, however the lines are chunked."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.queue.policy import Policy
from penstock.core.rate_limits import Rate, Rates
from penstock.core.scopes import ANONYMOUS, Principal, require
from tests.dialects.courier.talking import Broker, Peer, envelope, line

SAM = Principal("sam", scopes=require(["streams:*:*"]))


def limited(*, token: int = 1_000, stream: int | None = None, **options: Any) -> Broker:
    """A broker whose senders have so many envelopes, and one more each second."""
    rate = None if stream is None else Rate(1, 1_000_000, stream)
    broker = Broker(Policy(rate=rate, **options))
    broker.machine.limit_rates(Rates(token=Rate(1, 1_000_000, token), address=Rate(1, 1_000_000, token)))
    return broker


def kinds(frames: list[dict[str, Any]]) -> list[tuple[Any, str]]:
    return [(frame["reqId"], frame.get("code") or frame["type"]) for frame in frames]


lines = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]),  # stream
        st.integers(0, 9),  # id
        st.sampled_from([0, 0, 0, 1]),  # payload: the same id with another one is a conflict
        st.sampled_from(["line", "line", "line", "line", "array", "send", "bad"]),
    ),
    max_size=30,
)


def said(number: int, stream: str, id_: int, payload: int, kind: str) -> bytes:
    match kind:
        case "array":
            env: Any = [envelope(f"{id_}x", payload=payload), envelope(f"{id_}y", payload=payload)]
            return line(type_="enqueue", to=stream, env=env, reqId=number)
        case "send":
            return line(type_="send", to=stream, kind="k", payload=payload, id=f"s{number}", reqId=number)
        case "bad":
            return line(type_="enqueue", to=stream, env={"id": "x"}, reqId=number)
        case _:
            return line(type_="enqueue", to=stream, env=envelope(f"{id_}", payload=payload), reqId=number)


@pytest.mark.promise("Limits, reload and HTTP details", "lines that arrive together are counted one by one, in order")
@settings(max_examples=150)
@given(lines, st.integers(1, 12), st.integers(1, 6), st.integers(1, 4))
def test_lines_that_come_together_are_counted_as_if_they_came_one_by_one(
    told: list[tuple[str, int, int, str]], token: int, stream: int, max_depth: int
) -> None:
    together, apart = (limited(token=token, stream=stream, max_depth=2 * max_depth) for _ in range(2))
    chunk = [said(number, *one) for number, one in enumerate(told)]
    first, second = together.control(SAM), apart.control(SAM)
    first.send(b"".join(chunk) or b"\n")
    for part in chunk:
        second.send(part)
    together.run()
    apart.run()
    answers = first.heard()
    assert answers == second.heard()
    assert [frame["reqId"] for frame in answers] == list(range(len(told)))
    for name in ("a", "b"):
        rooms = [broker.machine.meter.room(broker.us, SAM, "", name) for broker in (together, apart)]
        assert rooms[0] == rooms[1]


def test_what_fits_comes_in_and_the_rest_is_refused_line_by_line() -> None:
    broker = limited(token=3)
    peer = broker.control(SAM)
    peer.send(b"".join(line(type_="enqueue", to="s", env=envelope(f"{n}"), reqId=n) for n in range(5)))
    broker.run()
    answers = peer.heard()
    assert kinds(answers) == [(0, "ok"), (1, "ok"), (2, "ok"), (3, "RateLimited"), (4, "RateLimited")]
    assert [answer["retryAfterMs"] for answer in answers[3:]] == [1_000, 1_000]
    broker.advance(1_000)
    assert kinds(peer.say(type_="enqueue", to="s", env=envelope("3"), reqId=5)) == [(5, "ok")]
    assert broker.counts("s")["q.in"] == 4 and broker.counts("s")["q.reject"] == 0


def test_an_array_costs_each_of_its_envelopes_and_comes_in_whole_or_not_at_all() -> None:
    broker = limited(token=5)
    peer = broker.control(SAM)
    three = [envelope(f"{n}") for n in range(3)]
    assert kinds(peer.say(type_="enqueue", to="s", env=three, reqId=1)) == [(1, "ok")]
    more = [envelope(f"m{n}") for n in range(3)]
    (refused,) = peer.say(type_="enqueue", to="s", env=more, reqId=2)
    assert (refused["code"], refused["retryAfterMs"]) == ("RateLimited", 1_000)
    (never,) = peer.say(type_="enqueue", to="s", env=[envelope(f"n{n}") for n in range(6)], reqId=3)
    assert (never["code"], never["retryable"]) == ("TooLarge", False)
    assert peer.connection.closed is False and broker.counts("s")["q.in"] == 3
    assert kinds(peer.say(type_="send", to="s", kind="k", payload=1, reqId=4)) == [(4, "ok")]


def test_a_duplicate_costs_what_a_new_one_does_and_a_conflict_nothing() -> None:
    broker = limited(token=3)
    peer = broker.control(SAM)
    for number in range(2):
        (answer,) = peer.say(type_="enqueue", to="s", env=envelope("same"), reqId=number)
        assert answer["type"] == "ok"
    (conflict,) = peer.say(type_="enqueue", to="s", env=envelope("same", payload=2), reqId=3)
    assert conflict["code"] == "IdConflict"
    assert broker.machine.meter is not None and broker.machine.meter.room(broker.us, SAM, "", "s") == 1


@pytest.mark.promise("Limits, reload and HTTP details", "acks and credit are never rate-limited")
def test_settles_and_credit_are_never_limited() -> None:
    broker = limited(token=2)
    producer = broker.control(SAM)
    for id_ in ("a", "b"):
        producer.say(type_="enqueue", to="s", env=envelope(id_), reqId=1)
    (refused,) = producer.say(type_="enqueue", to="s", env=envelope("c"), reqId=1)
    assert refused["code"] == "RateLimited"
    producer.say(type_="subscribe", stream="s", reqId=2)
    producer.say(type_="grant", n=2)
    assert kinds(producer.say(type_="nack", id="a", delayMs=1, reqId=3)) == [(3, "ok")]
    assert kinds(producer.say(type_="ack", id="b", reqId=4)) == [(4, "ok")]
    broker.advance(1)
    assert kinds(producer.say(type_="pull", stream="s", reqId=5)) == [(5, "ok")]


def test_peers_at_one_address_share_what_it_has() -> None:
    broker = limited(token=2)

    def at(address: str) -> Peer:
        peer = broker.control(ANONYMOUS)
        peer.session.link.address = address
        return peer

    one, twin, other = at("10.0.0.1"), at("10.0.0.1"), at("10.0.0.2")
    answers = [
        peer.say(type_="enqueue", to="s", env=envelope(f"{number}"), reqId=number)[0]
        for number, peer in enumerate([one, twin, one, other])
    ]
    assert kinds(answers) == [(0, "ok"), (1, "ok"), (2, "RateLimited"), (3, "ok")]


@pytest.mark.promise("Limits, reload and HTTP details", "a rejection has no side effect: all buckets are checked first")
def test_a_refused_stream_is_not_made() -> None:
    broker = limited(token=1)
    peer = broker.control(SAM)
    peer.say(type_="enqueue", to="s", env=envelope("a"), reqId=1)
    peer.say(type_="enqueue", to="new", env=envelope("b"), reqId=2)
    assert list(broker.machine.channels) == ["s"]


@pytest.mark.promise(
    "Limits, reload and HTTP details",
    "no more than burst and rate are accepted over any time; a paced sender is never rejected, even if the clock steps",
)
def test_a_sender_below_its_rate_is_never_refused_however_long_it_goes_on() -> None:
    """Three a second where ten are allowed: asking must not put off the time that fills the bucket."""
    broker = Broker()
    broker.machine.limit_rates(Rates(token=Rate.per_second(10, 10)))
    peer = broker.control(SAM)
    for number in range(300):
        (answer,) = peer.say(type_="enqueue", to="s", env=envelope(f"{number}"), reqId=number)
        assert answer["type"] == "ok", (number, answer)
        broker.advance(333)
