"""Which offsets a query reads, from its options, how they are cut into partitions, and how a task reads one.

A partition names rows, not files: any process can read it any number of times with the same result (invariant 9), whether the rows are
still in a segment or sealed by then. A body that does not fit the form that the query asked for is null, never an error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from penstock.journal.selection import Selection
from penstock.spark.errors import DataLossError, GoneError, JournalChangedError, SourceError
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
    option: str, given: Points | int | None, time_us: int | None, journals: Mapping[str, SourceJournal], default: int
) -> Points:
    if isinstance(given, dict) and given.keys() != journals.keys():  # a forgotten one must not be skipped silently
        here = ", ".join(f"{journal.location} is journal {one}" for one, journal in sorted(journals.items()))
        for unknown in sorted(given.keys() - journals.keys()):
            raise SourceError(f"`{option}` names journal {unknown}, which is not read here", here)
        raise SourceError(f"`{option}` has no offset for journal {min(journals.keys() - given.keys())}", here)
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

    def parts(rows: int, *, at_seams: bool) -> list[JournalPartition]:
        return [
            JournalPartition(options.locations.index(journals[one].location), one, *part)
            for one, (first, end) in sorted(kept.items())
            for part in cut(first, end, journals[one].seams() if at_seams else [], rows)
        ]

    partitions = parts(PARTITION_ROWS, at_seams=True)
    wanted, total = options.partitions_min or 0, sum(end - first for first, end in kept.values())
    return partitions if len(partitions) >= min(wanted, total) else parts(max(1, total // wanted), at_seams=False)


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


_JSON = msgspec.json.Decoder(msgspec.Raw)


def read_partition(
    options: SourceOptions, selection: Selection, partition: JournalPartition
) -> Iterator[pa.RecordBatch]:
    """The rows of a partition, with exactly the schema that the source declares."""
    journal = options.locations[partition.location].open()
    check_present(journal, partition.journal, partition.end)
    schema = options.schema
    first = partition.first
    # Retention may remove rows while the task reads: then skip them too, if the query allows it.
    while True:
        try:
            for batch in journal.batches(first, partition.end, options.columns, selection):
                yield fit_schema(batch, schema, options.body_as)
            return
        except GoneError:
            oldest = journal.bounds().first
            if options.fails_on_loss or oldest <= first:
                raise
            first, _ = without_gone(options, journal, first, partition.end)


def check_present(journal: SourceJournal, known: str, end: int) -> None:
    """Check that the journal is still the one of the plan, and still has the rows before `end`."""
    mark = journal.mark()
    if mark.journal != known:
        raise journal_changed([known], {mark.journal: journal})
    if mark.end < end:
        raise DataLossError(
            f"rows {mark.end} to {end - 1} of the journal at {journal.location} have disappeared. If the"
            " directory is a network mount, start the query again; otherwise restore it, or start with a new checkpoint"
            " (`penstock pipeline reset` for the built-in pipeline)."
        )


def journal_changed(known: Sequence[str], found: Mapping[str, SourceJournal]) -> SourceError:
    """The error for a checkpoint of journals that do not exist here."""
    here = ", ".join(f"{journal.location} holds journal {one}" for one, journal in sorted(found.items()))
    return JournalChangedError(
        f"the checkpoint is of journal {', '.join(known)}, but {here or 'no journal is here'}: the directory was recreated, or"
        " is another one. Read the directory that belongs to the checkpoint, or start with a new checkpoint"
        " (`penstock pipeline reset` for the built-in pipeline)."
    )


def fit_schema(batch: pa.RecordBatch, schema: pa.Schema, body_as: str) -> pa.RecordBatch:
    """A batch with exactly this schema, its bodies converted."""
    if body_as == "binary" or "body" not in schema.names:
        return batch if batch.schema.equals(schema) else batch.cast(schema)
    index = schema.get_field_index("body")
    convert: Callable[[pa.Array], pa.Array] = texts if body_as == "string" else json_texts
    return pa.RecordBatch.from_arrays(
        [convert(column) if number == index else column for number, column in enumerate(batch.columns)], schema=schema
    )


def texts(bodies: pa.Array) -> pa.Array:
    """Bodies as text; null if the bytes are not UTF-8."""
    try:
        return bodies.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([_text(body) for body in bodies.to_pylist()], pa.string())


def json_texts(bodies: pa.Array) -> pa.Array:
    """Bodies as text; null if they are not a JSON value."""
    decoded = texts(bodies)
    return pa.array([text if _is_json(text) else None for text in decoded.to_pylist()], pa.string())


def _text(body: bytes | None) -> str | None:
    try:
        return None if body is None else body.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _is_json(text: str | None) -> bool:
    try:
        _JSON.decode(text or "")
    except (msgspec.DecodeError, RecursionError):
        return False
    return True
