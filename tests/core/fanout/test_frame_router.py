"""A frame router and its routes: recipients of a frame, order, and counts."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.fanout.frame_router import RUN_MAX, FrameRoute, FrameRouter, Member
from penstock.core.fanout.outbox import Outbox


def head(size: int) -> bytes:
    return b"<%d>" % size


class RouterDriver:
    """A router with everything that came out of it."""

    def __init__(self) -> None:
        self.kept: list[tuple[str, str, bytes, int, int]] = []
        self.router = FrameRouter(head, lambda route, *rest: self.kept.append((route.id, *rest)))
        self.boxes: dict[str, Outbox] = {}

    def enter(self, name: str, party: str | None = None) -> Outbox:
        box = self.boxes[name] = Outbox(name, 1 << 30, 1 << 30, 1 << 20)
        self.router.enter(Member(name, party or name, box))
        return box

    def open(self, id_: str, owner: str, *targets: str, **more: Any) -> FrameRoute:
        route = FrameRoute(id_, owner, targets, **more)
        self.router.open(route)
        return route

    def publish(self, writer: str, id_: str, data: bytes) -> bool:
        frame = b"#" + id_.encode() + b"#" + data
        return self.router.publish(writer, frame, len(id_) + 1)

    def got(self, name: str) -> bytes:
        self.router.flush()
        return b"".join(self.boxes[name].take())


def framed(*frames: bytes) -> bytes:
    return b"".join(head(len(frame)) + frame for frame in frames)


def test_a_lane_without_targets_goes_to_everybody_its_writer_included() -> None:
    driver = RouterDriver()
    for name in ("a", "b", "c"):
        driver.enter(name)
    driver.open("s", "a")
    assert driver.publish("a", "s", b"x")
    assert [driver.got(name) for name in ("a", "b", "c")] == [framed(b"#s#x")] * 3


def test_a_lane_with_targets_goes_to_them_by_name_or_by_party_each_once() -> None:
    driver = RouterDriver()
    driver.enter("a")
    driver.enter("laptop", "b")
    driver.enter("phone", "b")
    driver.enter("c")
    driver.open("s", "a", "b", "laptop", "gone")
    assert driver.publish("a", "s", b"x")
    assert [driver.got(name) for name in ("a", "laptop", "phone", "c")] == [
        b"",
        framed(b"#s#x"),
        framed(b"#s#x"),
        b"",
    ]


def test_only_writers_write_and_only_to_lanes_that_are_there() -> None:
    driver = RouterDriver()
    driver.enter("a")
    route = driver.open("s", "a")
    assert (
        not driver.publish("b", "s", b"x") and not driver.publish("a", "t", b"x") and not driver.publish("a", "", b"x")
    )
    route.writers["b"] = None
    assert driver.publish("b", "s", b"x")
    driver.router.close(route)
    assert not driver.publish("a", "s", b"x")
    assert driver.got("a") == framed(b"#s#x")
    assert driver.router.counts() == {"frames": 1, "bytes": 1, "deliveries": 1, "broadcast": 1, "dropped": 0}


@pytest.mark.promise(
    "Capabilities and log files of a gateway",
    "the size of a space does not affect the cost of a targeted route",
)
def test_coming_and_going_in_a_crowd_costs_each_lane_no_more_than_its_targets() -> None:
    driver = RouterDriver()
    names = [f"p{no}" for no in range(1_000)]
    for name in names:
        driver.enter(name)
        driver.open(f"to-{name}", name, "p0")
        driver.open(f"all-{name}", name)
    began = time.perf_counter()
    for no in range(20):
        driver.enter(f"late-{no}")
        for route in driver.router.routes.values():
            driver.router.audience(route)
        assert not any(driver.router.is_there(f"nobody-{name}") for name in names)
    took = time.perf_counter() - began
    assert took < 1.0, f"{took} s; looking at everybody for each route takes several seconds"
    assert {route.reach for route in driver.router.routes.values()} == {1, 1_020}


def test_an_audience_follows_joins_and_leaves() -> None:
    driver = RouterDriver()
    driver.enter("a")
    driver.open("s", "a", "b")
    assert driver.publish("a", "s", b"nobody")
    assert not driver.router.is_there("b")
    driver.enter("b")
    assert driver.router.is_there("b")
    assert driver.publish("a", "s", b"one")
    assert driver.got("b") == framed(b"#s#one")
    driver.router.leave("b")
    assert driver.publish("a", "s", b"lost")
    driver.enter("b")
    assert driver.publish("a", "s", b"two")
    assert driver.got("b") == framed(b"#s#two")


def test_a_leaving_member_gets_what_came_before_and_nothing_after() -> None:
    driver = RouterDriver()
    driver.enter("a")
    b = driver.enter("b")
    driver.open("s", "a")
    assert driver.publish("a", "s", b"before")
    driver.router.leave("b")
    assert driver.publish("a", "s", b"after")
    driver.router.flush()
    assert b.take() == [framed(b"#s#before")]


def test_a_new_member_gets_what_comes_from_then_on() -> None:
    driver = RouterDriver()
    driver.enter("a")
    old = driver.enter("b")
    driver.open("s", "a", "b")
    assert driver.publish("a", "s", b"old")
    driver.enter("b")
    assert driver.publish("a", "s", b"new")
    assert driver.got("b") == framed(b"#s#new") and old.take() == [framed(b"#s#old")]
    assert list(driver.router.members) == ["a", "b"]


def test_a_burst_is_one_piece_and_the_same_one_for_all() -> None:
    driver = RouterDriver()
    a, b = driver.enter("a"), driver.enter("b")
    driver.open("s", "a")
    for n in range(100):
        assert driver.publish("a", "s", b"%d" % n)
    driver.router.flush()
    (one,), (other,) = a.take(), b.take()
    assert one is other == framed(*(b"#s#%d" % n for n in range(100)))


def test_a_run_is_bounded() -> None:
    driver = RouterDriver()
    a = driver.enter("a")
    driver.open("s", "a")
    for _ in range(10):
        assert driver.publish("a", "s", b"x" * (RUN_MAX // 4))
    driver.router.flush()
    pieces = a.take()
    assert len(pieces) >= 2 and max(map(len, pieces)) <= 2 * RUN_MAX


def test_a_run_ends_before_anything_else_is_sent() -> None:
    driver = RouterDriver()
    a = driver.enter("a")
    b = driver.enter("b")
    driver.open("s", "a")
    driver.open("t", "a", "b")
    driver.publish("a", "s", b"1")
    driver.router.broadcast(b"[to all]")
    driver.publish("a", "s", b"2")
    driver.router.send(b, b"[to b]")
    driver.publish("a", "s", b"3")
    driver.publish("a", "t", b"4")
    driver.publish("a", "s", b"5")
    driver.router.broadcast(b"[not b]", but="b")
    driver.router.flush()
    assert b"".join(a.take()) == framed(b"#s#1") + b"[to all]" + framed(b"#s#2", b"#s#3", b"#s#5") + b"[not b]"
    assert b"".join(b.take()) == (
        framed(b"#s#1") + b"[to all]" + framed(b"#s#2") + b"[to b]" + framed(b"#s#3", b"#t#4", b"#s#5")
    )


def test_outboxes_that_were_given_something_are_known() -> None:
    driver = RouterDriver()
    a, b, c = (driver.enter(name) for name in "abc")
    driver.open("s", "a", "b")
    driver.publish("a", "s", b"x")
    driver.router.flush()
    assert list(driver.router.touched) == [b]
    driver.router.broadcast(b"x", but="a")
    assert list(driver.router.touched) == [b, c]
    assert a not in driver.router.touched


def test_a_route_kept_in_full_reports_each_frame_with_its_numbers() -> None:
    driver = RouterDriver()
    driver.enter("a")
    driver.router.enter(Member("journal", "journal", None))
    route = driver.open("s", "a", "journal", "a", keep="full")
    route.base = 10
    for data in (b"x", b"yy"):
        driver.publish("a", "s", data)
    driver.router.flush()
    driver.publish("a", "s", b"z")
    assert driver.kept == [("s", "a", b"x", 11, 2), ("s", "a", b"yy", 12, 2), ("s", "a", b"z", 13, 2)]
    driver.open("t", "a", "journal")  # not kept, so no member is served
    driver.publish("a", "t", b"x")
    driver.router.flush()
    assert driver.router.routes[b"t"].deliveries == 0


def test_tallies_tell_what_happened_since_the_last_look() -> None:
    driver = RouterDriver()
    for name in "abc":
        driver.enter(name)
    driver.open("s", "a", "b")
    driver.open("quiet", "a")
    driver.publish("a", "s", b"xx")
    driver.publish("a", "s", b"yyy")
    (tally,) = driver.router.take_tallies()
    assert (tally.frames, tally.bytes, tally.deliveries, tally.broadcast, tally.dropped) == (2, 5, 2, 6, 0)
    assert driver.router.take_tallies() == []
    driver.publish("a", "s", b"z")
    (tally,) = driver.router.take_tallies()
    assert (tally.frames, tally.bytes, tally.deliveries) == (1, 1, 1)


NAME = st.sampled_from("abcd")
STEP = st.one_of(
    st.tuples(st.just("enter"), NAME, st.sampled_from(["", "x"])),
    st.tuples(st.just("leave"), NAME, st.just("")),
    st.tuples(st.just("publish"), NAME, st.sampled_from("stu")),
    st.tuples(st.just("tell"), NAME, st.just("")),
    st.tuples(st.just("one"), NAME, st.just("")),
    st.tuples(st.just("flush"), NAME, st.just("")),
)


@pytest.mark.promise(
    "Targeted delivery: the proposal, line by line",
    "a frame router and its outboxes keep audiences, order and bounds",
)
@given(st.lists(STEP, max_size=80))
def test_everybody_gets_just_what_is_theirs_in_the_order_it_was_said(
    steps: list[tuple[str, str, str]],
) -> None:
    driver = RouterDriver()
    targets = {"s": (), "t": ("b", "x"), "u": ("a", "a", "d")}
    for id_, names in targets.items():
        route = driver.open(id_, "a", *names)
        route.writers = dict.fromkeys("abcd")
    wanted: dict[Outbox, bytes] = {}
    there: dict[str, tuple[Outbox, str]] = {}
    deliveries = 0
    for number, (what, name, more) in enumerate(steps):
        said = b"%d" % number
        match what:
            case "enter":
                party = more or name
                box = driver.enter(name, party)
                there[name] = (box, party)
                wanted[box] = b""
            case "leave" if name in there:
                driver.router.leave(name)
                del there[name]
            case "publish":
                assert driver.publish(name, more, said)
                frame = b"#" + more.encode() + b"#" + said
                for each, (box, party) in there.items():
                    if not targets[more] or each in targets[more] or party in targets[more]:
                        wanted[box] += framed(frame)
                        deliveries += 1
            case "tell":
                driver.router.broadcast(b"[%d]" % number, but=name)
                for each, (box, _) in there.items():
                    if each != name:
                        wanted[box] += b"[%d]" % number
            case "one" if name in there:
                driver.router.send(there[name][0], b"(%d)" % number)
                wanted[there[name][0]] += b"(%d)" % number
            case "flush":
                driver.router.flush()
    driver.router.flush()
    for box, data in wanted.items():
        assert b"".join(box.take()) == data
    assert driver.router.counts()["deliveries"] == deliveries
