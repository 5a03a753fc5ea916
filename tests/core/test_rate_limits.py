"""Token buckets: the bound on any sequence of requests, and a sender within its rate is never rejected."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.core.rate_limits import Meter, Rate, Rates
from penstock.core.scopes import ANONYMOUS, OPERATOR, Principal

SAM = Principal("sam")
START_US = 10**12

rates = st.builds(
    Rate,
    count=st.integers(1, 1_000),
    period_us=st.sampled_from([1_000, 999_983, 1_000_000, 60_000_000]),
    burst=st.integers(1, 20),
)


def meter_of(rate: Rate, *, stream: Rate | None = None, **options: int) -> Meter:
    return Meter(Rates(token=rate, address=rate), lambda _: stream, **options)


def offer(meter: Meter, now_us: int, count: int = 1, who: Principal = SAM, address: str = "") -> bool:
    """Bring envelopes in, if they may come."""
    if meter.check(now_us, who, address, "s", count) is not None:
        return False
    meter.charge(now_us, who, address, "s", count)
    return True


@pytest.mark.promise(
    "Limits, reload and HTTP details",
    "no more than burst and rate are accepted over any time; a paced sender is never rejected, even if the clock steps",
)
@given(
    rates,
    st.lists(st.tuples(st.integers(0, 3) | st.integers(0, 3_000_000), st.integers(1, 20)), max_size=40),
)
@example(Rate(3, 10, 1), [(0, 1), (2, 1), (2, 1), (2, 1), (3, 1)])
def test_over_any_time_no_more_than_the_burst_and_the_rate_comes_in(rate: Rate, asked: list[tuple[int, int]]) -> None:
    meter = meter_of(rate)
    now_us = START_US
    admitted: list[tuple[int, int]] = []
    for gap_us, count in asked:
        now_us += gap_us
        if offer(meter, now_us, count):
            admitted.append((now_us, count))
    for first in range(len(admitted)):
        total = 0
        for at_us, count in admitted[first:]:
            total += count
            span_us = at_us - admitted[first][0] + 1
            assert total <= rate.burst + Fraction(rate.count * span_us, rate.period_us)


@pytest.mark.promise(
    "Limits, reload and HTTP details",
    "no more than burst and rate are accepted over any time; a paced sender is never rejected, even if the clock steps",
)
@given(
    rates,
    st.fractions(0, 1),
    st.lists(st.one_of(st.just(Fraction(0)), st.fractions(0, 10**7)), min_size=1, max_size=60),
)
def test_a_sender_within_its_rate_is_never_rejected(rate: Rate, start: Fraction, pauses: list[Fraction]) -> None:
    """Times are exact; what the server reads is the whole microsecond before."""
    meter = meter_of(rate)
    at_us = START_US + start
    for pause_us in pauses:
        assert offer(meter, int(at_us)), "a paced sender was refused"
        at_us += Fraction(rate.period_us, rate.count) + pause_us


@pytest.mark.promise(
    "Limits, reload and HTTP details",
    "`retryAfterMs` is exact; a request larger than the burst is reported as never fitting",
)
@given(rates, st.integers(1, 20), st.integers(0, 5_000_000))
def test_after_the_reported_time_it_fits_and_a_millisecond_before_it_does_not(
    rate: Rate, count: int, gap_us: int
) -> None:
    meter = meter_of(rate)
    count = min(count, rate.burst)
    while offer(meter, START_US, count):
        pass
    now_us = START_US + gap_us
    refusal = meter.check(now_us, SAM, "", "s", count)
    if refusal is None:
        return
    assert refusal.code == "RateLimited"
    assert refusal.retry_after_ms is not None and refusal.retry_after_ms >= 1
    assert meter.check(now_us + (refusal.retry_after_ms - 1) * 1000, SAM, "", "s", count) is not None
    later = meter_of(rate)
    while offer(later, START_US, count):
        pass
    assert offer(later, now_us + refusal.retry_after_ms * 1000, count)


@pytest.mark.promise(
    "Limits, reload and HTTP details",
    "no more than burst and rate are accepted over any time; a paced sender is never rejected, even if the clock steps",
)
@given(rates, st.lists(st.tuples(st.integers(-(10**9), 10**9), st.integers(1, 5)), max_size=40))
def test_steps_of_the_clock_grant_nothing_and_lock_no_sender_out(rate: Rate, asked: list[tuple[int, int]]) -> None:
    meter = meter_of(rate)
    now_us = START_US
    times, total = [now_us], 0
    for step_us, count in asked:
        now_us += step_us
        times.append(now_us)
        total += count if offer(meter, now_us, count) else 0
    forward_us = sum(max(0, after - before) for before, after in pairwise(times))
    assert total <= rate.burst + Fraction(rate.count * (forward_us + 1), rate.period_us)
    # However far back it went, the time of one full bucket is enough for another burst.
    whole_us = -(-rate.burst * rate.period_us // rate.count)
    assert offer(meter, now_us + whole_us, rate.burst)


@pytest.mark.promise("Limits, reload and HTTP details", "a rejection has no side effect: all buckets are checked first")
@given(rates, st.integers(1, 20), st.integers(1, 30))
def test_asking_changes_nothing(rate: Rate, used: int, asked: int) -> None:
    meter = meter_of(rate, stream=Rate(1, 1_000_000, 5))
    for _ in range(used):
        offer(meter, START_US)
    before = meter.room(START_US, SAM, "", "s")
    for _ in range(3):
        meter.check(START_US, SAM, "", "s", asked)
        meter.check(START_US, SAM, "", "other", asked)
    assert meter.room(START_US, SAM, "", "s") == before


@pytest.mark.promise("Limits, reload and HTTP details", "a rejection has no side effect: all buckets are checked first")
def test_all_buckets_are_asked_before_any_is_charged() -> None:
    """A full stream costs its sender nothing, and a sender without tokens costs the stream nothing."""
    meter = meter_of(Rate(1, 1_000_000, 3), stream=Rate(1, 1_000_000, 2))
    assert offer(meter, START_US, 2)
    assert not offer(meter, START_US)
    assert meter.room(START_US, SAM, "", "another") == 1
    assert offer(meter, START_US, 1, Principal("ann"), "") is False
    refusal = meter.check(START_US, SAM, "", "s", 1)
    assert refusal is not None and refusal.ref == "s" and refusal.retry_after_ms == 1_000


@pytest.mark.promise(
    "Limits, reload and HTTP details",
    "`retryAfterMs` is exact; a request larger than the burst is reported as never fitting",
)
def test_more_than_a_burst_says_that_it_never_fits() -> None:
    meter = meter_of(Rate(1, 1_000_000, 3))
    refusal = meter.check(START_US, SAM, "", "s", 4)
    assert refusal is not None and refusal.code == "TooLarge" and not refusal.kind.retryable
    assert "at most 3" in (refusal.hint or "")
    assert meter.refused == 4


def test_what_cannot_be_divided_waits_for_a_full_bucket_and_is_charged_whole() -> None:
    meter = meter_of(Rate(1, 1_000_000, 3))
    assert meter.check(START_US, SAM, "", None, 10, whole=True) is None
    meter.charge(START_US, SAM, "", None, 10)
    refusal = meter.check(START_US, SAM, "", None, 10, whole=True)
    assert refusal is not None and refusal.retry_after_ms == 10_000
    assert meter.check(START_US + 10_000_000, SAM, "", None, 10, whole=True) is None


def test_each_payer_has_a_bucket_of_its_own() -> None:
    slow, quick = Rate(1, 1_000_000, 1), Rate(1, 1_000_000, 5)
    meter = Meter(Rates(token=slow, address=slow, named={"quick": quick}), lambda _: None)
    assert offer(meter, START_US) and not offer(meter, START_US)
    assert offer(meter, START_US, 5, Principal("quick"))
    assert offer(meter, START_US, 1, ANONYMOUS, "10.0.0.1")
    assert not offer(meter, START_US, 1, ANONYMOUS, "10.0.0.1")
    assert offer(meter, START_US, 1, ANONYMOUS, "10.0.0.2")
    assert all(offer(meter, START_US, 100, OPERATOR) for _ in range(3))
    assert meter.room(START_US, OPERATOR, "", "s") is None


def test_a_token_is_not_counted_by_its_address() -> None:
    meter = Meter(Rates(address=Rate(1, 1_000_000, 1)), lambda _: None)
    assert all(offer(meter, START_US, 1, SAM, "10.0.0.1") for _ in range(5))


@pytest.mark.promise("Limits, reload and HTTP details", "idle buckets are evicted, and their number is bounded")
def test_idle_buckets_go_and_their_number_is_bounded() -> None:
    meter = meter_of(Rate(1, 1_000, 1), buckets_max=10)
    for number in range(500):  # each is full again before the next comes
        assert offer(meter, START_US + number * 1_000, 1, Principal(f"p{number}"))
    assert len(meter) <= 3 and meter.forgotten == 0
    for number in range(500):
        assert offer(meter, START_US + 10**9, 1, Principal(f"q{number}"))
    assert len(meter) == 10 and meter.forgotten > 0


@pytest.mark.promise("Limits, reload and HTTP details", "idle buckets are evicted, and their number is bounded")
def test_a_bucket_that_fills_slowly_keeps_no_idle_one_alive() -> None:
    rates = Rates(token=Rate(1, 1_000, 1), named={"slow": Rate(1, 10**12, 1)})
    meter = Meter(rates, lambda _: None)
    assert offer(meter, START_US, 1, Principal("slow"))
    for number in range(500):
        assert offer(meter, START_US + number * 1_000, 1, Principal(f"p{number}"))
    assert len(meter) <= 5
    assert not offer(meter, START_US + 500_000, 1, Principal("slow"))


def test_another_rate_keeps_what_is_owed() -> None:
    meter = meter_of(Rate(1, 1_000_000, 4))
    assert offer(meter, START_US, 3)
    meter.rates = Rates(token=Rate(7, 60_000_000, 5))
    assert meter.room(START_US, SAM, "", "s") == 2
    meter.rates = Rates(token=Rate(1, 1_000_000, 2))
    assert meter.room(START_US, SAM, "", "s") == 0
    assert offer(meter, START_US + 2_000_000, 2)


@pytest.mark.parametrize(
    ("per_second", "count", "period_us"),
    [(10, 10, 1_000_000), (0.5, 1, 2_000_000), (100 * 1000 / 60_000, 5, 3_000_000), (1 / 3, 1, 3_000_000)],
)
def test_a_rate_written_a_second_is_exact(per_second: float, count: int, period_us: int) -> None:
    assert Rate.per_second(per_second, 1) == Rate(count, period_us, 1)
