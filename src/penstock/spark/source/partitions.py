"""Which offsets a query reads, from its options, and how they are cut into partitions for the tasks.

A partition names rows, not files: any process can read it any number of times with the same result (invariant 9), whether the rows are
still in a segment or sealed by then. Runs on the driver.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import pairwise

from pyspark.sql.datasource import InputPartition

from penstock.spark.errors import GoneError, SourceError
from penstock.spark.location import SourceJournal
from penstock.spark.source.offsets import EARLIEST, LATEST, Point, Points
from penstock.spark.source.options import SourceOptions

PARTITION_ROWS = 256 * 1024
"""Rows of a partition, about, unless the query asks for more partitions."""

_log = logging.getLogger("penstock.spark")


def starting(options: SourceOptions, journals: Mapping[str, SourceJournal], default: int) -> Points:
    """The first row of each journal for a new query."""
    return _points("startingOffsets", options.starting, options.starting_us, journals, default)


def ending(options: SourceOptions, journals: Mapping[str, SourceJournal]) -> Points:
    """The end (exclusive) of each journal for a batch read."""
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
                f"`{option}` is {wanted} for the journal at {journal.location}, which ends at {bounds.end}",
                "begin or end there or before",
            )
        named = {EARLIEST: bounds.first, LATEST: bounds.end}
        points[one] = Point(named.get(wanted, wanted), bounds.epoch)
    return points


def _check_same(option: str, given: Points, journals: Mapping[str, SourceJournal]) -> None:
    """Require offsets for exactly the journals that are read: a forgotten one must not be skipped silently."""
    unknown = sorted(set(given) - set(journals))
    missing = sorted(set(journals) - set(given))
    here = ", ".join(f"{journal.location} is journal {one}" for one, journal in sorted(journals.items()))
    if unknown:
        raise SourceError(f"`{option}` names journal {unknown[0]}, which is not read here", f"{here}")
    if missing:
        raise SourceError(f"`{option}` has no offset for journal {missing[0]}", f"{here}")


class JournalPartition(InputPartition):
    """Rows `first` to `end - 1` of the journal at one of the query's locations."""

    def __init__(self, location: int, journal: str, first: int, end: int) -> None:
        super().__init__(None)
        self.location = location
        self.journal = journal
        self.first = first
        self.end = end

    def __repr__(self) -> str:
        return f"JournalPartition({self.journal}, {self.first} to {self.end - 1})"


def plan(
    options: SourceOptions, journals: Mapping[str, SourceJournal], ranges: Mapping[str, tuple[int, int]]
) -> list[JournalPartition]:
    """The partitions of a batch: every range, without rows that are no longer kept, cut for the tasks."""
    kept = {
        journal: without_gone(options, journals[journal], first, end)
        for journal, (first, end) in ranges.items()
        if first < end
    }
    partitions = []
    for journal, (first, end) in sorted(kept.items()):
        location = options.locations.index(journals[journal].location)
        seams = journals[journal].seams()
        partitions += [JournalPartition(location, journal, *part) for part in cut(first, end, seams, PARTITION_ROWS)]
    wanted = options.partitions_min or 0
    total = sum(end - first for first, end in kept.values())
    if len(partitions) < min(wanted, total):
        return [
            JournalPartition(options.locations.index(journals[journal].location), journal, *part)
            for journal, (first, end) in sorted(kept.items())
            for part in cut(first, end, [], max(1, total // wanted))
        ]
    return partitions


def cut(first: int, end: int, seams: Sequence[int], rows: int) -> list[tuple[int, int]]:
    """Cut a range into parts of about `rows` rows, at seams (segment and file boundaries) where possible."""
    points = [first, *(seam for seam in seams if first < seam < end), end]
    parts: list[tuple[int, int]] = []
    begin = first
    slack = rows // 2 if len(points) > 2 else 0
    for point, following in zip(points[1:], [*points[2:], None], strict=True):
        if following is not None and following - begin <= rows:
            continue
        count = -(-(point - begin) // rows) if point - begin > rows + slack else 1
        edges = [begin + (point - begin) * number // count for number in range(count + 1)]
        parts += [part for part in pairwise(edges) if part[0] < part[1]]
        begin = point
    return parts


def without_gone(options: SourceOptions, journal: SourceJournal, first: int, end: int) -> tuple[int, int]:
    oldest = journal.bounds().first
    if first >= oldest:
        return first, end
    gone = min(oldest, end)
    what = f"rows {first} to {gone - 1} are no longer kept; the oldest is {oldest}"
    if options.fails_on_loss:
        raise GoneError(str(journal.location), first, oldest, what)
    _log.warning("%s, in the journal at %s: skipped, because failOnDataLoss is false", what, journal.location)
    return gone, end
