"""The collector without Spark: means of the readings of a window."""

from __future__ import annotations

from penstock.demo import means


def test_a_window_is_reported_with_the_first_reading_after_it() -> None:
    windows = means.Windows()
    told = [
        found
        for at_s, celsius in ((10.0, 1.0), (11.9, 3.0), (12.0, 5.0), (13.0, 7.0), (20.0, 9.0))
        for found in windows.add(at_s, "sensor-1", celsius)
    ]
    assert [(one["from"], one["celsius"], one["readings"]) for one in told] == [
        ("1970-01-01T00:00:10+00:00", 2.0, 2),
        ("1970-01-01T00:00:12+00:00", 6.0, 2),
    ]
