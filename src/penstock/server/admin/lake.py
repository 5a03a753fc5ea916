"""The tables over HTTP: `/v1/lake`, `/v1/alerts`, `/v1/pipeline`, `/v1/history` and `/v1/sql`.

Pages that show them live ask often, so a thread reads a table once and keeps the result until the table's log has a newer entry. Each
query runs in a process of its own, which is killed on timeout or when the client disconnects. Those of `/v1/history` run one at a time,
and their rows are kept for a minute.
"""

from __future__ import annotations

import asyncio
import math
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from penstock.core.clock import Now
from penstock.core.errors import Refusal
from penstock.core.names import stream_problem
from penstock.ipc.pipeline import BatchFailure, BatchStatus, ExpectationStatus, PipelineStatus, TableStatus
from penstock.journal.delta_log import newest_entry, table_names
from penstock.journal.lake_figures import table_figures
from penstock.journal.lake_location import LakePath, StoreError, lake_of, open_delta, open_parquet
from penstock.journal.plain_values import iso, plain
from penstock.server.admin.journal import ColumnType, Count, Time
from penstock.server.admin.sql_process import EXIT_OUT_OF_MEMORY, MEMORY_MAX, SqlAnswer, SqlTask
from penstock.server.config.sections import ConsoleSection
from penstock.server.engine.child_supervisor import ChildError, run_child
from penstock.server.logging import logs
from penstock.server.metrics.history import STREAM_METRICS, HistoryQuery, HistoryReply, MetricsHistory
from penstock.transports.http_replies import Reply

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


ROWS_MAX = 720
"""Rows of the lake in one answer: each stands for a minute or more."""
MINUTE_S = 60
KEPT_US = MINUTE_S * 1_000_000
"""How long the rows of a query are kept."""
KEPT_MAX = 32
"""Queries whose rows are kept."""
TABLE = "queue_minutes"
NO_TABLE = Refusal("UnknownRoute", f"the lake has no table `{TABLE}` yet: the pipeline fills it")

_RATES = ("enqueued", "delivered", "acked", "dead")
_DEPTHS = ("ready", "leased", "delayed")
"""Columns of the table, in the order of `STREAM_METRICS`. Depths of several streams are not added up: a stream has a row only for the minutes in
which something happened to it."""
_NAMES = [*STREAM_METRICS]
Row = list[Any]  # the time in seconds, then a number or None for each of `_NAMES`


class LakeHistory:
    """The history of one server."""

    def __init__(self, rings: MetricsHistory, sql: SqlEndpoint, data: Path | None, journal: str) -> None:
        """`journal` is the id of the server's own journal: a lake may hold the rows of others too."""
        self._rings, self._sql = rings, sql
        self._data, self._journal = data, journal
        self._kept: dict[tuple[str, int], tuple[int, list[Row] | Refusal]] = {}
        self._turn = asyncio.Lock()

    async def reply(self, query: HistoryQuery, now: Now, name_max: int | None = None) -> HistoryReply | Refusal:
        """The rows of the last `seconds`; `note` says why there are no rows of the lake among them."""
        if query.stream and (refusal := stream_problem(query.stream, name_max)) is not None:
            return refusal
        found = self._rings.reply(query, now)
        now_s = now.wall_us / 1_000_000
        begin_s, end_s = now_s - query.seconds, found.times[0] if found.times else now_s
        if end_s - begin_s < 2 * MINUTE_S:
            return found
        async with self._turn:
            rows = await self._read(query, now)
        if isinstance(rows, Refusal):
            found.note = rows.message
            return found
        older = [row for row in rows if begin_s <= row[0] < end_s]
        found.times[:0] = [row[0] for row in older]
        for name, column in found.columns.items():
            column[:0] = [row[_NAMES.index(name) + 1] if name in _NAMES else None for row in older]
        return found

    async def _read(self, query: HistoryQuery, now: Now) -> list[Row] | Refusal:
        key = (query.stream, query.seconds)
        until_us, rows = self._kept.get(key, (0, NO_LAKE))
        if until_us > now.us:
            return rows
        if self._data is None:
            return NO_LAKE
        table = lake_of(self._data) / TABLE
        if isinstance(table, Path) and not (table / "_delta_log").exists():
            return NO_TABLE
        step_s = MINUTE_S * math.ceil(query.seconds / ROWS_MAX / MINUTE_S)
        reply = await self._sql.sql(SqlRequest(_select(query, now, step_s, self._journal), ROWS_MAX))
        rows = reply if isinstance(reply, Refusal) else _filled(msgspec.json.decode(reply.body, type=SqlAnswer), step_s)
        kept = [(one, entry) for one, entry in self._kept.items() if one != key][1 - KEPT_MAX :]
        self._kept = dict([*kept, (key, (now.us + KEPT_US, rows))])
        return rows


def _select(query: HistoryQuery, now: Now, step_s: int, journal: str) -> str:
    """The newest rows first, so that those are kept if `console.sql_rows` allows fewer."""
    since = datetime.fromtimestamp(now.wall_us // 1_000_000 - query.seconds, UTC)
    sums = ", ".join(f"sum({name})" for name in _RATES)
    depth = "last_value({} order by minute) as {}" if query.stream else "null as {1}"
    depths = ", ".join(depth.format(name, f"last_{name}") for name in _DEPTHS)
    name = query.stream.replace("'", "''")
    one = f" and channel = '{name}'" if name else ""
    return (
        f"select date_part('epoch', date_bin(interval '{step_s} seconds', minute)) as at, {sums}, {depths} from {TABLE} "
        f"where journal = '{journal}' and date >= date '{since:%Y-%m-%d}' and minute >= timestamp '{since:%Y-%m-%dT%H:%M:%S}Z'{one} "
        "group by at order by at desc"
    )


def _filled(answer: SqlAnswer, step_s: int) -> list[Row]:
    """The rows in order of time. A step in which nothing happened has no traffic and the depths of the step before."""
    rows: list[Row] = []
    depths: Row = [None] * len(_DEPTHS)
    for at, *values in reversed(answer.rows):
        while rows and at - rows[-1][0] > step_s:
            rows.append([rows[-1][0] + step_s, *[0.0] * len(_RATES), *depths])
        known = values[len(_RATES) :]
        depths = [before if depth is None else depth for depth, before in zip(known, depths, strict=True)]
        rows.append([at, *(round(count / step_s, 3) for count in values[: len(_RATES)]), *depths])
    return rows


RUNNING_MAX = 2
"""Queries at a time: messages need the CPU too."""
ALARM_SLACK_MS = 2_000
"""How long after the timeout a process ends itself, in case the server is gone."""
CUT_HINT = "ask for less: fewer columns, a `where` on `date`, a `limit` inside"
_REFUSED = b'{"refused":'


class _Refused(msgspec.Struct):
    refused: Refusal


class SqlRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `/v1/sql`."""

    query: Annotated[str, msgspec.Meta(min_length=1, max_length=20_000)]
    limit: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 200
    """Maximum number of rows; `console.sql_rows` bounds it further."""


class SqlEndpoint:
    """Runs queries on the tables of one data directory."""

    def __init__(self, data: Path | None, settings: Callable[[], ConsoleSection]) -> None:
        self._data = data
        self._settings = settings
        self._running = 0

    async def sql(self, request: SqlRequest) -> Reply | Refusal:
        """Run one query."""
        if self._data is None:
            return NO_LAKE
        if self._running >= RUNNING_MAX:
            return Refusal("RateLimited", f"{self._running} queries are running")
        settings = self._settings()
        rows = min(request.limit, settings.sql_rows)
        task = SqlTask(str(self._data), request.query, rows, settings.sql_ms + ALARM_SLACK_MS)
        self._running += 1
        try:
            async with asyncio.timeout(settings.sql_ms / 1000):
                return await _run(task)
        except TimeoutError:
            return Refusal("Timeout", f"the query took longer than {settings.sql_ms} ms", hint=CUT_HINT)
        finally:
            self._running -= 1


async def _run(task: SqlTask) -> Reply | Refusal:
    try:
        output = await run_child("penstock.server.admin.sql_process", task, {"RUST_BACKTRACE": "0"})
    except ChildError as failure:
        # Libraries in C++ and Rust abort where Python raises MemoryError.
        if failure.exit_code in (EXIT_OUT_OF_MEMORY, -signal.SIGABRT):
            message = f"the query needs more than {MEMORY_MAX // 2**20} MB of memory"
            return Refusal("InvalidRequest", message, hint=CUT_HINT)
        logs.error("sql.failed", exit=failure.exit_code, output=failure.errors)
        return Refusal("Internal", "the query failed; the log says why")
    if output.startswith(_REFUSED):
        return msgspec.json.decode(output, type=_Refused).refused
    return Reply(200, output)
