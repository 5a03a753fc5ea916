"""`/v1/sql`: each query runs in a process of its own, which is killed on timeout or when the client disconnects."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec

from penstock.core.errors import Refusal
from penstock.server.admin.lake import NO_LAKE
from penstock.server.admin.sql_process import EXIT_OUT_OF_MEMORY, MEMORY_MAX, SqlTask
from penstock.server.config.sections import ConsoleSection
from penstock.server.engine.child_supervisor import ChildError, run_child
from penstock.server.logging import logs
from penstock.transports.http_replies import Reply

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
