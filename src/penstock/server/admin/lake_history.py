"""`GET /v1/history`: what the rings of the server hold, and before that what the table `queue_minutes` holds.

A query of the lake runs in a process of its own, one at a time, and its rows are kept for a minute: a page asks every few seconds.
"""

from __future__ import annotations

import asyncio
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from penstock.core.clock import Now
from penstock.core.errors import Refusal
from penstock.journal.lake_location import lake_of
from penstock.server.admin.lake import NO_LAKE
from penstock.server.admin.sql import SqlEndpoint, SqlRequest
from penstock.server.admin.sql_process import SqlAnswer
from penstock.server.metrics.history import STREAM_METRICS, HistoryQuery, HistoryReply, MetricsHistory

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

    async def reply(self, query: HistoryQuery, now: Now) -> HistoryReply:
        """The rows of the last `seconds`; `note` says why there are no rows of the lake among them."""
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
