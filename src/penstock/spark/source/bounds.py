"""Where a query begins and ends in each journal, from its options."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.spark.source.errors import SourceError
from penstock.spark.source.location import SourceJournal
from penstock.spark.source.offsets import EARLIEST, LATEST, Point, Points
from penstock.spark.source.options import SourceOptions


def starting(options: SourceOptions, journals: Mapping[str, SourceJournal], default: int) -> Points:
    """The first row of each journal that a new query reads."""
    return _points("startingOffsets", options.starting, options.starting_us, journals, default)


def ending(options: SourceOptions, journals: Mapping[str, SourceJournal]) -> Points:
    """The row behind the last of each journal that a batch read gives."""
    return _points("endingOffsets", options.ending, options.ending_us, journals, LATEST)


def _points(
    option: str,
    given: Points | int | None,
    time_us: int | None,
    journals: Mapping[str, SourceJournal],
    default: int,
) -> Points:
    if isinstance(given, dict):
        _check_same(option, given, journals)
    points: Points = {}
    for one, journal in journals.items():
        bounds = journal.bounds()
        if time_us is not None:
            points[one] = Point(journal.offset_at(time_us), bounds.epoch)
            continue
        wanted = given[one].offset if isinstance(given, dict) else default if given is None else given
        if wanted > bounds.end:
            raise SourceError(
                f"`{option}` is {wanted} for the journal at {journal.location}, which ends at {bounds.end}; begin or end there"
                " or before"
            )
        named = {EARLIEST: bounds.first, LATEST: bounds.end}
        points[one] = Point(named.get(wanted, wanted), bounds.epoch)
    return points


def _check_same(option: str, given: Points, journals: Mapping[str, SourceJournal]) -> None:
    """Offsets are given for the very journals that are read: a journal that was forgotten is no journal to skip."""
    unknown = sorted(set(given) - set(journals))
    missing = sorted(set(journals) - set(given))
    here = ", ".join(f"{journal.location} is journal {one}" for one, journal in sorted(journals.items()))
    if unknown:
        raise SourceError(f"`{option}` names journal {unknown[0]}, which is not read here; {here}")
    if missing:
        raise SourceError(f"`{option}` says nothing of journal {missing[0]}; {here}")
