"""Which minutes new rows can change, and when a minute is final."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.lake_tables.minutes import GRACE_US, MINUTE_US, floor_minute, is_final, reach_us
from tests.spark.journaled import MINUTE_0

times = st.integers(MINUTE_0, MINUTE_0 + 20 * MINUTE_US)


@given(last_us=times, later_us=times, back_us=st.integers(0, MINUTE_US + GRACE_US - 1))
def test_no_row_changes_a_minute_before_the_reach_nor_a_final_one(last_us: int, later_us: int, back_us: int) -> None:
    """A row counts for its own minute or, as a gauge, for one that ended less than the grace before it."""
    at_us = max(last_us, later_us)
    for minute_us in (floor_minute(at_us), floor_minute(at_us - back_us)):
        if at_us < minute_us + MINUTE_US + GRACE_US:
            assert minute_us >= reach_us(last_us)
            assert not is_final(minute_us, last_us) or at_us == last_us


@given(last_us=times)
def test_the_reach_covers_every_minute_that_is_not_final_and_not_many_more(last_us: int) -> None:
    reach = reach_us(last_us)
    assert reach % MINUTE_US == 0
    assert is_final(reach - MINUTE_US, last_us)
    assert last_us - reach < 2 * MINUTE_US + GRACE_US
