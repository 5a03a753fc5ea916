"""The answering process: `python -m penstock.server.admin.sql_process`, one question on stdin, its answer on stdout.

Apart from the server, because nobody knows beforehand what a question costs: its memory is bounded by the system, its time by an alarm that
does not need us, it can write no file at all, and with it goes everything that it took.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from penstock.core.errors import PenstockError
from penstock.hide_pandas import hide_pandas
from penstock.journal.plain_values import plain
from penstock.journal.sql import QueryResult, ask

MEMORY_MAX = 768 * 1024 * 1024
"""Bytes that a question may take; the engine alone needs about 200 MB."""
BYTES_MAX = 1024 * 1024
"""Bytes of the rows of an answer."""
EXIT_OUT_OF_MEMORY = 3
"""Exit code when a question needs more than `MEMORY_MAX`."""


class SqlTask(msgspec.Struct):
    """What is asked of which tables, and how much may come back."""

    lake: str
    query: str
    rows_max: int
    alarm_ms: int
    """When to end, whether or not somebody still waits."""


def bound(alarm_ms: int) -> None:
    """Take from this process what a question has no use for."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_MAX, MEMORY_MAX))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.setitimer(signal.ITIMER_REAL, alarm_ms / 1000)


def run(task: SqlTask) -> bytes:
    """The answer as JSON, or what is wrong with the question."""
    begun = time.monotonic()
    try:
        answer = ask(Path(task.lake), task.query)
        rows, is_truncated = _gathered(answer, task.rows_max)
    except PenstockError as error:
        return msgspec.json.encode({"refused": error.refusal})
    return msgspec.json.encode(
        {
            "columns": answer.names,
            "types": answer.types,
            "rows": rows,
            "truncated": is_truncated,
            "ms": int((time.monotonic() - begun) * 1000),
        }
    )


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
    os.nice(10)  # questions can wait, messages cannot
    hide_pandas()
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=SqlTask)
    bound(task.alarm_ms)
    try:
        answer = run(task)
    except MemoryError:
        os._exit(EXIT_OUT_OF_MEMORY)
    sys.stdout.buffer.write(answer)
    sys.stdout.flush()
    # What the engine's threads still do is nobody's any more; waiting for them could take as long as the question itself.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
