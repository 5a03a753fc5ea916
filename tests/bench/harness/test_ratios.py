"""The statistics of a comparison: order of the pairs, the median ratio and its interval."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bench.harness.ratios import Ratio, compute_ratio, order_of

TIMES = st.floats(1.0, 100.0)


def test_the_sides_alternate_so_that_drift_cancels():
    flat = [side for pair in range(4) for side in order_of(pair)]
    assert flat == ["old", "new", "new", "old", "old", "new", "new", "old"]
    places = {side: [place for place, one in enumerate(flat) if one == side] for side in ("old", "new")}
    assert sum(places["old"]) == sum(places["new"])


def test_equal_samples_have_a_ratio_of_one_without_width():
    assert compute_ratio([5.0, 7.0, 6.0], [5.0, 7.0, 6.0]) == Ratio(1.0, 1.0, 1.0)


def test_a_constant_factor_is_found_whatever_the_pairs_share():
    old = [5.0, 9.0, 4.0, 7.0]
    assert compute_ratio(old, [1.25 * value for value in old]) == Ratio(1.25, 1.25, 1.25)


@given(st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=15))
def test_the_interval_holds_the_median_and_is_the_same_each_time(samples):
    old, new = [before for before, _ in samples], [after for _, after in samples]
    found = compute_ratio(old, new)
    ratios = [after / before for before, after in samples]
    assert min(ratios) - 1e-4 <= found.low <= found.median <= found.high <= max(ratios) + 1e-4
    assert compute_ratio(old, new) == found


def test_an_outlier_widens_the_interval_and_leaves_the_median():
    found = compute_ratio([10.0] * 11, [10.0] * 8 + [30.0] * 3)
    assert found.median == found.low == 1.0 and found.high == 3.0 and not found.is_above(1.0)


def test_only_a_whole_interval_above_the_limit_counts():
    assert Ratio(1.05, 1.031, 1.08).is_above(1.03)
    assert not Ratio(1.05, 1.03, 1.08).is_above(1.03)


@pytest.mark.parametrize(("old", "new"), [([], []), ([1.0], [1.0, 2.0])])
def test_samples_that_are_no_pairs_are_refused(old, new):
    with pytest.raises(ValueError, match="no pairs"):
        compute_ratio(old, new)
