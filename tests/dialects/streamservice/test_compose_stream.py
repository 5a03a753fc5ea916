"""A publisher's messages: their batches, their order, and what is kept for replay."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.dialects.streamservice.compose_stream import (
    PAYLOAD_COST,
    Batcher,
    Batching,
    Composer,
    RetentionOptions,
    batch_size,
    cost,
)
from penstock.dialects.streamservice.decode import read_block
from penstock.dialects.streamservice.messages import Complete, Heartbeat, StreamFailure, Token
from penstock.dialects.streamservice.verify_stream import Format, StreamVerifier
from tests.dialects.streamservice.attacker import keys_of

WORD = Token("word")


@pytest.mark.parametrize(("rate", "size"), [(0.0, 1), (1.0, 1), (10.0, 9), (100.0, 16), (100_000.0, 16)])
def test_the_size_of_a_batch_grows_with_the_logarithm_of_the_rate(rate: float, size: int) -> None:
    assert batch_size(rate, Batching()) == size


def test_equal_rates_make_a_step() -> None:
    step = Batching(min_batch=2, max_batch=8, min_rate=50, max_rate=50)
    assert [batch_size(rate, step) for rate in (49, 50, 51)] == [2, 8, 8]


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_batch": 0},
        {"min_batch": 5, "max_batch": 4},
        {"max_block_bytes": 0},
        {"max_delay_ms": -1},
        {"alpha": 0.0},
        {"alpha": 1.1},
    ],
)
def test_bounds_that_make_no_batch_are_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"batch|alpha"):
        Batching(**wrong)


def test_a_first_payload_is_sent_at_once() -> None:
    batcher = Batcher()
    assert batcher.add(0, WORD)
    assert batcher.take() == [WORD]
    assert (batcher.take(), batcher.due_us) == ([], None)


def test_at_a_high_rate_a_batch_is_sent_when_it_is_full_or_due() -> None:
    batcher = Batcher(Batching(max_batch=4))
    for number in range(20):  # 1,000 payloads a second
        if batcher.add(number * 1_000, WORD):
            batcher.take()
    batcher.take()
    assert [batcher.add(20_000 + number * 1_000, WORD) for number in range(4)] == [False, False, False, True]
    assert batcher.due_us == 20_000 + 30_000


def test_a_batch_ends_at_its_bytes() -> None:
    batcher = Batcher(Batching(min_batch=16, max_block_bytes=2 * (4 + PAYLOAD_COST)))
    assert [batcher.add(0, WORD), batcher.add(1, WORD)] == [False, True]


def test_a_payload_costs_its_text_in_bytes() -> None:
    assert cost(Token("é")) == 2 + PAYLOAD_COST
    assert cost(StreamFailure("ab", details="c")) == 3 + PAYLOAD_COST
    assert cost(Complete()) == cost(Heartbeat()) == PAYLOAD_COST


KEYS = keys_of("composing")
TOPIC = KEYS.topic.encode()
MS = 1_000
SIZES = {1: 1, 2: 3, 3: 5, 5: 6, 7: 7, 10: 9, 15: 10, 20: 11, 30: 12, 50: 14, 75: 15, 100: 16, 5000: 16}


class TestBatches:
    @pytest.mark.promise("Token streams: publisher and reader", "batches adapt to the rate, with a time limit")
    @pytest.mark.parametrize(("rate", "size"), SIZES.items())
    def test_sizes_follow_the_logarithm_of_the_rate(self, rate: int, size: int) -> None:
        assert batch_size(rate, Batching()) == size

    @given(st.floats(0, 1e9), st.integers(1, 50), st.integers(0, 50), st.floats(0, 200), st.floats(0, 200))
    def test_a_size_is_within_its_bounds_whatever_the_rates(
        self, rate: float, least: int, more: int, low: float, high: float
    ) -> None:
        batching = Batching(min_batch=least, max_batch=least + more, min_rate=low, max_rate=high)
        assert least <= batch_size(rate, batching) <= least + more

    def test_equal_rates_are_a_step_and_no_division_by_zero(self) -> None:
        batching = Batching(min_rate=10, max_rate=10)
        assert [batch_size(rate, batching) for rate in (9, 10, 11)] == [1, 16, 16]

    def test_the_rate_is_an_average_of_intervals_and_the_first_counts_whole(self) -> None:
        batcher = Batcher()
        batcher.add(0, Token("a"))
        batcher.add(100 * MS, Token("b"))
        assert batcher.rate == pytest.approx(10)
        batcher.add(150 * MS, Token("c"))
        assert batcher.rate == pytest.approx(0.3 * 20 + 0.7 * 10)

    def test_many_bytes_end_a_batch(self) -> None:
        batcher = Batcher(Batching(min_batch=100, max_batch=100, max_block_bytes=50))
        assert not batcher.add(0, Token("x" * 20))
        assert batcher.add(0, Token("y" * 20))

    @pytest.mark.promise("Token streams: publisher and reader", "batches adapt to the rate, with a time limit")
    def test_a_partial_batch_waits_for_a_moment_and_no_longer(self) -> None:
        composer = Composer(0, KEYS, batching=Batching(min_batch=4, max_batch=4))
        composer.add(5 * MS, Token("a"))
        composer.add(20 * MS, Token("b"))
        assert composer.due_us() == 35 * MS
        composer.step(34 * MS)
        assert composer.next() is None
        composer.step(35 * MS)
        assert [payload.text for payload in payloads(composer)] == ["a", "b"]

    @pytest.mark.parametrize("last", [Complete(), StreamFailure("x"), Heartbeat()])
    def test_an_end_and_a_heartbeat_go_at_once(self, last: Complete | StreamFailure | Heartbeat) -> None:
        composer = Composer(0, KEYS, batching=Batching(min_batch=9, max_batch=9))
        composer.add(0, Token("a"))
        composer.add(0, last)
        assert payloads(composer) == [Token("a"), last]

    def test_impossible_bounds_are_refused(self) -> None:
        for wrong in (
            {"min_batch": 0},
            {"min_batch": 5, "max_batch": 4},
            {"alpha": 0.0},
            {"max_delay_ms": -1},
        ):
            with pytest.raises(ValueError):
                Batching(**wrong)  # type: ignore[arg-type]


class TestSigns:
    def test_silence_is_filled_with_heartbeats(self) -> None:
        composer = Composer(0, KEYS)
        assert composer.due_us() == 5_000 * MS
        composer.step(5_000 * MS)
        assert payloads(composer) == [Heartbeat()]
        assert composer.due_us() == 10_000 * MS

    def test_no_heartbeats_wait_for_a_relay_that_is_gone(self) -> None:
        composer = Composer(0, KEYS)
        for at in range(1, 50):
            composer.step(at * 5_000 * MS)
        assert composer.unsent == 1

    def test_there_is_none_after_the_end_nor_where_they_are_not_wanted(self) -> None:
        composer = Composer(0, KEYS)
        composer.add(0, Complete())
        assert composer.due_us() is None
        assert Composer(0, KEYS, keeping=RetentionOptions(heartbeat_ms=0)).due_us() is None


class TestOrder:
    def test_after_the_end_nothing_is_taken(self) -> None:
        composer = Composer(0, KEYS)
        assert composer.add(0, Complete())
        assert not composer.add(0, Token("late")) and not composer.add(0, Complete())
        assert composer.unsent == 1

    @pytest.mark.promise("Token streams: publisher and reader", "a failed send breaks no chain; a full publisher waits")
    @pytest.mark.parametrize("form", ["chunk", "block"])
    def test_a_failed_send_breaks_no_chain(self, form: Format) -> None:
        """The message that could not be sent is the one that is sent next, whatever was composed meanwhile."""
        composer = Composer(0, KEYS, format=form, batching=Batching(max_batch=1))
        follower = StreamVerifier(0, KEYS)
        heard = []
        for number in range(10):
            composer.add(0, Token(str(number)))
            if number % 3:
                continue  # the send failed: the composer is not advanced
            while (parts := composer.next()) is not None:
                heard += follower.take(0, (TOPIC + parts[0],) if form == "chunk" else parts)
                composer.sent()
        assert [token.text for token in heard if isinstance(token, Token)] == [str(n) for n in range(10)]

    def test_what_was_sent_lately_goes_again_before_what_is_new(self) -> None:
        composer = Composer(0, KEYS, batching=Batching(max_batch=1), keeping=RetentionOptions(sent_max=3))
        for number in range(6):
            composer.add(0, Token(str(number)))
            if number < 5:
                composer.sent()
        composer.again()
        sent = [payloads(composer)[0] for _ in range(4)]
        assert sent == [Token("2"), Token("3"), Token("4"), Token("5")]
        assert composer.next() is None
        composer.again()
        assert composer.unsent == 3

    @pytest.mark.promise("Token streams: publisher and reader", "buffers at either end are bounded")
    def test_what_is_kept_is_bounded(self) -> None:
        keeping = RetentionOptions(unsent_max=4, sent_max=1_000, sent_bytes_max=2_000)
        composer = Composer(0, KEYS, batching=Batching(max_batch=1), keeping=keeping)
        for number in range(4):
            assert not composer.is_full
            composer.add(0, Token(str(number)))
        assert composer.is_full
        for number in range(50):
            composer.sent()
            composer.add(0, Token(str(number)))
        assert 0 < composer._sent_bytes <= 2_000

    def test_unsent_bytes_are_bounded_too(self) -> None:
        composer = Composer(0, KEYS, batching=Batching(max_batch=1), keeping=RetentionOptions(unsent_bytes_max=1_000))
        composer.add(0, Token("x" * 1_000))
        assert composer.is_full
        composer.sent()
        assert not composer.is_full


def payloads(composer: Composer) -> list:
    parts = composer.next()
    assert parts is not None
    composer.sent()
    block = read_block(parts[1])
    return block.payloads  # type: ignore[union-attr]
