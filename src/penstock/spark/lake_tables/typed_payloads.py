"""The tables `types_<name>_v<major>`: payloads of one schema as columns.

The columns are those of all minor versions of a major one, so a new minor version adds columns, which are null in older rows. A new major
version is another table. A value that does not fit its column is null, and `payload_error` names it. Needs no JVM: rows come from the
table `envelopes`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pyarrow as pa
from msgspec import Meta

from penstock.dialects.courier.operations.payload_schemas import Version, parse_version
from penstock.spark.lake.schemas import ENVELOPES, TYPES, TableDefinition

SHARED = ("journal", "offset", "date", "recorded_at", "channel", "id", "type", "sender", "corr", "schema")
"""Columns of the envelope. A property with one of these names gets the prefix `payload_`."""
ERROR = "payload_error"
COLUMNS_MAX = 500
"""Columns of one table; further properties are only in `envelopes.payload`."""
DEPTH_MAX = 4
"""Nesting of objects that become columns; deeper ones are JSON text."""
FILES_MAX = 10_000
"""Schemas that are read."""
_VALUES: dict[str, Any] = {
    "string": str,
    "long": Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)],
    "double": float,
    "boolean": bool,
    "timestamp": Annotated[datetime, Meta(tz=True)],
    "date": date,
    "array<string>": list[str | None],
}
"""The values of a column, by its type in `TYPES`; a property of another type is JSON text."""
_SCALARS = {"string": "string", "integer": "long", "number": "double", "boolean": "boolean"}
_FORMATS = {"date-time": "timestamp", "date": "date"}


@dataclass(frozen=True)
class PayloadColumn:
    """A property of a payload as a column."""

    path: tuple[str, ...]
    kind: str
    """A name in `TYPES`, or `json`."""

    @property
    def name(self) -> str:
        """The path in lower case with underscores, which no SQL engine wants quoted."""
        words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", "_".join(self.path))
        name = re.sub(r"\W+", "_", words, flags=re.ASCII).strip("_").lower() or "value"
        return f"payload_{name}" if name in (*SHARED, ERROR) else name

    def value(self, payload: Any) -> Any:
        """The value in a payload, None if it is absent; raises `ValidationError` if it does not fit."""
        for step in self.path:
            payload = payload.get(step) if isinstance(payload, dict) else None
        if self.kind == "json":
            return None if payload is None else msgspec.json.encode(payload).decode()
        if self.kind == "long" and isinstance(payload, float) and payload.is_integer():
            payload = int(payload)  # as JSON Schema defines it
        return msgspec.convert(payload, _VALUES[self.kind] | None)


@dataclass(frozen=True)
class TypedTable:
    """The table of one schema."""

    schema: str
    major: int
    columns: dict[str, PayloadColumn]
    file: Path

    @property
    def name(self) -> str:
        return "types_" + re.sub(r"[^a-z0-9]+", "_", f"{self.schema}_v{self.major}".lower())

    @property
    def definition(self) -> TableDefinition:
        typed = [(name, TYPES.get(column.kind, pa.string())) for name, column in self.columns.items()]
        schema = pa.schema([*(ENVELOPES.schema.field(name) for name in SHARED), *typed, (ERROR, pa.string())])
        return TableDefinition(self.name, schema, ("journal", "offset"), "append", ("date",))

    def rows(self, envelopes: pa.Table) -> pa.Table:
        """Rows of the table for rows of the table `envelopes`."""
        named = [parse_version(text or "") for text in envelopes.column("schema").to_pylist()]
        ours = [one is not None and (one.name, one.major) == (self.schema, self.major) for one in named]
        rows = envelopes.filter(pa.array(ours, pa.bool_())).to_pylist()
        for row in rows:
            text = row.pop("payload")
            payload = None if text is None else msgspec.json.decode(text)
            for name, column in self.columns.items():
                try:
                    row[name] = column.value(payload)
                except msgspec.ValidationError as error:
                    row[ERROR] = row[ERROR] or f"`{'.'.join(('payload', *column.path))}`: {error}"
        return pa.Table.from_pylist(rows, self.definition.schema)


def columns_of(schema: Any, root: Any = None, path: tuple[str, ...] = ()) -> Iterator[PayloadColumn]:
    """The columns of a JSON Schema."""
    root = schema if root is None else root
    node = _plain(schema, root)
    properties = node.get("properties")
    if isinstance(properties, dict) and properties and len(path) < DEPTH_MAX:
        for name, part in properties.items():
            yield from columns_of(part, root, (*path, name))
        return
    values = node.get("enum")
    is_text = isinstance(values, list) and all(isinstance(one, str) for one in values)
    kind = _SCALARS.get(str(node.get("type", "string" if is_text else None)), "json")
    if kind == "string":
        kind = _FORMATS.get(str(node.get("format")), kind)
    elif node.get("type") == "array" and _plain(node.get("items"), root).get("type") == "string":
        kind = "array<string>"
    yield PayloadColumn(path, kind)


def _plain(node: Any, root: Any) -> dict[str, Any]:
    """A schema without references, and without the choice to be null."""
    for _ in range(2 * DEPTH_MAX):
        if not isinstance(node, dict):
            break
        choices = [one for word in ("anyOf", "oneOf") for one in node.get(word) or () if one != {"type": "null"}]
        ref, kinds = node.get("$ref"), node.get("type")
        if isinstance(ref, str):
            node = root
            for step in ref.split("/")[1:]:
                node = node.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(node, dict) else None
        elif len(choices) == 1 and kinds is None:
            node = choices[0]
        elif isinstance(kinds, list):
            kinds = [kind for kind in kinds if kind != "null"]
            node = {**node, "type": kinds[0] if len(kinds) == 1 else "any"}
        else:
            return node
    return {}


def typed_tables(folder: str | Path) -> list[TypedTable]:
    """The tables for the schemas of a directory. Leaves out files that the server refuses."""
    root = Path(folder)
    found: dict[Version, Path] = {}
    for path in sorted(islice(root.rglob("*.json"), FILES_MAX)):
        version = parse_version(path.relative_to(root).as_posix().removesuffix(".json"))
        if version is not None:
            found.setdefault(version, path)
    made: dict[str, TypedTable] = {}
    for version in sorted(found):  # ascending, so the newest minor version decides
        table = TypedTable(version.name, version.major, {}, found[version])
        table = made.setdefault(table.name, table)
        if table.schema != version.name:
            print(f"no table for `{version}`: `{table.schema}` has the same, `{table.name}`", file=sys.stderr)
            continue
        try:
            columns = list(columns_of(msgspec.json.decode(found[version].read_bytes())))
        except (OSError, msgspec.DecodeError):
            continue
        for column in columns:
            if column.name in table.columns or len(table.columns) < COLUMNS_MAX:
                table.columns[column.name] = column
    return [table for table in made.values() if table.columns]
