"""One version of a Delta table, from its log: columns, data files with their bounds, layout.

Only reads. Refuses tables with Delta features under which it would return wrong rows.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable

from penstock.spark.errors import HintedError
from penstock.spark.lake.data_files import Layout, LiveFile, has_bounds
from penstock.spark.lake.schemas import TableDefinition

STATISTICS_MAX = 32
"""Columns with statistics if the table does not list them: Delta's own default."""
STATISTICS_SETTING = "delta.dataSkippingStatsColumns"
_UNREADABLE = ("deletionVectors", "columnMapping", "variantType", "variantType-preview")


class LakeError(HintedError):
    """A table that cannot be read or written as asked; the message says what to do."""


def check_readable(table: DeltaTable, name: str) -> None:
    """Refuse features that this reader does not support."""
    features = table.protocol().reader_features or []
    found = [feature for feature in _UNREADABLE if feature in features]
    if found:
        raise LakeError(
            f"table `{name}` uses Delta's `{found[0]}`, which is not supported",
            "disable it in the program that wrote the table, or copy the rows to a table without it",
        )


def arrow_schema(table: DeltaTable) -> pa.Schema:
    """The columns of a table."""
    return pa.schema(table.schema().to_arrow())


def live_files(table: DeltaTable) -> list[LiveFile]:
    """The data files of a table, in no order."""
    actions = pa.table(table.get_add_actions(flatten=True))
    parts: dict[str, dict[str, list[Any]]] = {"partition": {}, "min": {}, "max": {}, "null_count": {}}
    for column in actions.column_names:
        kind, _, name = column.partition(".")
        if kind in parts and name:
            parts[kind][name] = actions.column(column).to_pylist()
    return [
        LiveFile(
            unquote(path),
            size,
            rows or 0,  # other writers may omit statistics
            *({name: values[index] for name, values in part.items()} for part in parts.values()),
        )
        for index, (path, size, rows) in enumerate(
            zip(
                actions.column("path").to_pylist(),
                actions.column("size_bytes").to_pylist(),
                actions.column("num_records").to_pylist(),
                strict=True,
            )
        )
    ]


def layout(schema: pa.Schema, definition: TableDefinition, table: DeltaTable | None) -> Layout:
    """The layout of new files: as configured in the table; before the first write, as in its definition."""
    configured = None if table is None else table.metadata().configuration.get(STATISTICS_SETTING)
    if table is None:
        statistics = statistics_of(definition)
    elif configured is not None:
        statistics = tuple(name for name in configured.split(",") if name)
    else:
        statistics = tuple(schema.names[:STATISTICS_MAX])
    usable = tuple(
        name
        for name in statistics
        if name in schema.names and name not in definition.partition_by and has_bounds(schema.field(name).type)
    )
    return Layout(schema, definition.partition_by, usable)


def statistics_of(definition: TableDefinition) -> tuple[str, ...]:
    """The columns that readers filter by: the key, offsets and times; all columns of a table without a key."""
    schema = definition.schema
    if definition.key:
        times = [field.name for field in schema if pa.types.is_timestamp(field.type)]
        names = list(dict.fromkeys([*definition.key, "offset", *times]))
    else:
        names = schema.names
    fitting = [name for name in names if name in schema.names and name not in definition.partition_by]
    return tuple(name for name in fitting if has_bounds(schema.field(name).type))[:STATISTICS_MAX]


def parse_moment(given: datetime | str, name: str) -> datetime:
    """The time that the option `name` gives; in UTC if it has no time zone."""
    try:
        moment = datetime.fromisoformat(given) if isinstance(given, str) else given
    except ValueError:
        raise LakeError(f"`{name}` is `{given}`", "write it as `2026-01-31T12:00:00Z`") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
