"""Bodies in the form that a query asked for: bytes, text, or JSON text. What does not fit is null, never an error."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pyarrow as pa

_JSON = msgspec.json.Decoder(msgspec.Raw)


def fit_schema(batch: pa.RecordBatch, schema: pa.Schema, body_as: str) -> pa.RecordBatch:
    """A batch with exactly this schema."""
    if body_as == "binary" or "body" not in schema.names:
        return batch if batch.schema.equals(schema) else batch.cast(schema)
    index = schema.get_field_index("body")
    convert: Callable[[pa.Array], pa.Array] = texts if body_as == "string" else json_texts
    return pa.RecordBatch.from_arrays(
        [convert(column) if number == index else column for number, column in enumerate(batch.columns)],
        schema=schema,
    )


def texts(bodies: pa.Array) -> pa.Array:
    """Bodies as text; null where the bytes are no UTF-8."""
    try:
        return bodies.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([_text(body) for body in bodies.to_pylist()], pa.string())


def json_texts(bodies: pa.Array) -> pa.Array:
    """Bodies as text; null where they are no JSON value."""
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
