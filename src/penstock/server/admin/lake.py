"""The tables at the desk: how large each is and what it holds, and the alerts that are in one of them.

Asked often, by pages that show it live: what was read is kept until a table's log has a newer entry. Reading happens on a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from penstock.core.errors import Refusal
from penstock.journal.plain_values import iso, plain
from penstock.journal.tables import newest_entry, table_names
from penstock.server.http.admin_routes import Ask

ALERTS_MAX = 100
"""Alerts of one answer."""
NO_LAKE = Refusal(
    "UnknownRoute", "this server keeps no tables", hint="start the server with `--data DIR` to have some"
)
_ALERTS = "alerts"
_ALERT = (
    "id",
    "rule",
    "severity",
    "subject",
    "state",
    "value",
    "threshold",
    "message",
    "fired_at",
    "resolved_at",
)

T = TypeVar("T")


class Lake:
    """Answers of `/v1/lake` and `/v1/alerts`."""

    def __init__(self, data: Path | None) -> None:
        self._folder = None if data is None else data / "lake"
        # One thread, so that however many ask, a table is read once.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lake")
        self._tables: dict[str, tuple[str, dict[str, Any]]] = {}
        self._alerts: tuple[str, list[dict[str, Any]]] = ("", [])

    async def tables(self, ask: Ask) -> dict[str, Any] | Refusal:
        """Every table."""
        return await self._read(lambda folder: {"tables": self._summaries(folder)})

    async def alerts(self, ask: Ask) -> dict[str, Any] | Refusal:
        """The alerts, those that fire first, each part newest first."""
        return await self._read(lambda folder: {"alerts": self._newest_alerts(folder)})

    async def _read(self, work: Callable[[Path], T]) -> T | Refusal:
        if self._folder is None:
            return NO_LAKE
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, self._folder)

    def _summaries(self, folder: Path) -> list[dict[str, Any]]:
        known, self._tables = self._tables, {}
        for name in table_names(folder):
            entry = newest_entry(folder / name)
            kept = known.get(name)
            try:
                found = kept[1] if kept is not None and kept[0] == entry else summary(folder, name)
            except (DeltaError, OSError):
                continue  # it is being made or removed; whoever asks again sees it, or does not
            self._tables[name] = (entry, found)
        return [found for _, found in self._tables.values()]

    def _newest_alerts(self, folder: Path) -> list[dict[str, Any]]:
        entry = newest_entry(folder / _ALERTS)
        if entry != self._alerts[0]:
            try:
                self._alerts = (entry, alerts(folder))
            except (DeltaError, OSError):
                return self._alerts[
                    1
                ]  # the files of that version went meanwhile: the next look sees the newer one
        return self._alerts[1]


def summary(folder: Path, name: str) -> dict[str, Any]:
    """A table in numbers, and its columns, from its log alone."""
    table = DeltaTable(str(folder / name))
    actions = pa.table(table.get_add_actions(flatten=True))
    history = table.history(1)
    at_ms = history[0].get("timestamp") if history else None
    schema = pa.schema(table.schema().to_arrow())
    return {
        "name": name,
        "rows": pc.sum(actions.column("num_records"), min_count=0).as_py(),
        "bytes": pc.sum(actions.column("size_bytes"), min_count=0).as_py(),
        "files": actions.num_rows,
        "version": table.version(),
        "updated_at": None if at_ms is None else iso(at_ms * 1000),
        "columns": [{"name": field.name, "type": str(field.type)} for field in schema],
    }


def alerts(folder: Path) -> list[dict[str, Any]]:
    """The alerts to show, from the files of the table: of each only the newest are kept in memory."""
    if not newest_entry(folder / _ALERTS):
        return []
    newest: pa.Table | None = None
    actions = pa.table(DeltaTable(str(folder / _ALERTS)).get_add_actions())
    for path in actions.column("path").to_pylist():
        with pq.ParquetFile(folder / _ALERTS / unquote(path)) as file:
            columns = file.read([name for name in _ALERT if name in file.schema_arrow.names])
        rows = columns if newest is None else pa.concat_tables([newest, columns], promote_options="default")
        newest = _first(rows)
    return (
        []
        if newest is None
        else [{name: plain(row.get(name)) for name in _ALERT} for row in newest.to_pylist()]
    )


def _first(rows: pa.Table) -> pa.Table:
    ranked = rows.append_column("rank", pc.if_else(pc.equal(rows.column("state"), "firing"), 0, 1))
    order = pc.sort_indices(ranked, [("rank", "ascending"), ("fired_at", "descending"), ("id", "ascending")])
    return rows.take(order[:ALERTS_MAX])
