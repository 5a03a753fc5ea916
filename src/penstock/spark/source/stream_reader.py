"""The streaming reader: how far a query may read next, and in which partitions.

The driver keeps one for the whole query and polls it for the latest offset, so that call reads only the watermark. Executors get a
copy, which only reads partitions.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from msgspec.structs import replace
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from penstock.journal.reader import Mark
from penstock.spark.errors import JournalRewoundError
from penstock.spark.location import SourceJournal, open_journals
from penstock.spark.source.offsets import LATEST, Point, Points, decode, encode
from penstock.spark.source.options import BATCH_ONLY, SourceOptions
from penstock.spark.source.partitions import JournalPartition, journal_changed, plan, read_partition, starting

_log = logging.getLogger("penstock.spark")


class JournalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads journals as streams."""

    def __init__(self, options: SourceOptions) -> None:
        options.refuse(BATCH_ONLY, "a stream")
        self._options = options
        self._selection = replace(options.selection, with_pipeline=bool(options.includes_pipeline))
        self._frozen: dict[str, int] | None = None
        """The end of an AvailableNow query."""
        self._newest: Points = {}
        self._triggered_at: float | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        """Where a query without a checkpoint begins."""
        points = starting(self._options, open_journals(self._options.locations), LATEST)
        self._hold(points)
        return encode(points)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 (Spark's name)
        """The limit of `maxOffsetsPerTrigger`, else of `minOffsetsPerTrigger`."""
        if self._options.rows_max is not None:
            return ReadMaxRows(self._options.rows_max)
        if self._options.rows_min is not None:
            return ReadMinRows(self._options.rows_min)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 (Spark's name)
        """Fix the current end: rows that arrive later are not read."""
        self._frozen = {one: journal.mark().end for one, journal in open_journals(self._options.locations).items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        """How far the next batch may read."""
        points = decode(start)
        journals, marks = self._open(points)
        begin = self._resumed(points, journals, marks)
        frozen = self._frozen
        ends = {
            one: max(mark.end if frozen is None else min(mark.end, frozen.get(one, 0)), begin[one].offset)
            for one, mark in marks.items()
        }
        self._newest = {one: Point(mark.end, mark.epoch) for one, mark in marks.items()}
        if not self._newest or self._is_too_early(begin, ends, limit):
            return start
        if isinstance(limit, ReadMaxRows):
            ends = share_limit({one: point.offset for one, point in begin.items()}, ends, limit.max_rows)
        return encode({one: Point(end, marks[one].epoch) for one, end in ends.items()})

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 (Spark's name)
        """The ends of the journals at the last `latestOffset`."""
        return encode(self._newest) if self._newest else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The partitions of a batch."""
        begin, stop = decode(start), decode(end)
        journals = open_journals(self._options.locations)
        missing = sorted(set(stop) - set(journals))
        if missing:
            raise journal_changed(missing, {one: each for one, each in journals.items() if one not in stop})
        ranges = {one: (self._first(journals[one], begin.get(one), point), point.offset) for one, point in stop.items()}
        return [*plan(self._options, journals, ranges)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition; runs in executors."""
        assert isinstance(partition, JournalPartition)
        return read_partition(self._options, self._selection, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Everything before `end` is processed: retention need not wait for this reader with it."""
        self._hold(decode(end))

    def _hold(self, points: Points) -> None:
        if self._options.reader is None:
            return
        for one, journal in open_journals(self._options.locations).items():
            if one in points:
                journal.hold(self._options.reader, points[one].offset)

    def _open(self, points: Points) -> tuple[dict[str, SourceJournal], dict[str, Mark]]:
        """The journals and their ends; a missing journal of the checkpoint is an error."""
        journals: dict[str, SourceJournal] = {}
        marks: dict[str, Mark] = {}
        for location in self._options.locations:
            journal = location.open()
            mark = journal.mark()
            journals[mark.journal], marks[mark.journal] = journal, mark
        missing = sorted(set(points) - set(marks))
        if missing:
            raise journal_changed(missing, {one: each for one, each in journals.items() if one not in points})
        return journals, marks

    def _resumed(self, points: Points, journals: Mapping[str, SourceJournal], marks: Mapping[str, Mark]) -> Points:
        """Where reading continues: at the checkpoint, or earlier if rows that were read are lost; a new journal at its oldest row."""
        begin: Points = {}
        for one, mark in marks.items():
            point = points.get(one)
            if point is None:
                begin[one] = Point(journals[one].bounds().first, mark.epoch)
                continue
            kept = min(point.offset, mark.end)
            if mark.epoch > point.epoch:
                kept = self._unchanged(journals[one], point.epoch, kept)
            if kept < point.offset:
                self._lose(journals[one], kept, point.offset)
            begin[one] = Point(kept, mark.epoch)
        return begin

    def _first(self, journal: SourceJournal, begin: Point | None, stop: Point) -> int:
        """Where a batch begins. A batch planned across a loss begins at the first row that replaced a lost one."""
        if begin is None:
            return journal.bounds().first
        if stop.epoch <= begin.epoch:
            return begin.offset
        return self._unchanged(journal, begin.epoch, min(begin.offset, stop.offset))

    def _unchanged(self, journal: SourceJournal, epoch: int, end: int) -> int:
        """The end of the rows of an epoch and earlier, by binary search: epochs never decrease."""
        low = min(journal.bounds().first, end)
        return low + bisect_right(range(low, end), epoch, key=journal.epoch_of)

    def _lose(self, journal: SourceJournal, first: int, end: int) -> None:
        what = (
            f"rows {first} to {end - 1} of the journal at {journal.location}, which this query has read, were lost in a"
            " crash of its server or replaced by an older copy"
        )
        if self._options.fails_on_loss:
            raise JournalRewoundError(
                f"{what}. To continue from row {first}, set `failOnDataLoss` to false; to start over, use a new"
                " checkpoint (`penstock pipeline reset` for the built-in pipeline)."
            )
        _log.warning("%s: continuing from row %d, because failOnDataLoss is false", what, first)

    def _is_too_early(self, begin: Points, ends: Mapping[str, int], limit: ReadLimit) -> bool:
        """Whether a batch should wait for more rows, at most `maxTriggerDelay`."""
        least = limit.min_rows if isinstance(limit, ReadMinRows) else self._options.rows_min
        if least is None or isinstance(limit, ReadAllAvailable) or self._frozen is not None:
            return False
        now = time.monotonic()
        has_waited = self._triggered_at is None or now - self._triggered_at >= self._options.delay_s
        if not has_waited and sum(end - begin[one].offset for one, end in ends.items()) < least:
            return True
        self._triggered_at = now
        return False


def share_limit(begin: Mapping[str, int], ends: Mapping[str, int], rows_max: int) -> dict[str, int]:
    """Ends that are at most `rows_max` rows away in total; each journal gets a share in proportion to its waiting rows."""
    waiting = {one: end - begin[one] for one, end in ends.items()}
    total = sum(waiting.values())
    if total <= rows_max:
        return dict(ends)
    shares = {one: count * rows_max // total for one, count in waiting.items()}
    left = rows_max - sum(shares.values())
    for one in sorted(waiting):
        more = min(left, waiting[one] - shares[one])
        shares[one] += more
        left -= more
    return {one: begin[one] + share for one, share in shares.items()}
