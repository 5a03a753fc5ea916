"""The SQL child process: `python -m penstock.server.admin.sql_process` reads one query on stdin and writes its answer to stdout.

A process of its own, because the cost of a query is unknown: the kernel bounds its memory, an alarm its time, it can
write no file, and its end frees all it took.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import msgspec

from penstock.core.errors import PenstockError
from penstock.hide_pandas import hide_pandas
from penstock.ipc.processor_share import yield_processor
from penstock.journal.lake_location import lake_of
from penstock.journal.plain_values import plain
from penstock.journal.sql import QueryResult, ask

MEMORY_MAX = 768 * 1024 * 1024
"""Bytes that a query may take; the engine alone needs about 200 MB."""
BYTES_MAX = 1024 * 1024
"""Bytes of the rows of an answer."""
EXIT_OUT_OF_MEMORY = 3
"""Exit code when a question needs more than `MEMORY_MAX`."""


class SqlTask(msgspec.Struct):
    """A query, its tables and its bounds."""

    data: str
    query: str
    rows_max: int
    alarm_ms: int
    """When the process ends itself."""


class SqlAnswer(msgspec.Struct):
    """The rows of a query."""

    columns: list[str]
    types: list[str]
    rows: list[list[Any]]
    truncated: bool
    ms: Annotated[int, msgspec.Meta(ge=0)]


def bound(alarm_ms: int) -> None:
    """Bound memory, files and time of this process."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_MAX, MEMORY_MAX))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.setitimer(signal.ITIMER_REAL, alarm_ms / 1000)


def run(task: SqlTask) -> bytes:
    """The answer, or the refusal, as JSON."""
    begun = time.monotonic()
    try:
        answer = ask(lake_of(Path(task.data)), task.query)
        rows, is_truncated = _gathered(answer, task.rows_max)
    except PenstockError as error:
        if is_out_of_memory(error):
            raise
        return msgspec.json.encode({"refused": error.refusal})
    elapsed_ms = int((time.monotonic() - begun) * 1000)
    return msgspec.json.encode(SqlAnswer(answer.names, answer.types, rows, is_truncated, elapsed_ms))


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether a MemoryError is the cause, however it is wrapped: `ask` turns every failure of the engine into a refusal."""
    while error is not None and not isinstance(error, MemoryError):
        error = error.__cause__ or error.__context__
    return error is not None


def _gathered(answer: QueryResult, rows_max: int) -> tuple[list[Any], bool]:
    """The rows that fit, and whether there are more."""
    rows: list[Any] = []
    size = 0
    for row in answer.rows:
        encoded = msgspec.json.encode([plain(value) for value in row])
        size += len(encoded) + 1
        if len(rows) >= rows_max or size > BYTES_MAX:
            return rows, True
        rows.append(msgspec.Raw(encoded))
    return rows, False


def main() -> int:
    yield_processor(10)  # queries can wait, messages cannot
    hide_pandas()
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=SqlTask)
    bound(task.alarm_ms)
    try:
        answer = run(task)
    except Exception as error:
        if is_out_of_memory(error):
            os._exit(EXIT_OUT_OF_MEMORY)
        raise
    sys.stdout.buffer.write(answer)
    sys.stdout.flush()
    # Do not wait for the engine's threads: that could take as long as the query itself.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
