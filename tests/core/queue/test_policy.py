"""Back-off grows by its factor and stops at its maximum; jitter only shortens it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.queue.policy import DEFAULT_RETRY, Policy, Retry, default_policy


@pytest.mark.parametrize(
    ("failures", "delay_us"), [(0, 1000), (1, 1000), (2, 2000), (3, 4000), (4, 8000), (5, 9000), (60, 9000)]
)
def test_doubles_up_to_the_maximum(failures: int, delay_us: int) -> None:
    assert Retry(base_us=1000, max_us=9000).delay_us(failures, 0.5) == delay_us


def test_a_base_above_the_maximum_is_the_maximum() -> None:
    assert Retry(base_us=1000, max_us=10).delay_us(1, 0.0) == 10


def test_a_huge_count_costs_no_overflow() -> None:
    assert Retry(base_us=1, factor=1e9, max_us=5).delay_us(10**6, 0.0) == 5


@given(st.integers(1, 50), st.floats(0, 1), st.floats(0, 1))
def test_jitter_takes_away_at_most_its_share(failures: int, jitter: float, draw: float) -> None:
    whole = Retry(base_us=1000).delay_us(failures, 0.0)
    delay = Retry(base_us=1000, jitter=jitter).delay_us(failures, draw)
    assert whole * (1 - jitter) - 1 <= delay <= whole


def test_the_defaults_are_the_seeds() -> None:
    policy = Policy()
    assert (policy.lease_us, policy.max_depth, policy.redelivery) == (30_000_000, 100_000, "tail")
    assert (policy.overflow, policy.late_ack) == ("reject", "reject")
    assert (policy.dedup_count, policy.dedup_us) == (10_000, 600_000_000)


@pytest.mark.promise("Delivery", "the first five redeliveries follow at once, then a back-off of 1 s doubles to 5 min")
def test_the_default_back_off() -> None:
    policy = Policy()
    assert (policy.max_deliveries, policy.max_abandoned, policy.retry) == (20, 100, DEFAULT_RETRY)
    seconds = [DEFAULT_RETRY.delay_us(failures, 0.0) / 1_000_000 for failures in range(1, 12)]
    assert (DEFAULT_RETRY.immediate, seconds) == (5, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300])


def test_by_default_a_dead_letter_is_never_given_up() -> None:
    for name in ("dlq/a", "t/acme/dlq/a"):
        assert (default_policy(name).max_deliveries, default_policy(name).max_abandoned) == (0, 0)
    assert default_policy("a") == default_policy("t/acme/a") == Policy()
