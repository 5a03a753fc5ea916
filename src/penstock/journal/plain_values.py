"""Rows and cells as plain values for JSON and for people.

Columns of Arrow go in, numbers, texts, lists and objects come out; times are in UTC with microseconds.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from datetime import UTC, date, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    import pyarrow as pa

TIMES = ("recorded_at", "ref_at", "first_at")
"""Columns of a journal row that are times."""


def records(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """The rows of a batch; times as microseconds, bodies as bytes."""
    import pyarrow as pa

    columns = []
    for column in batch.columns:
        is_time = pa.types.is_timestamp(column.type)
        columns.append((column.cast(pa.int64()) if is_time else column).to_pylist())
    for values in zip(*columns, strict=True):
        yield dict(zip(batch.schema.names, values, strict=True))


@lru_cache(maxsize=256)
def iso(at_us: int) -> str:
    """Microseconds since 1970 as a time for people. Rows of a commit share one, so the last few are remembered."""
    moment = datetime.fromtimestamp(at_us // 1_000_000, UTC).replace(microsecond=at_us % 1_000_000)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def plain_row(row: dict[str, Any]) -> dict[str, Any]:
    """A row for JSON: without nulls and without its body, times as texts, `meta` as JSON where it is."""
    shown = {name: value for name, value in row.items() if value is not None and name != "body"}
    for name in TIMES:
        if name in shown:
            shown[name] = iso(shown[name])
    if shown.get("meta"):
        shown["meta"] = json_or_text(shown["meta"])
    return shown


def json_or_text(text: str) -> Any:
    """Text that is JSON as the very same JSON, other text as text."""
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text
    return msgspec.Raw(text.encode())


def plain(value: Any) -> Any:
    """A cell for JSON: times as text, bytes as text where they are, pairs of a map as an object."""
    if isinstance(value, datetime):
        moment = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
        return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    if isinstance(value, list):
        if value and all(isinstance(one, tuple) for one in value):
            return {str(key): plain(one) for key, one in value}
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)
