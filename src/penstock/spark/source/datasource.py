"""The format `penstock`: journals as batch and streaming DataFrames, and DataFrames written to queues.

    spark.readStream.format("penstock").option("columns", "recorded_at,channel").load("penstock-data")
    spark.read.format("penstock").option("url", "http://localhost:8787").option("tokenFile", FILE).load()

A row is a journal row: the columns of the table `events` without `date`. `options.py` lists every option.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
from msgspec.structs import replace
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema

from penstock.spark.errors import SourceError
from penstock.spark.lake.pushdown import Bounds, bounds_of, names_of
from penstock.spark.location import SourceJournal, absolute_paths, open_journals
from penstock.spark.source.offsets import EARLIEST
from penstock.spark.source.options import STREAM_ONLY, SourceOptions, parse_options, to_us
from penstock.spark.source.partitions import JournalPartition, ending, plan, read_partition, starting
from penstock.spark.source.stream_reader import JournalStreamReader

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class PenstockSource(DataSource):
    """The data source behind `format("penstock")`.

    Notes
    -----
    Spark creates it by name; see `penstock.spark.source.options` for reading and `penstock.spark.sink.writer` for writing.

    Examples
    --------
    >>> spark.readStream.format("penstock").option("columns", "channel").load("penstock-data")
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        given = dict(options)
        for name, value in given.items():
            if name.lower() == "path":
                given[name] = absolute_paths(value)
        super().__init__(given)

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        """The columns that the options select."""
        return from_arrow_schema(parse_options(self.options).schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._checked(schema)
        return (FilteredJournalReader if options.pushes_filters else JournalBatchReader)(options)

    def streamReader(self, schema: StructType) -> JournalStreamReader:  # noqa: N802 (Spark's name)
        return JournalStreamReader(self._checked(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from penstock.spark.sink.writer import make_writer

        return make_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 (Spark's name)
        from penstock.spark.sink.writer import make_stream_writer

        return make_stream_writer(self.options, schema, overwrite)

    def _checked(self, schema: StructType) -> SourceOptions:
        """The options; refuses a user schema that differs from theirs, because journal rows have fixed columns."""
        options = parse_options(self.options)
        declared = from_arrow_schema(options.schema)
        wanted = [(field.name, field.dataType) for field in schema.fields]
        if wanted != [(field.name, field.dataType) for field in declared.fields]:
            raise SourceError(
                f"the schema `{schema.simpleString()}` is not that of the source, `{declared.simpleString()}`",
                "leave `.schema(…)` out, choose columns with the option `columns`, and cast them in the query",
            )
        return options


class JournalBatchReader(DataSourceReader):
    """Reads ranges of journals once."""

    def __init__(self, options: SourceOptions) -> None:
        options.refuse(STREAM_ONLY, "a batch read")
        self._options = options
        self._selection = replace(options.selection, with_pipeline=options.includes_pipeline is not False)
        self._bounds: Bounds = {}

    def partitions(self) -> list[InputPartition]:
        """The partitions of everything that the options select."""
        journals = open_journals(self._options.locations)
        begin = starting(self._options, journals, EARLIEST)
        end = ending(self._options, journals)
        ranges = {one: (begin[one].offset, end[one].offset) for one in journals}
        for one, (first, stop) in ranges.items():
            if first > stop:
                raise SourceError(
                    f"the read of {journals[one].location} begins at row {first} and ends before it, at {stop}",
                    "swap them",
                )
        return [*plan(self._options, journals, {one: self._within(journals[one], *ranges[one]) for one in journals})]

    def _within(self, journal: SourceJournal, first: int, end: int) -> tuple[int, int]:
        """The part of a range that filters on the offset and the time leave. Times never decrease with offsets."""
        least, greatest = self._bounds.get("offset", (None, None))
        since, until = (None if one is None else to_us(one) for one in self._bounds.get("recorded_at", (None, None)))
        first = max(first, least or 0, 0 if since is None else journal.offset_at(since))
        last = [end, *([] if greatest is None else [greatest + 1])]
        return first, max(first, min(last if until is None else [*last, journal.offset_at(until + 1)]))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition; runs in executors. Without partitions Spark passes an empty one of its own."""
        if not isinstance(partition, JournalPartition):
            return iter(())
        return read_partition(self._options, self._selection, partition)


class FilteredJournalReader(JournalBatchReader):
    """Reads only what the filters of the query leave. A class of its own: Spark refuses `pushFilters` where its setting is false."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 (Spark's name)
        """Take bounds and names from the filters; Spark evaluates all of them."""
        self._bounds = bounds_of(filters, self._options.schema)
        given = self._selection
        self._selection = replace(
            given,
            doors=given.doors or names_of(filters, "door"),
            channels=given.channels or names_of(filters, "channel"),
            events=given.events or names_of(filters, "event"),
        )
        return filters
