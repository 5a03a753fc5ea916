"""Reading one partition in a task: its rows, with the body in the form that the query asked for.

A body that does not fit the form is null, never an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
import pyarrow as pa

from penstock.journal.selection import Selection
from penstock.spark.errors import DataLossError, GoneError, JournalChangedError, SourceError
from penstock.spark.location import SourceJournal
from penstock.spark.source.options import SourceOptions
from penstock.spark.source.partitions import JournalPartition, without_gone

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
        [convert(column) if number == index else column for number, column in enumerate(batch.columns)],
        schema=schema,
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
    if text is None:
        return False
    try:
        _JSON.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True
