"""Rates and latencies over sliding windows, in fixed memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.queue.counters import Counters, Latencies, MinuteRate, bucket_of, bucket_us

S = 1_000_000


class TestRate:
    def test_is_a_mean_over_ten_seconds_not_a_total(self) -> None:
        rate = MinuteRate()
        for second in range(100, 120):
            rate.add(second * S, 5)
        assert rate.per_second(120 * S) == 5.0

    def test_leaves_out_the_second_that_is_not_over(self) -> None:
        rate = MinuteRate()
        rate.add(100 * S, 10)
        assert rate.per_second(100 * S + S - 1) == 0.0
        assert rate.per_second(101 * S) == 1.0

    def test_forgets_after_the_window(self) -> None:
        rate = MinuteRate()
        rate.add(100 * S, 10)
        assert rate.per_second(110 * S) == 1.0
        assert rate.per_second(111 * S) == 0.0
        assert rate.per_second(10**6 * S) == 0.0

    def test_a_long_silence_leaves_nothing_behind(self) -> None:
        rate = MinuteRate()
        for second in range(100, 111):
            rate.add(second * S, 7)
        rate.add(500 * S, 10)
        assert rate.per_second(501 * S) == 1.0

    @given(st.lists(st.tuples(st.integers(0, 30 * S), st.integers(1, 50)), max_size=40))
    def test_agrees_with_a_plain_count(self, gaps: list[tuple[int, int]]) -> None:
        rate = MinuteRate()
        now = 10**9
        events: list[tuple[int, int]] = []
        for gap, n in gaps:
            now += gap
            rate.add(now, n)
            events.append((now // S, n))
        second = now // S
        expected = sum(n for when, n in events if second - 10 <= when < second) / 10
        assert rate.per_second(now) == pytest.approx(expected)


class TestBuckets:
    @given(st.integers(0, 2**36))
    def test_a_bucket_is_within_an_eighth_and_never_flatters(self, us: int) -> None:
        upper = bucket_us(bucket_of(us))
        assert us <= upper <= us * 1.125 + 1

    @given(st.integers(0, 2**38), st.integers(0, 2**38))
    def test_buckets_are_in_order(self, one: int, other: int) -> None:
        low, high = sorted((one, other))
        assert bucket_of(low) <= bucket_of(high)

    @pytest.mark.parametrize("us", [-5, 2**62])
    def test_nonsense_lands_in_the_outer_buckets(self, us: int) -> None:
        assert 0 <= bucket_of(us) < 36 * 8


class TestLatencies:
    def test_an_empty_window_is_zero(self) -> None:
        assert Latencies().percentiles_us(10**9, (0.5, 0.99)) == [0, 0]

    def test_percentiles(self) -> None:
        latencies = Latencies()
        now = 10**9
        for ms in range(1, 101):
            latencies.add(now, ms * 1000)
        p50, p95, p99 = latencies.percentiles_us(now, (0.5, 0.95, 0.99))
        assert 50_000 <= p50 <= 57_000
        assert 95_000 <= p95 <= 107_000
        assert 99_000 <= p99 <= 112_000

    def test_a_window_covers_its_half_and_the_one_before(self) -> None:
        latencies = Latencies()
        start = 60 * S * 1000
        latencies.add(start, 1000)
        assert latencies.percentiles_us(start + 59 * S, (0.5,)) != [0]
        assert latencies.percentiles_us(start + 60 * S, (0.5,)) == [0]

    def test_a_long_silence_empties_it(self) -> None:
        latencies = Latencies()
        latencies.add(10**9, 3)
        assert latencies.percentiles_us(10**12, (0.5,)) == [0]


def test_settled_is_every_way_out_and_nothing_else() -> None:
    counters = Counters(in_=1, out=2, re=4, ack=10, nack=20, dead=100, drop=1000, purged=10_000, moved=100_000)
    assert counters.settled == 111_110
