"""`/v1/lake`, `/v1/alerts` and `/v1/pipeline`: the size and columns of each table, the alerts, and the state of Spark.

Pages that show them live ask often, so a thread reads a table once and keeps the result until the table's log has a
newer entry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, TypeVar
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from penstock.core.errors import Refusal
from penstock.ipc.pipeline import BatchFailure, BatchStatus, ExpectationStatus, PipelineStatus, TableStatus
from penstock.journal.delta_log import newest_entry, table_names
from penstock.journal.lake_figures import table_figures
from penstock.journal.lake_location import LakePath, StoreError, lake_of, open_delta, open_parquet
from penstock.journal.plain_values import iso, plain
from penstock.server.admin.journal import ColumnType, Count, Time

ALERTS_MAX = 100
"""Alerts of one answer."""
NO_LAKE = Refusal("UnknownRoute", "this server keeps no tables", hint="start the server with `--data DIR` to have some")
_ALERTS = "alerts"
T = TypeVar("T")


class TableSummary(msgspec.Struct):
    """A table in numbers."""

    name: str
    rows: Count
    bytes: Count
    files: Count
    version: Count
    updated_at: Time | None
    columns: list[ColumnType]


class LakeReply(msgspec.Struct):
    """Every table."""

    tables: list[TableSummary]


class AlertRow(msgspec.Struct):
    """One row of the table `alerts`."""

    id: str | None
    rule: str | None
    severity: str | None
    subject: str | None
    state: str | None
    value: float | None
    threshold: float | None
    message: str | None
    fired_at: str | None
    resolved_at: str | None


_ALERT = AlertRow.__struct_fields__


class AlertsReply(msgspec.Struct):
    """The alerts: firing ones first, each part newest first."""

    alerts: list[AlertRow]


class QueryProgress(msgspec.Struct):
    """How far a query of the pipeline is."""

    offset: Count
    batches: Count
    rows: Count
    batch_ms: Count
    at_us: Count
    recent: list[BatchStatus]
    input_rate: float
    trigger: dict[str, Count]


class PipelineStateReply(msgspec.Struct):
    """The state of the Spark pipeline."""

    state: Literal["off", "starting", "running", "stopped", "failed", "halted"]
    lag: Count
    end: Count
    offset: Count
    restarts: Count
    behind: dict[str, Count]
    own: dict[str, str]
    own_queries: dict[str, QueryProgress]
    failed: list[BatchFailure]
    stopped: dict[str, str]
    expectations: list[ExpectationStatus]
    code: str | None
    message: str | None
    hint: str | None
    ui: str | None
    queries: dict[str, QueryProgress]
    tables: dict[str, TableStatus]


def pipeline_state(status: PipelineStatus | None) -> PipelineStateReply:
    """The answer of `/v1/pipeline`; `off` on a server without a pipeline."""
    return msgspec.convert(status or PipelineStatus("off"), PipelineStateReply, from_attributes=True)


class Lake:
    """The tables of one data directory."""

    def __init__(self, data: Path | None) -> None:
        self._data = data
        # One thread: a table is read once, however many requests there are.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lake")
        self._tables: dict[str, tuple[str, TableSummary]] = {}
        self._alerts: tuple[str, list[AlertRow]] = ("", [])

    async def tables(self) -> LakeReply | Refusal:
        return await self._read(lambda folder: LakeReply(self._summaries(folder)))

    async def alerts(self) -> AlertsReply | Refusal:
        return await self._read(lambda folder: AlertsReply(self._newest_alerts(folder)))

    async def _read(self, work: Callable[[LakePath], T]) -> T | Refusal:
        if self._data is None:
            return NO_LAKE
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work, lake_of(self._data))
        except StoreError as error:
            return error.refusal

    def _summaries(self, folder: LakePath) -> list[TableSummary]:
        known, self._tables = self._tables, {}
        for name in table_names(folder):
            entry = newest_entry(folder / name)
            kept = known.get(name)
            try:
                found = kept[1] if kept is not None and kept[0] == entry else summary(folder, name)
            except StoreError:
                raise
            except (DeltaError, OSError):
                continue  # another process is creating or removing it
            self._tables[name] = (entry, found)
        return [found for _, found in self._tables.values()]

    def _newest_alerts(self, folder: LakePath) -> list[AlertRow]:
        entry = newest_entry(folder / _ALERTS)
        if entry != self._alerts[0]:
            try:
                self._alerts = (entry, alerts(folder))
            except (DeltaError, OSError):
                pass  # the files of that version are gone; the next request reads the newer version
        return self._alerts[1]


def summary(folder: LakePath, name: str) -> TableSummary:
    """The size and the columns of a table, from its log alone."""
    table = open_delta(folder / name)
    found = table_figures(table)
    schema = pa.schema(table.schema().to_arrow())
    return TableSummary(
        name,
        rows=found.rows,
        bytes=found.bytes,
        files=found.files,
        version=found.version,
        updated_at=iso(found.at_us) if found.at_us else None,
        columns=[ColumnType(field.name, str(field.type)) for field in schema],
    )


def alerts(folder: LakePath) -> list[AlertRow]:
    """The alerts to answer with; memory holds the newest of one file at a time."""
    if not newest_entry(folder / _ALERTS):
        return []
    newest: pa.Table | None = None
    actions = pa.table(open_delta(folder / _ALERTS).get_add_actions())
    for path in actions.column("path").to_pylist():
        with open_parquet(folder / _ALERTS / unquote(path)) as file:
            columns = file.read([name for name in _ALERT if name in file.schema_arrow.names])
        rows = columns if newest is None else pa.concat_tables([newest, columns], promote_options="default")
        newest = _first(rows)
    rows = [] if newest is None else newest.to_pylist()
    return [AlertRow(*(plain(row.get(name)) for name in _ALERT)) for row in rows]


def _first(rows: pa.Table) -> pa.Table:
    ranked = rows.append_column("rank", pc.if_else(pc.equal(rows.column("state"), "firing"), 0, 1))
    order = pc.sort_indices(ranked, [("rank", "ascending"), ("fired_at", "descending"), ("id", "ascending")])
    return rows.take(order[:ALERTS_MAX])
