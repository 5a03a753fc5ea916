"""A channel's order, its window of ids, and its counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.queue.channel import Channel
from penstock.core.queue.policy import Policy
from penstock.core.queue.ready_order import SeqOrder
from penstock.core.records import DELAYED, GONE, HELD, LEASED, READY, Record
from tests.core.driving import record_of


def numbered(*seqs: int) -> list[Record]:
    return [record_of(f"e{seq}", seq=seq) for seq in seqs]


def live(channel: Channel, record: Record) -> Record:
    """Put a record into a channel as an admission would."""
    record.channel = channel
    channel.live[record.id] = record
    channel.bytes += len(record.body)
    channel.counters.in_ += 1
    return record


class TestHeadFirst:
    @given(st.permutations(range(1, 9)))
    def test_gives_the_smallest_number_first_whatever_the_order(self, seqs: list[int]) -> None:
        ready = SeqOrder()
        for n, record in enumerate(numbered(*seqs)):
            (ready.appendleft if n % 2 else ready.append)(record)
        assert [record.seq for record in ready] == list(range(1, 9))
        assert [ready.popleft().seq for _ in range(8)] == list(range(1, 9))
        assert len(ready) == 0

    @given(st.permutations(range(1, 9)), st.integers(0, 7))
    def test_removing_one_keeps_the_order_of_the_rest(self, seqs: list[int], index: int) -> None:
        ready = SeqOrder()
        records = numbered(*seqs)
        for record in records:
            ready.append(record)
        ready.remove(records[index])
        assert [ready.popleft().seq for _ in range(7)] == sorted(set(seqs) - {seqs[index]})

    def test_clear(self) -> None:
        ready = SeqOrder()
        ready.append(numbered(1)[0])
        ready.clear()
        assert len(ready) == 0 and list(ready) == []


@pytest.mark.parametrize("redelivery", ["tail", "head"])
def test_a_record_is_counted_in_one_state_at_a_time(redelivery: str) -> None:
    channel = Channel("a", Policy(redelivery=redelivery))  # type: ignore[arg-type]
    record = live(channel, record_of("1", seq=1))
    channel.make_ready(record, 0)
    assert (record.state, len(channel.ready), channel.balance) == (READY, 1, 0)
    channel.leave(record)
    channel.make_delayed(record)
    assert (record.state, len(channel.ready), channel.delayed, channel.balance) == (DELAYED, 0, 1, 0)
    channel.leave(record)
    channel.make_held(record)
    assert (record.state, channel.delayed, channel.held, channel.balance) == (HELD, 0, 1, 0)
    channel.leave(record)
    record.state, channel.leased = LEASED, 1  # as the dispatch does, for many at a time
    assert (channel.held, channel.leased, channel.balance) == (0, 1, 0)
    channel.leave(record)
    assert channel.leased == 0


def test_the_balance_shows_a_miscount() -> None:
    channel = Channel("a", Policy())
    channel.make_ready(live(channel, record_of("1", seq=1)), 0)
    channel.counters.ack += 1
    assert channel.balance == -1


class TestWindow:
    def settled(self, channel: Channel, id_: str, at_us: int, decided: int = 9) -> Record:
        record = live(channel, record_of(id_, seq=channel.seq + 1))
        channel.seq += 1
        channel.counters.ack += 1
        channel.remember([record], "acked", at_us, 7)
        channel.trim(at_us, decided)
        return record

    def test_remembers_what_a_settled_record_was(self) -> None:
        channel = Channel("a", Policy())
        record = self.settled(channel, "1", 100)
        seen = channel.settled["1"]
        assert (seen.seq, seen.settled_us, seen.outcome, seen.batch) == (1, 100, "acked", 7)
        assert (record.state, channel.live, channel.bytes) == (GONE, {}, 0)

    def test_forgets_by_count_and_says_how_many(self) -> None:
        channel = Channel("a", Policy(dedup_count=3))
        for n in range(5):
            self.settled(channel, str(n), 100)
        assert list(channel.settled) == ["2", "3", "4"]
        assert channel.trim(100, 9, keep=1) == 2
        assert list(channel.order) == ["4"]

    def test_forgets_by_age(self) -> None:
        channel = Channel("a", Policy(dedup_us=50))
        self.settled(channel, "1", 100)
        self.settled(channel, "2", 120)
        assert channel.trim(149, 9) == 0
        assert channel.trim(150, 9) == 1
        assert list(channel.settled) == ["2"]

    def test_nothing_is_remembered_when_the_window_is_zero(self) -> None:
        channel = Channel("a", Policy(dedup_count=0))
        self.settled(channel, "1", 100)
        assert channel.settled == {}

    def test_a_settle_that_may_still_be_refused_is_not_forgotten(self) -> None:
        channel = Channel("a", Policy(dedup_count=0))
        self.settled(channel, "1", 100, decided=6)
        assert list(channel.settled) == ["1"]
        assert not channel.is_decided(6)
        assert channel.is_decided(7)
        assert channel.trim(100, 7) == 1
        assert channel.settled == {}

    def test_an_id_can_be_let_in_again(self) -> None:
        channel = Channel("a", Policy())
        for id_ in "123":
            self.settled(channel, id_, 100)
        channel.unsettle("2")
        assert list(channel.settled) == list(channel.order) == ["1", "3"]

    def test_recall_undoes_remember(self) -> None:
        channel = Channel("a", Policy())
        record = self.settled(channel, "1", 100)
        channel.recall(record)
        assert (channel.live, list(channel.order)) == ({"1": record}, [])
        assert channel.bytes == len(record.body)

    def test_recall_works_after_the_window_forgot(self) -> None:
        channel = Channel("a", Policy(dedup_count=0))
        record = self.settled(channel, "1", 100)
        channel.recall(record)
        assert channel.live == {"1": record}
