"""One bound over the unread bytes of all readers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.limits import Limits
from penstock.server.engine.outboxes import Outboxes
from tests.dialects.courier.talking import Broker, envelope, filled, line

LIMIT = 100


class Held:
    """A reader with a size that a test sets."""

    def __init__(self, name: str = "r", party: tuple[bool, str] = (False, "p")) -> None:
        self.reader_name = name
        self.party = party
        self.unread_bytes = 0
        self.is_paused = False
        self.now = 0
        self.cuts: list[int] = []

    def unread(self) -> int:
        return self.now

    def cut(self, size: int) -> None:
        self.cuts.append(size)


def ledger() -> tuple[Outboxes, Callable[[], None]]:
    due: list[Callable[[], None]] = []
    logged: list[str] = []

    def run() -> None:
        while due:
            due.pop(0)()

    outboxes = Outboxes(lambda: LIMIT, due.append, lambda event, **fields: logged.append(fields["reader"]))
    return outboxes, run


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 60), st.booleans())))
def test_the_total_fits_after_every_turn_and_the_largest_go(steps: list[tuple[int, int, bool]]) -> None:
    outboxes, run = ledger()
    readers = [Held(str(number)) for number in range(5)]
    for number, size, has_read in steps:
        reader = readers[number]
        outboxes.note(reader, size)
        reader.now = size // 2 if has_read else size
        before = {each: each.now for each in readers if each.unread_bytes}
        was_over, cut = outboxes.total > LIMIT, outboxes.cut
        run()
        assert outboxes.total == sum(each.unread_bytes for each in readers) <= LIMIT
        gone = [each for each in before if not each.unread_bytes and before[each]]
        assert len(gone) == outboxes.cut - cut
        assert not gone or (was_over and sum(before.values()) > LIMIT)
        stayed = [before[each] for each in before if each not in gone]
        assert all(before[each] >= max(stayed, default=0) for each in gone)
        for each in gone:
            assert each.cuts.pop() == before[each]


def test_a_reader_that_has_read_meanwhile_stays() -> None:
    outboxes, run = ledger()
    quick, slow = Held(), Held()
    outboxes.note(quick, 90)
    outboxes.note(slow, slow.__setattr__("now", 20) or 20)
    run()
    assert (quick.cuts, slow.cuts, outboxes.total) == ([], [], 20)


def held(outboxes: Outboxes, party: tuple[bool, str], *sizes: int) -> list[Held]:
    readers = [Held(party=party) for _ in sizes]
    for reader, size in zip(readers, sizes, strict=True):
        reader.now = size
        outboxes.note(reader, size)
    return readers


@pytest.mark.parametrize("is_stranger", [True, False])
def test_many_small_readers_of_one_party_do_not_make_another_the_largest(is_stranger: bool) -> None:
    outboxes, run = ledger()
    (victim,) = held(outboxes, (is_stranger, "victim"), 30)
    many = held(outboxes, (is_stranger, "attacker"), *[9] * 7, 10)
    run()
    assert victim.cuts == []
    assert [one.cuts for one in many] == [[]] * 7 + [[10]]


def test_strangers_are_cut_before_tokens() -> None:
    outboxes, run = ledger()
    (known,) = held(outboxes, (False, "token"), 60)
    strangers = [held(outboxes, (True, f"10.0.0.{n}"), 10 + n)[0] for n in range(4)]
    run()
    assert known.cuts == []
    assert [one.cuts for one in strangers] == [[], [], [], [13]]


def test_the_bound_holds_after_a_cut_that_failed() -> None:
    outboxes, run = ledger()
    (broken,) = held(outboxes, (False, "p"), 101)

    def fail(size: int) -> None:
        raise RuntimeError("broken")

    broken.cut = fail  # type: ignore[method-assign]
    with pytest.raises(RuntimeError):
        run()
    (other,) = held(outboxes, (False, "p"), 102)
    run()
    assert other.cuts == [102]


class TestConnections:
    LIMITS = Limits(outbox_max=1_000, outbox_hard_max=5_000, outbox_total_max=6_000)

    @pytest.mark.promise(
        "Hold under hostile conditions",
        "all outboxes together are bounded: the reader that holds most is cut off, counted and named",
    )
    def test_the_one_that_holds_most_is_cut_and_explain_names_it(self) -> None:
        broker = Broker(limits=self.LIMITS)
        taps = []
        for name, size in (("a", 2_500), ("b", 3_000), ("c", 0)):
            peer = broker.control()
            peer.say(type_="tap", stream="jobs", reqId=name)
            peer.connection.congested(size > 0)
            peer.wire.buffered = size
            taps.append(peer)
        filled(broker, "jobs", "1")
        assert [peer.wire.aborted for peer in taps] == [False, False, False]
        taps[0].wire.buffered = 3_500
        filled(broker, "jobs", "2")
        assert [peer.wire.aborted for peer in taps] == [True, False, False]
        outboxes = broker.runtime.peers.outboxes
        assert (outboxes.cut, outboxes.total, broker.runtime.peers.slow_cut) == (1, 3_000, 1)
        (reason,) = [one for one in self.reasons(broker) if one["code"] == "reader_cut"]
        assert reason["bytes"] == 3_500 and "limits.outbox_total_max" in reason["message"]
        assert f"link {taps[0].session.link.no}" in reason["message"]

    def test_one_that_reads_again_or_leaves_holds_nothing(self) -> None:
        broker = Broker(limits=self.LIMITS)
        first, second = broker.control(), broker.control()
        for peer in (first, second):
            peer.connection.congested(True)
            peer.wire.buffered = 2_000
            peer.say(type_="ping", reqId=1)
        assert broker.runtime.peers.outboxes.total == 4_000
        first.connection.congested(False)
        broker.run()
        assert broker.runtime.peers.outboxes.total == 2_000
        second.connection.lost()
        assert broker.runtime.peers.outboxes.total == 0

    def reasons(self, broker: Broker) -> list[dict[str, object]]:
        (answer,) = broker.control().say(type_="explain", stream="jobs", reqId=1)
        reasons: list[dict[str, object]] = answer["result"]["reasons"]
        return reasons


class TestSenders:
    """What peers have sent and what waits has the same ledger."""

    LIMITS = Limits(frame_max=100_000, envelope_max=100_000, input_total_max=150_000)

    @pytest.mark.promise(
        "Hold under hostile conditions",
        "what all peers have sent and what waits is bounded: the largest sender is cut off, counted and logged",
    )
    def test_lines_that_do_not_end_are_bounded_together(self) -> None:
        broker = Broker(limits=self.LIMITS)
        logged: list[str] = []
        inputs = broker.runtime.peers.inputs
        inputs._log = lambda event, **fields: logged.append(f"{event} {fields['sender']} {fields['bytes']}")
        peers = [broker.control() for _ in range(3)]
        for peer, size in zip(peers, (50_000, 90_000, 5_000), strict=True):
            peer.send(b"x" * size)
            broker.run()
        assert (inputs.total, inputs.cut) == (145_000, 0)
        peers[2].send(b"x" * 10_000)
        broker.run()
        assert [peer.wire.aborted for peer in peers] == [False, True, False]
        assert (inputs.total, inputs.cut) == (65_000, 1)
        assert logged == [f"sender.cut {peers[1].session.link.name()} 90000"]
        peers[0].send(b"\n")
        broker.run()
        assert inputs.total == 15_000, "an answered line waits no more"
        peers[2].gone()
        assert inputs.total == 0

    def test_a_large_line_counts_while_it_is_checked_and_carried_out(self) -> None:
        broker = Broker()
        peer = broker.control()
        items = [envelope(str(number), payload="x" * 900) for number in range(500)]
        peer.send(line(type_="enqueue", to="a", envs=items, env=items, reqId=1))
        sizes = []
        while broker.scheduler._soon:
            broker.scheduler._soon.popleft()()
            sizes.append(broker.runtime.peers.inputs.total)
        assert max(sizes) > 400_000 and sizes.count(max(sizes)) > 2 and sizes[-1] == 0
        assert peer.heard()

    def test_a_message_that_is_not_complete_counts(self) -> None:
        broker = Broker()
        peer = broker.subscribe("a")
        peer.connection.collecting(70_000)
        broker.run()
        assert broker.runtime.peers.inputs.total == 70_000
        peer.connection.collecting(0)
        broker.run()
        assert broker.runtime.peers.inputs.total == 0
