"""What Spark calls in the format `penstock_delta`, without Spark."""

from __future__ import annotations

import pickle

import pyarrow as pa
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.pandas.types import from_arrow_schema

from penstock.spark.lake.delta_format import PenstockDelta


def source(path, **options):
    return PenstockDelta(CaseInsensitiveDict({"path": str(path), **options}))


def read(path, **options):
    """What Spark does for a batch read, without Spark."""
    made = source(path, **options)
    reader = pickle.loads(pickle.dumps(made.reader(made.schema())))
    batches = [batch for part in reader.partitions() for batch in reader.read(pickle.loads(pickle.dumps(part)))]
    return pa.Table.from_batches(batches) if batches else None


def write(path, rows, *, batch=None, overwrite=False, fails=False, **options):
    """What Spark does for a write: two tasks stage, the driver commits, in a process that knows nothing."""
    made, schema = source(path, **options), from_arrow_schema(rows.schema)
    writer = made.writer(schema, overwrite) if batch is None else made.streamWriter(schema, overwrite)
    half = rows.num_rows // 2
    messages = [
        pickle.loads(pickle.dumps(writer)).write(iter(part.to_batches()))
        for part in (rows.slice(0, half), rows.slice(half))
    ]
    last = () if batch is None else (batch,)
    if fails:
        writer.abort([*messages, None], *last)
    else:
        if batch is not None:  # Spark makes another writer for the commit of a batch
            writer = made.streamWriter(schema, overwrite)
        pickle.loads(pickle.dumps(writer)).commit(messages, *last)
