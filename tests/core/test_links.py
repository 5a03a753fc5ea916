"""Links and sessions: the holder of a lease, and sessions without a peer."""

from __future__ import annotations

import pytest

from penstock.core.clock import Now
from penstock.core.links import Consumer, Link, PeerlessSession
from penstock.core.queue.channel import Channel
from penstock.core.queue.policy import Policy
from penstock.core.scopes import Principal


def consumer_of(principal: Principal, *, pull: bool = False) -> Consumer:
    consumer = Consumer(1, Channel("a", Policy()), Link(7, principal, None, 0), 1_000)
    consumer.pull = pull
    return consumer


def test_a_holder_is_named_after_its_agent_first_and_its_token_otherwise() -> None:
    assert consumer_of(Principal("token", agent="jen")).holder_name == "jen (link 7)"
    assert consumer_of(Principal("token")).holder_name == "token (link 7)"


def test_a_holder_that_only_says_who_it_is_is_shown_with_its_token() -> None:
    claimed = consumer_of(Principal("ann"))
    claimed.link.peer = "::1"
    assert claimed.link.claim("bob", lambda principal, agent: True) is not None and claimed.link.who == "ann"
    assert claimed.link.claim("bob", lambda principal, agent: False) is None and claimed.link.who == "bob"
    assert claimed.holder_name == "bob (link 7, ::1, token ann)"
    free = consumer_of(Principal("anonymous", anonymous=True))
    assert free.link.claim("bob", lambda principal, agent: False) is None and free.holder_name == "bob (link 7)"
    operator = consumer_of(Principal("operator", operator=True))
    assert operator.link.claim("bob", lambda principal, agent: True) is None
    assert operator.holder_name == "bob (link 7, token operator)"


def test_the_holder_of_a_pull_is_recognisable() -> None:
    assert consumer_of(Principal("token"), pull=True).holder_name == "token (pull 7)"


def test_a_session_without_a_peer_waits_for_nothing_and_receives_no_bytes() -> None:
    session = PeerlessSession()
    assert (session.out, session.closing, len(session.answers)) == ([], None, 0)
    with pytest.raises(AssertionError):
        session.receive(Now(1, 1), b"x")
