"""The source without Spark: the answers of its readers and their rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.journal.parquet_table import FILE_SCHEMA
from penstock.spark.errors import SourceError
from penstock.spark.source.datasource import PenstockSource
from tests.spark.journals import (
    Written,
    at,
    batch,
    declared,
    offsets_of,
    stream,
    table,
)


@pytest.mark.promise(
    "Spark: source and sinks",
    "the source is found without registration and returns Arrow batches with exactly the declared schema",
)
def test_every_batch_has_exactly_the_declared_schema(written: Written) -> None:
    for columns in (None, "offset", "body,offset,recorded_at", "journal", "ref_at,meta"):
        for body_as in ("binary", "string", "json"):
            options = {"bodyAs": body_as} | ({"columns": columns} if columns else {})
            reader = batch(written.data, **options)
            rows = table(reader, reader.partitions())
            assert rows.num_rows == 30
            assert rows.schema.equals(declared(written.data, **options))
    assert declared(written.data).equals(FILE_SCHEMA)
    assert declared(written.data, columns="seq,id").names == ["seq", "id"]


@pytest.mark.promise("Spark: source and sinks", "wrong options, paths, permissions and schemas fail with a hint")
def test_a_schema_of_ones_own_is_refused(tmp_path: Path) -> None:
    from pyspark.sql.types import LongType, StringType, StructField, StructType

    source = PenstockSource({"path": str(tmp_path), "columns": "offset"})
    source.streamReader(source.schema())
    source.reader(StructType([StructField("offset", LongType(), False)]))
    for kind in ("reader", "streamReader"):
        with pytest.raises(SourceError, match="choose columns with the option `columns`"):
            getattr(source, kind)(StructType([StructField("offset", StringType())]))


def test_the_defaults_differ_between_batches_and_streams(written: Written) -> None:
    assert stream(written.data).initialOffset() == at(written, 30)
    written.add(2, sender="pipeline/alerts")
    written.add(1, sender=None)
    once = batch(written.data)
    assert offsets_of(table(once, once.partitions())) == list(range(33))
    for options, expected in (({}, [32]), ({"includePipeline": "true"}, [30, 31, 32])):
        reader = stream(written.data, **options)
        assert offsets_of(table(reader, reader.partitions(at(written, 30), at(written, 33)))) == expected
    without = batch(written.data, includePipeline="false")
    assert offsets_of(table(without, without.partitions())) == [*range(30), 32]
