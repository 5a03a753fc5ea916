"""Which connections are accepted."""

from __future__ import annotations

import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import Refusal
from penstock.core.limits import Limits
from penstock.server.engine.admission import (
    CLOSING,
    LOCAL,
    AdmissionControl,
    AdmittedConnection,
    descriptor_limit,
    raise_descriptor_limit,
)

HERE, FAR, PROXY = "127.0.0.1", "192.0.2.1", "198.51.100.1"


def admission(room: int = 10, strangers: int = 1_000) -> AdmissionControl:
    made = AdmissionControl(lambda: Limits(unauthenticated_per_address_max=strangers), lambda peer: peer == PROXY)
    made.room = room
    return made


def closing(made: AdmissionControl, peer: str) -> AdmittedConnection | Refusal:
    """A connection that closes at once when it is asked to."""
    arrival: list[AdmittedConnection] = []
    arrived = made.admit(peer, lambda: [one.left() for one in arrival] and None)
    if isinstance(arrived, AdmittedConnection):
        arrival.append(arrived)
    return arrived


def test_the_oldest_stranger_makes_room_and_known_peers_stay() -> None:
    made = admission(room=3)
    first, second, third = (closing(made, FAR) for _ in range(3))
    assert (
        isinstance(first, AdmittedConnection)
        and isinstance(second, AdmittedConnection)
        and isinstance(third, AdmittedConnection)
    )
    first.known()
    assert isinstance(closing(made, FAR), AdmittedConnection)
    assert (made.open, made.refused["evicted"]) == (3, 1)
    third.known()
    fifth = closing(made, FAR)
    assert isinstance(fifth, AdmittedConnection)
    fifth.known()
    refusal = closing(made, FAR)
    assert isinstance(refusal, Refusal) and refusal.code == "QuotaExceeded"
    assert made.refused == {"address": 0, "descriptors": 1, "evicted": 2}
    assert isinstance(closing(made, HERE), AdmittedConnection), "peers on this machine have a reserve"


@pytest.mark.parametrize("strangers", [1_000, 2])
def test_a_proxy_on_this_machine_does_not_get_the_reserve(strangers: int) -> None:
    made = AdmissionControl(lambda: Limits(unauthenticated_per_address_max=strangers), lambda peer: peer == HERE)
    made.room = 3
    for _ in range(100):
        made.admit(HERE, lambda: None)
    assert made.open == 3 + CLOSING
    made = admission(room=3, strangers=strangers)
    for _ in range(100):
        made.admit(FAR, lambda: None)
    assert made.open == 3 + CLOSING, "connections that are evicted still have their descriptors"


def test_a_burst_stops_while_evicted_connections_are_not_closed_yet() -> None:
    made = admission(room=3)
    arrived = [made.admit(HERE, lambda: None) for _ in range(100)]
    accepted = [one for one in arrived if isinstance(one, AdmittedConnection)]
    assert len(accepted) == made.open == 3 + LOCAL + CLOSING


def test_strangers_of_an_address_are_bounded_and_proxies_are_exempt() -> None:
    made = admission(room=100, strangers=2)
    closed: list[str] = []
    first = made.admit(FAR, lambda: closed.append("first"))
    assert isinstance(first, AdmittedConnection) and isinstance(
        made.admit(FAR, lambda: closed.append("second")), AdmittedConnection
    )
    first.known()
    first.known()
    assert isinstance(made.admit(HERE, lambda: closed.append("of another address")), AdmittedConnection)
    assert isinstance(made.admit(FAR, lambda: closed.append("third")), AdmittedConnection) and not closed
    for _ in range(2):
        assert isinstance(made.admit(FAR, lambda: closed.append("later")), AdmittedConnection)
    assert closed == ["second", "third"] and made.refused == {"address": 2, "descriptors": 0, "evicted": 0}
    assert all(isinstance(made.admit(PROXY, lambda: None), AdmittedConnection) for _ in range(5))
    assert isinstance(made.admit("unix", lambda: None), AdmittedConnection)


@given(st.lists(st.tuples(st.sampled_from(["admit", "known", "left"]), st.integers(0, 9))))
def test_counts_return_to_zero(steps: list[tuple[str, int]]) -> None:
    made = admission(room=4, strangers=3)
    there: list[AdmittedConnection] = []

    def admit(peer: str) -> None:
        def close() -> None:
            there.remove(mine)
            mine.left()

        arrived = made.admit(peer, close)
        if isinstance(arrived, AdmittedConnection):
            mine = arrived
            there.append(mine)

    for what, number in steps:
        if what == "admit":
            admit((FAR, HERE)[number % 2])
        elif there:
            one = there[number % len(there)]
            if what == "known":
                one.known()
            else:
                there.remove(one)
                one.left()
        assert made.open == len(there) <= 4 + LOCAL
    for one in there:
        one.left()
    assert (made.open, made._unauthenticated, made._by_address) == (0, {}, {})


def test_the_soft_limit_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    set_to: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 4_096))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: set_to.append(limits))
    raise_descriptor_limit()
    assert set_to == [(4_096, 4_096)] and descriptor_limit() == 256
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, resource.RLIM_INFINITY))
    assert descriptor_limit(raised=True) == 1_048_576
