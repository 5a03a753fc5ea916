"""Which rows a query reads, and how they are split."""

from __future__ import annotations

import json

import pytest

from penstock.spark.errors import SourceError
from penstock.spark.source.partitions import cut
from tests.journal.histories import START_US
from tests.spark.journals import (
    SECOND_US,
    Written,
    at,
    batch,
    offsets_of,
    stream,
    table,
)


@pytest.mark.promise("Spark: source and sinks", "an empty batch has no partitions")
def test_a_batch_of_no_rows_has_no_partitions(written: Written) -> None:
    reader = stream(written.data)
    assert reader.partitions(at(written, 7), at(written, 7)) == []
    once = batch(written.data, startingOffsets=json.dumps(at(written, 30)))
    assert once.partitions() == []
    from pyspark.sql.datasource import InputPartition

    assert list(once.read(InputPartition(None))) == []
    assert table(reader, reader.partitions(at(written, 7), at(written, 8))).num_rows == 1
    filtered = stream(written.data, channel="nobody")
    assert table(filtered, filtered.partitions(at(written, 0), at(written, 30))).num_rows == 0


@pytest.mark.promise(
    "Spark: source and sinks", "a query starts and ends by offset or time, even if the clock stepped back"
)
def test_a_read_starts_and_ends_at_its_options(written: Written) -> None:
    def read(**options: object) -> list[int]:
        reader = batch(written.data, columns="offset", **options)
        return offsets_of(table(reader, reader.partitions()))

    assert read() == list(range(30)) == read(startingOffsets="earliest", endingOffsets="latest")
    assert read(startingOffsets="latest") == []
    given = {"startingOffsets": json.dumps(at(written, 8)), "endingOffsets": json.dumps(at(written, 22))}
    assert read(**given) == list(range(8, 22))
    assert read(startingOffsets=json.dumps(at(written, -2)), endingOffsets=json.dumps(at(written, -1))) == list(
        range(30)
    )
    for text, expected in (
        (str(START_US // 1000), 0),
        (str((START_US + 12 * SECOND_US) // 1000), 12),
        (str((START_US + 12 * SECOND_US) // 1000 + 1), 13),
        (str((START_US + 25 * SECOND_US) // 1000), 25),
        ("2999-01-01", 30),
        ("1999-01-01T00:00:00+02:00", 0),
    ):
        assert read(startingTimestamp=text) == list(range(expected, 30))
        assert read(endingTimestamp=text) == list(range(expected))
        assert stream(written.data, startingTimestamp=text).initialOffset() == at(written, expected)
    with pytest.raises(SourceError, match="which ends at 30"):
        read(endingOffsets=json.dumps(at(written, 31)))
    with pytest.raises(SourceError, match="begins at row 9 and ends before it, at 3"):
        read(startingOffsets=json.dumps(at(written, 9)), endingOffsets=json.dumps(at(written, 3)))


def test_large_batches_are_cut_where_files_begin() -> None:
    assert cut(0, 100, [0, 30, 60, 90], 50) == [(0, 30), (30, 60), (60, 100)]
    assert cut(10, 100, [0, 30, 60], 90) == [(10, 100)]
    assert cut(0, 100, [], 30) == [(0, 25), (25, 50), (50, 75), (75, 100)]
    assert cut(5, 5, [], 30) == []
