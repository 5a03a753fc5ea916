"""The kernel's two address books, on a clock that the test moves."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.errors import PenstockError
from penstock.kernel import Hostess, Manifest, Router, RouterEvent


class Clock:
    def __init__(self) -> None:
        self.ms = 1_000_000

    def __call__(self) -> int:
        return self.ms


def manifest(**more: Any) -> dict[str, Any]:
    return {
        "servername": "courier",
        "capabilities": {"type": "transform", "accepts": ["envelope"], "produces": ["envelope", "view"]},
        "terminals": [{"name": "input"}, {"name": "output", "direction": "output"}],
        **more,
    }


class TestHostess:
    def test_an_identity_is_seven_words_and_a_uuid_is_made_where_none_is_given(self) -> None:
        hostess = Hostess(Clock())
        given = hostess.register(manifest(uuid="u-1"))
        assert given == "localhost:courier:0x0000:system:no:none:u-1"
        made = {hostess.register(manifest()) for _ in range(2)}
        assert len(made) == 2
        assert all(identity.startswith("localhost:courier:0x0000:system:no:none:") for identity in made)

    @pytest.mark.promise("Stream Kernel", "Hostess and Router")
    def test_silence_makes_a_guest_unavailable_and_never_forgets_it(self) -> None:
        clock = Clock()
        hostess = Hostess(clock)
        id_ = hostess.register(manifest())
        clock.ms += 20_000
        assert hostess.is_available(id_)
        clock.ms += 1
        assert not hostess.is_available(id_)
        assert hostess.query() == [id_]
        assert hostess.query(available_only=True) == []
        hostess.heartbeat(id_)
        assert hostess.query(available_only=True) == [id_]

    def test_a_guest_is_available_while_a_terminal_is_free(self) -> None:
        hostess = Hostess(Clock())
        id_ = hostess.register(manifest())
        hostess.mark_in_use(id_, "input", "c1")
        assert hostess.is_available(id_)
        hostess.mark_in_use(id_, "output", "c1")
        assert not hostess.is_available(id_)
        hostess.mark_available(id_, "input")
        assert hostess.is_available(id_)
        with pytest.raises(PenstockError):
            hostess.mark_in_use(id_, "nowhere", "c1")

    def test_a_question_has_many_sides(self) -> None:
        hostess = Hostess(Clock())
        id_ = hostess.register(manifest(classHex="0x0002"))
        for asked in (
            {"kind": "transform"}, {"class_hex": "0x0002"}, {"accepts": "envelope"}, {"produces": "view"},
        ):  # fmt: skip
            assert hostess.query(**asked) == [id_], asked
        for asked in (
            {"kind": "source"}, {"class_hex": "0x0001"}, {"accepts": "view"}, {"produces": "x"}, {"features": ["y"]},
        ):  # fmt: skip
            assert hostess.query(**asked) == [], asked

    def test_endpoints_have_the_shape_of_the_report(self) -> None:
        hostess = Hostess(Clock())
        id_ = hostess.register(Manifest("courier", {"type": "transform"}, uuid="u"))  # type: ignore[arg-type]
        hostess.register_endpoint(id_, "process", "node:courier", {"a": 1})
        assert hostess.endpoints() == [
            {"id": id_, "type": "process", "coordinates": "node:courier", "metadata": {"a": 1}}
        ]
        with pytest.raises(PenstockError):
            hostess.register_endpoint("nobody", "process", "x")
        with pytest.raises(PenstockError):
            hostess.register({"servername": "x"})


class TestRouter:
    @pytest.mark.promise("Stream Kernel", "Hostess and Router")
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

    @pytest.mark.promise("Stream Kernel", "Hostess and Router")
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
