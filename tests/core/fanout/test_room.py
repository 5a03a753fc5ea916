"""A room and its lanes: who receives a frame, in what order, and what is counted."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.fanout.outbox import Outbox
from penstock.core.fanout.room import RUN_MAX, Lane, Member, Room


def head(size: int) -> bytes:
    return b"<%d>" % size


class Hall:
    """A room with everything that came out of it."""

    def __init__(self) -> None:
        self.kept: list[tuple[str, str, bytes, int, int]] = []
        self.room = Room(head, lambda lane, *rest: self.kept.append((lane.id, *rest)))
        self.boxes: dict[str, Outbox] = {}

    def enter(self, name: str, party: str | None = None) -> Outbox:
        box = self.boxes[name] = Outbox(name, firm_max=1 << 30, telemetry_max=1 << 30)
        self.room.enter(Member(name, party or name, box))
        return box

    def open(self, id_: str, owner: str, *targets: str, **more: Any) -> Lane:
        lane = Lane(id_, owner, targets, **more)
        self.room.open(lane)
        return lane

    def publish(self, writer: str, id_: str, data: bytes) -> bool:
        frame = b"#" + id_.encode() + b"#" + data
        return self.room.publish(writer, frame, len(id_) + 1)

    def got(self, name: str) -> bytes:
        self.room.flush()
        return b"".join(self.boxes[name].take())


def framed(*frames: bytes) -> bytes:
    return b"".join(head(len(frame)) + frame for frame in frames)


def test_a_lane_without_targets_goes_to_everybody_its_writer_included() -> None:
    hall = Hall()
    for name in ("a", "b", "c"):
        hall.enter(name)
    hall.open("s", "a")
    assert hall.publish("a", "s", b"x")
    assert [hall.got(name) for name in ("a", "b", "c")] == [framed(b"#s#x")] * 3


def test_a_lane_with_targets_goes_to_them_by_name_or_by_party_each_once() -> None:
    hall = Hall()
    hall.enter("a")
    hall.enter("laptop", "b")
    hall.enter("phone", "b")
    hall.enter("c")
    hall.open("s", "a", "b", "laptop", "gone")
    assert hall.publish("a", "s", b"x")
    assert [hall.got(name) for name in ("a", "laptop", "phone", "c")] == [
        b"",
        framed(b"#s#x"),
        framed(b"#s#x"),
        b"",
    ]


def test_only_writers_write_and_only_to_lanes_that_are_there() -> None:
    hall = Hall()
    hall.enter("a")
    lane = hall.open("s", "a")
    assert (
        not hall.publish("b", "s", b"x")
        and not hall.publish("a", "t", b"x")
        and not hall.publish("a", "", b"x")
    )
    lane.writers["b"] = None
    assert hall.publish("b", "s", b"x")
    hall.room.close(lane)
    assert not hall.publish("a", "s", b"x")
    assert hall.got("a") == framed(b"#s#x")
    assert hall.room.counts() == {"frames": 1, "bytes": 1, "deliveries": 1, "broadcast": 1, "dropped": 0}


@pytest.mark.promise(
    "Capabilities and log files of a gateway", "a crowd costs a lane no more than its targets"
)
def test_coming_and_going_in_a_crowd_costs_each_lane_no_more_than_its_targets() -> None:
    hall = Hall()
    names = [f"p{no}" for no in range(1_000)]
    for name in names:
        hall.enter(name)
        hall.open(f"to-{name}", name, "p0")
        hall.open(f"all-{name}", name)
    began = time.perf_counter()
    for no in range(20):
        hall.enter(f"late-{no}")
        for lane in hall.room.lanes.values():
            hall.room.audience(lane)
        assert not any(hall.room.is_there(f"nobody-{name}") for name in names)
    took = time.perf_counter() - began
    assert took < 1.0, f"{took} s; looking at everybody for each lane takes several seconds"
    assert {lane.reach for lane in hall.room.lanes.values()} == {1, 1_020}


def test_an_audience_follows_joins_and_leaves() -> None:
    hall = Hall()
    hall.enter("a")
    hall.open("s", "a", "b")
    assert hall.publish("a", "s", b"nobody")
    assert not hall.room.is_there("b")
    hall.enter("b")
    assert hall.room.is_there("b")
    assert hall.publish("a", "s", b"one")
    assert hall.got("b") == framed(b"#s#one")
    hall.room.leave("b")
    assert hall.publish("a", "s", b"lost")
    hall.enter("b")
    assert hall.publish("a", "s", b"two")
    assert hall.got("b") == framed(b"#s#two")


def test_whoever_leaves_gets_what_came_before_and_nothing_after() -> None:
    hall = Hall()
    hall.enter("a")
    b = hall.enter("b")
    hall.open("s", "a")
    assert hall.publish("a", "s", b"before")
    hall.room.leave("b")
    assert hall.publish("a", "s", b"after")
    hall.room.flush()
    assert b.take() == [framed(b"#s#before")]


def test_whoever_takes_a_place_gets_what_comes_from_then_on() -> None:
    hall = Hall()
    hall.enter("a")
    old = hall.enter("b")
    hall.open("s", "a", "b")
    assert hall.publish("a", "s", b"old")
    hall.enter("b")
    assert hall.publish("a", "s", b"new")
    assert hall.got("b") == framed(b"#s#new") and old.take() == [framed(b"#s#old")]
    assert list(hall.room.members) == ["a", "b"]


def test_a_burst_is_one_piece_and_the_same_one_for_all() -> None:
    hall = Hall()
    a, b = hall.enter("a"), hall.enter("b")
    hall.open("s", "a")
    for n in range(100):
        assert hall.publish("a", "s", b"%d" % n)
    hall.room.flush()
    (one,), (other,) = a.take(), b.take()
    assert one is other == framed(*(b"#s#%d" % n for n in range(100)))


def test_a_run_is_bounded() -> None:
    hall = Hall()
    a = hall.enter("a")
    hall.open("s", "a")
    for _ in range(10):
        assert hall.publish("a", "s", b"x" * (RUN_MAX // 4))
    hall.room.flush()
    pieces = a.take()
    assert len(pieces) >= 2 and max(map(len, pieces)) <= 2 * RUN_MAX


def test_a_run_ends_before_anything_else_is_told() -> None:
    hall = Hall()
    a = hall.enter("a")
    b = hall.enter("b")
    hall.open("s", "a")
    hall.open("t", "a", "b")
    hall.publish("a", "s", b"1")
    hall.room.tell(b"[to all]")
    hall.publish("a", "s", b"2")
    hall.room.tell_one(b, b"[to b]")
    hall.publish("a", "s", b"3")
    hall.publish("a", "t", b"4")
    hall.publish("a", "s", b"5")
    hall.room.tell(b"[not b]", but="b")
    hall.room.flush()
    assert (
        b"".join(a.take()) == framed(b"#s#1") + b"[to all]" + framed(b"#s#2", b"#s#3", b"#s#5") + b"[not b]"
    )
    assert b"".join(b.take()) == (
        framed(b"#s#1") + b"[to all]" + framed(b"#s#2") + b"[to b]" + framed(b"#s#3", b"#t#4", b"#s#5")
    )


def test_outboxes_that_were_given_something_are_known() -> None:
    hall = Hall()
    a, b, c = (hall.enter(name) for name in "abc")
    hall.open("s", "a", "b")
    hall.publish("a", "s", b"x")
    hall.room.flush()
    assert list(hall.room.touched) == [b]
    hall.room.tell(b"x", but="a")
    assert list(hall.room.touched) == [b, c]
    assert a not in hall.room.touched


def test_what_a_lane_kept_in_full_does_is_told_frame_by_frame_with_its_numbers() -> None:
    hall = Hall()
    hall.enter("a")
    hall.room.enter(Member("journal", "journal", None))
    lane = hall.open("s", "a", "journal", "a", keep="full")
    lane.base = 10
    for data in (b"x", b"yy"):
        hall.publish("a", "s", data)
    hall.room.flush()
    hall.publish("a", "s", b"z")
    assert hall.kept == [("s", "a", b"x", 11, 2), ("s", "a", b"yy", 12, 2), ("s", "a", b"z", 13, 2)]
    hall.open("t", "a", "journal")  # nobody keeps these, so nobody is served
    hall.publish("a", "t", b"x")
    hall.room.flush()
    assert hall.room.lanes[b"t"].deliveries == 0


def test_tallies_tell_what_happened_since_the_last_look() -> None:
    hall = Hall()
    for name in "abc":
        hall.enter(name)
    hall.open("s", "a", "b")
    hall.open("quiet", "a")
    hall.publish("a", "s", b"xx")
    hall.publish("a", "s", b"yyy")
    (tally,) = hall.room.take_tallies()
    assert (tally.frames, tally.bytes, tally.deliveries, tally.broadcast, tally.dropped) == (2, 5, 2, 6, 0)
    assert hall.room.take_tallies() == []
    hall.publish("a", "s", b"z")
    (tally,) = hall.room.take_tallies()
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
    "Targeted delivery, line by line of the proposal", "a room and its outboxes: audiences, order, bounds"
)
@given(st.lists(STEP, max_size=80))
def test_everybody_gets_just_what_is_theirs_in_the_order_it_was_said(
    steps: list[tuple[str, str, str]],
) -> None:
    hall = Hall()
    targets = {"s": (), "t": ("b", "x"), "u": ("a", "a", "d")}
    for id_, names in targets.items():
        lane = hall.open(id_, "a", *names)
        lane.writers = dict.fromkeys("abcd")
    wanted: dict[Outbox, bytes] = {}
    there: dict[str, tuple[Outbox, str]] = {}
    deliveries = 0
    for number, (what, name, more) in enumerate(steps):
        said = b"%d" % number
        match what:
            case "enter":
                party = more or name
                box = hall.enter(name, party)
                there[name] = (box, party)
                wanted[box] = b""
            case "leave" if name in there:
                hall.room.leave(name)
                del there[name]
            case "publish":
                assert hall.publish(name, more, said)
                frame = b"#" + more.encode() + b"#" + said
                for each, (box, party) in there.items():
                    if not targets[more] or each in targets[more] or party in targets[more]:
                        wanted[box] += framed(frame)
                        deliveries += 1
            case "tell":
                hall.room.tell(b"[%d]" % number, but=name)
                for each, (box, _) in there.items():
                    if each != name:
                        wanted[box] += b"[%d]" % number
            case "one" if name in there:
                hall.room.tell_one(there[name][0], b"(%d)" % number)
                wanted[there[name][0]] += b"(%d)" % number
            case "flush":
                hall.room.flush()
    hall.room.flush()
    for box, data in wanted.items():
        assert b"".join(box.take()) == data
    assert hall.room.counts()["deliveries"] == deliveries
