"""The kernel's routing table, on a clock that the test moves."""

from __future__ import annotations

import pytest

from penstock.kernel import Router, RouterEvent


class Clock:
    def __init__(self) -> None:
        self.ms = 1_000_000

    def __call__(self) -> int:
        return self.ms


class TestRouter:
    @pytest.mark.promise("Stream Kernel", "Hostess and Router list, renew and expire their entries")
    def test_announcing_again_is_the_heartbeat(self) -> None:
        clock = Clock()
        router = Router(clock)
        events: list[RouterEvent] = []
        router.subscribe(events.append)
        first = router.announce("a", "process", "tcp://x", {"n": 1})
        assert (first.announced_at, first.updated_at, first.expires_at) == (
            clock.ms,
            clock.ms,
            clock.ms + 30_000,
        )
        clock.ms += 10_000
        second = router.announce("a", "process", "tcp://x", {"n": 2})
        assert (second.announced_at, second.updated_at) == (first.announced_at, clock.ms)
        assert second.expires_at - second.updated_at == 30_000
        assert router.list() == [second]
        assert [(event.type, event.timestamp) for event in events] == [
            ("added", clock.ms - 10_000),
            ("updated", clock.ms),
        ]

    @pytest.mark.promise("Stream Kernel", "Hostess and Router list, renew and expire their entries")
    def test_what_is_silent_for_longer_than_its_time_is_swept(self) -> None:
        clock = Clock()
        router = Router(clock)
        events: list[str] = []
        router.subscribe(lambda event: events.append(event.type))
        router.announce("a", "process", "x")
        clock.ms += 30_000
        assert router.sweep() == []
        clock.ms += 1
        assert [one.id for one in router.sweep()] == ["a"]
        assert (router.list(), events) == ([], ["added", "staleExpired"])

    def test_withdrawing(self) -> None:
        router = Router(Clock())
        events: list[str] = []
        router.announce("a", "process", "x")
        router.subscribe(lambda event: events.append(event.type))
        assert router.withdraw("a")
        assert not router.withdraw("a")
        assert events == ["removed"]

    def test_our_own_come_before_those_of_other_hosts_and_then_the_newest(self) -> None:
        clock = Clock()
        router = Router(clock)
        foreign = Router(clock).announce("far", "process", "x")
        for name in ("old", "new"):
            clock.ms += 1
            router.announce(name, "process", "x")
        clock.ms += 1
        router.receive_from_peer("other-host", foreign)
        router.announce("elsewhere", "process", "y")
        assert [one.id for one in router.resolve_all("x")] == ["new", "old", "far"]
        assert router.resolve("x").id == "new"  # type: ignore[union-attr]
        assert router.resolve("z") is None
        assert router.resolve_all("x")[-1].metadata == {"federationSource": "other-host"}
