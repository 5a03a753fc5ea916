"""A thread for work that would hold up the loop: one call after another, results on the loop in the same order."""
# size: a port of two lines on a thread

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class Worker:
    """`Work` of a replicated journal. A call that raises is a bug: its journal stops, and the loop logs it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)

    def __call__(self, call: Callable[[], T], done: Callable[[T], None]) -> None:
        self._loop.run_in_executor(self._thread, call).add_done_callback(lambda future: done(future.result()))

    def close(self) -> None:
        """Finish what was begun."""
        self._thread.shutdown()
