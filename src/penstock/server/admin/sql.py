"""Questions to the tables at the desk: each in a process of its own, few at a time, ended when its time is over or nobody waits for it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec

from penstock.core.errors import Refusal
from penstock.server.admin.sql_process import EXIT_OUT_OF_MEMORY, MEMORY_MAX, SqlTask
from penstock.server.config.sections import ConsoleSection
from penstock.server.engine.child_supervisor import ChildError, run_child
from penstock.server.http.admin_routes import Ask
from penstock.server.logging import logs
from penstock.transports.http import Reply

RUNNING_MAX = 2
"""Questions at a time: the messages need the machine too."""
ALARM_SLACK_MS = 2_000
"""How much later than we a process ends itself, for the case that we are gone."""
CUT_HINT = "ask for less: fewer columns, a `where` on `date`, a `limit` inside"
_REFUSED = b'{"refused":'


class _Refused(msgspec.Struct):
    refused: Refusal


class SqlEndpoint:
    """Answers of `/v1/sql`."""

    def __init__(self, data: Path | None, settings: Callable[[], ConsoleSection]) -> None:
        self._data = data
        self._settings = settings
        self._running = 0

    async def sql(self, ask: Ask) -> Reply | Refusal:
        """One question and its answer."""
        if self._data is None:
            hint = "start the server with `--data DIR` to have some"
            return Refusal("UnknownRoute", "this server keeps no tables", hint=hint)
        if self._running >= RUNNING_MAX:
            return Refusal("RateLimited", f"{self._running} questions are being answered")
        settings = self._settings()
        rows = min(ask.body.limit, settings.sql_rows)
        task = SqlTask(str(self._data / "lake"), ask.body.query, rows, settings.sql_ms + ALARM_SLACK_MS)
        self._running += 1
        try:
            async with asyncio.timeout(settings.sql_ms / 1000):
                return await _answered(task)
        except TimeoutError:
            return Refusal("Timeout", f"the question took longer than {settings.sql_ms} ms", hint=CUT_HINT)
        finally:
            self._running -= 1


async def _answered(task: SqlTask) -> Reply | Refusal:
    try:
        output = await run_child("penstock.server.admin.sql_process", task, {"RUST_BACKTRACE": "0"})
    except ChildError as failure:
        # Libraries in C++ and Rust abort where Python raises MemoryError.
        if failure.exit_code in (EXIT_OUT_OF_MEMORY, -signal.SIGABRT):
            message = f"the question needs more than {MEMORY_MAX // 2**20} MB of memory"
            return Refusal("InvalidRequest", message, hint=CUT_HINT)
        logs.error("sql.failed", exit=failure.exit_code, output=failure.errors)
        return Refusal("Internal", "the question could not be answered; the log says why")
    if output.startswith(_REFUSED):
        return msgspec.json.decode(output, type=_Refused).refused
    return Reply(200, output)
