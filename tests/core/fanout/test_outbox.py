"""The outbox of one connection is bounded and keeps its order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.fanout.outbox import COMPACT_MIN, ENTRY_COST, Outbox


class Source:
    def __init__(self, *, sheds: bool = True) -> None:
        self.sheds = sheds
        self.waits = False
        self.full: dict[Outbox, None] = {}
        self.dropped = 0


def outbox(firm_max: int = 10_000, telemetry_max: int = 10_000, *, stuck: bool = True) -> Outbox:
    made = Outbox(None, firm_max, telemetry_max, 1 << 20)
    made.stuck = stuck
    return made


def test_everything_leaves_in_order_while_the_peer_reads() -> None:
    out, source = outbox(0, 0, stuck=False), Source()
    out.put(b"1")
    out.put(b"2", source)
    out.put(b"3", Source(sheds=False))
    assert bool(out) and out.take() == [b"1", b"2", b"3"]
    assert not out and out.size == 0 and not out.is_over and source.dropped == 0


def test_telemetry_makes_room_for_newer_and_is_counted_by_its_messages() -> None:
    out, source = outbox(telemetry_max=3 * (10 + ENTRY_COST)), Source()
    for n in range(6):
        out.put(b"%010d" % n, source, count=n + 1)
    assert out.take() == [b"%010d" % n for n in (3, 4, 5)]
    assert source.dropped == 1 + 2 + 3
    assert out.take_lost() == {source: 6} and out.take_lost() == {}


def test_the_newest_stays_however_large_it_is() -> None:
    out, source = outbox(telemetry_max=100), Source()
    out.put(b"x" * 10, source)
    out.put(b"y" * 10_000, source)
    assert out.take() == [b"y" * 10_000]


def test_what_must_not_be_lost_never_is_and_beyond_the_bound_the_peer_is_to_go() -> None:
    out = outbox(firm_max=3 * (10 + ENTRY_COST))
    for n in range(3):
        out.put(b"%010d" % n)
        assert not out.is_over
    out.put(b"%010d" % 3, Source(sheds=False))
    assert out.is_over
    assert out.take() == [b"%010d" % n for n in range(4)]


def test_telemetry_never_costs_an_envelope_its_place() -> None:
    out, source = outbox(firm_max=1_000, telemetry_max=1_000), Source()
    out.put(b"envelope")
    for _ in range(100):
        out.put(b"x" * 100, source)
    assert not out.is_over
    assert out.take()[0] == b"envelope"


def test_bounds_count_from_when_the_peer_stops_reading() -> None:
    out, source = outbox(1_000, 1_000, stuck=False), Source()
    for _ in range(100):
        out.put(b"x" * 100, source)
        out.put(b"y" * 100)
    assert not out.is_over and source.dropped == 0
    out.stuck = True
    out.put(b"x" * 100, source)
    out.put(b"y" * 100)
    assert out.is_over and source.dropped > 90


def test_what_was_dropped_does_not_pile_up_behind_an_envelope() -> None:
    out, source = outbox(telemetry_max=1_000), Source()
    out.put(b"envelope")
    for _ in range(10 * COMPACT_MIN):
        out.put(b"x", source)
    assert len(out._queue) < 3 * COMPACT_MIN


ENTRY = st.tuples(st.sampled_from(["firm", "a", "b", "held"]), st.integers(0, 600), st.integers(1, 9))


@pytest.mark.promise(
    "Targeted delivery: the proposal, line by line",
    "a frame router and its outboxes keep audiences, order and bounds",
)
@given(
    entries=st.lists(st.one_of(ENTRY, st.sampled_from(["take", "stop", "go"])), max_size=120),
    telemetry_max=st.integers(0, 6_000),
)
def test_bounds_hold_and_what_is_left_is_in_order(entries: list[object], telemetry_max: int) -> None:
    sources = {"firm": None, "a": Source(), "b": Source(), "held": Source(sheds=False)}
    out = outbox(4_000, telemetry_max, stuck=False)
    put: list[tuple[bytes, str, int]] = []
    taken: list[bytes] = []
    lost = {"a": 0, "b": 0}
    for number, entry in enumerate(entries):
        if entry == "take":
            taken += out.take()
        elif isinstance(entry, str):
            out.stuck = entry == "stop"
        else:
            name, size, count = entry  # type: ignore[misc]
            data = b"%06d" % number + b"x" * size
            put.append((data, name, count))
            out.put(data, sources[name], count)
            if out.stuck and sources[name] is not None and sources[name].sheds:  # type: ignore[union-attr]
                assert out.size - out.firm <= max(telemetry_max, len(data) + ENTRY_COST)
    taken += out.take()
    assert out.size == 0 and not out
    wanted = [data for data, _, _ in put]
    left = iter(wanted)
    assert all(data in left for data in taken)  # a subsequence: nothing twice, nothing out of order
    missing = [(name, count) for data, name, count in put if data not in taken]
    assert all(name in lost for name, _ in missing)
    for name, count in missing:
        lost[name] += count
    told = out.take_lost()
    for name, count in lost.items():
        source = sources[name]
        assert source is not None and source.dropped == count == told.get(source, 0)
