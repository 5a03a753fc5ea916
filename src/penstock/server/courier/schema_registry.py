"""The registry of payload schemas that a machine asks, and the log lines for payloads that do not match."""
# size: the schema files are read and compiled in `files/schema_files.py`

from __future__ import annotations

import time
from collections.abc import Callable

from penstock.core.queue.policy import Policy
from penstock.core.queue.state import Schemas
from penstock.dialects.courier.operations.payload_schemas import Registry
from penstock.server.files.schema_files import read_schemas
from penstock.server.logging import logs

NOTICE_S = 10.0
"""How often the mismatches of a stream are logged, with their number."""
NOTICED_MAX = 1_000
"""Streams with a pending notice; at the bound all are cleared."""


def load_registry(folder: str | None, policy_for: Callable[[str], Policy]) -> Registry | None:
    """The registry of a directory, whose files the config check has verified; None without a directory."""
    return None if folder is None else Registry(read_schemas(folder)[0], policy_for, Notices())


def reload_registry(before: Schemas | None, folder: str | None, policy_for: Callable[[str], Policy]) -> Registry | None:
    """The registry after a reload of the config; keeps its counters."""
    registry = load_registry(folder, policy_for)
    if registry is not None and isinstance(before, Registry):
        registry.warned, registry.refused = before.warned, before.refused
    return registry


class Notices:
    """Logs mismatches that passed with a warning, rate-limited per stream."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due: dict[str, float] = {}
        self._unsaid: dict[str, int] = {}

    def __call__(self, stream: str, problem: str) -> None:
        now = self._clock()
        count = self._unsaid.get(stream, 0) + 1
        if now < self._due.get(stream, now):
            self._unsaid[stream] = count
            return
        if len(self._due) >= NOTICED_MAX:
            self._due.clear()
            self._unsaid.clear()
        self._due[stream] = now + NOTICE_S
        self._unsaid[stream] = 0
        logs.warning("schema.misfit", stream=stream, problem=problem, envelopes=count)
