"""Spans: the ranges of offsets that tasks read, how a batch is cut into them, and the reading of one.

A span names rows, not files: whether they are in a segment or sealed is found out when it is read, by any process, any number
of times, with the same result (invariant 9).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from penstock.journal.selection import Selection
from penstock.spark.source.body_format import fit_schema
from penstock.spark.source.errors import DataLossError, GoneError, SourceError
from penstock.spark.source.location import SourceJournal
from penstock.spark.source.options import SourceOptions

PARTITION_ROWS = 256 * 1024
"""Rows of a span, about, where the query does not ask for more of them."""

_log = logging.getLogger("penstock.spark")


class JournalPartition(InputPartition):
    """Rows `first` to `end - 1` of the journal at one of a query's places."""

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
    """The spans of a batch: every range, without what is no longer kept, cut for the tasks."""
    kept = {
        journal: _kept(options, journals[journal], first, end)
        for journal, (first, end) in ranges.items()
        if first < end
    }
    partitions = []
    for journal, (first, end) in sorted(kept.items()):
        location = options.locations.index(journals[journal].location)
        seams = journals[journal].seams()
        partitions += [
            JournalPartition(location, journal, *part) for part in cut(first, end, seams, PARTITION_ROWS)
        ]
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
    """A range in parts of about so many rows, cut at seams where that is possible."""
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


def _kept(options: SourceOptions, journal: SourceJournal, first: int, end: int) -> tuple[int, int]:
    oldest = journal.bounds().first
    if first >= oldest:
        return first, end
    gone = min(oldest, end)
    what = f"rows {first} to {gone - 1} are no longer kept; the oldest is {oldest}"
    if options.fails_on_loss:
        raise GoneError(str(journal.location), first, oldest, what)
    _log.warning("%s, in the journal at %s: left out, as failOnDataLoss is false", what, journal.location)
    return gone, end


def read_partition(
    options: SourceOptions, selection: Selection, partition: JournalPartition
) -> Iterator[pa.RecordBatch]:
    """The rows of a span, with exactly the schema that the source declares."""
    journal = options.locations[partition.location].open()
    check_present(journal, partition.journal, partition.end)
    schema = options.schema
    first = partition.first
    while True:
        try:
            for batch in journal.batches(first, partition.end, options.columns, selection):
                yield fit_schema(batch, schema, options.body_as)
            return
        except GoneError:
            oldest = journal.bounds().first
            if options.fails_on_loss or oldest <= first:
                raise
            first, _ = _kept(options, journal, first, partition.end)


def check_present(journal: SourceJournal, known: str, end: int) -> None:
    """The journal is the one that was planned with, and reaches as far as it did."""
    mark = journal.mark()
    if mark.journal != known:
        raise journal_changed([known], {mark.journal: journal})
    if mark.end < end:
        raise DataLossError(
            f"rows {mark.end} to {end - 1} of the journal at {journal.location} were there and are not any more. Where the"
            " directory is a network mount, start the query again; else restore it, or start with a new checkpoint"
            " (`penstock pipeline reset` for the built-in pipeline)."
        )


def journal_changed(known: Sequence[str], found: Mapping[str, SourceJournal]) -> SourceError:
    """The error for a checkpoint of journals that are not there."""
    here = ", ".join(f"{journal.location} holds journal {one}" for one, journal in sorted(found.items()))
    return DataLossError(
        f"the checkpoint is of journal {', '.join(known)}, and {here or 'no other is there'}: the directory was made anew, or"
        " is another one. Read the directory that belongs to the checkpoint, or start with a new checkpoint"
        " (`penstock pipeline reset` for the built-in pipeline)."
    )
