"""The effects of triggers in the durable rows.

It knows the promise of one rule, `AUDIT`, and shares nothing with the engine but its counts of failed actions.
"""

from __future__ import annotations

import re

import msgspec

from penstock.core.limits import Limits
from penstock.core.queue.machine import QueueMachine
from penstock.core.rows import Row
from tests.simulation.queue import checks
from tests.simulation.queue.checks import Broken
from tests.simulation.queue.history import History

AUDIT = "audit"
AUDIT_STREAM = "audit/log"
AUDITED = ("a/jobs", "agents/b/inbox")
"""Streams that the rule is about."""
MOVED = '{"moved":true}'
"""What the row of a dead letter says that is sent home, which sets nothing off."""
_HOPS = "x-courier-hops"
_RULES = "x-courier-rules"
_RULE = re.compile(r"trg-([a-z]+)-[0-9]-")


class _Sent(msgspec.Struct):
    headers: dict[str, object] | None = None


class TriggerChecks:
    """Checks every batch of rows for what rules owe and what they must not do."""

    def __init__(self, history: History, limits: Limits) -> None:
        self._history = history
        self._limits = limits
        self._missing: dict[str, None] = {}
        self._excused = 0
        """What rules of earlier lives could not do."""
        self._sources: dict[str, int] = {}
        self._letters: dict[str, int] = {}

    def crashed(self, machine: QueueMachine) -> None:
        """A life is over, and its counts with it."""
        self._excused += _excuses(machine)

    def committed(self, rows: list[Row], machine: QueueMachine) -> None:
        """Rows became durable together."""
        together = {(row.channel, row.id) for row in rows if row.event == "enqueue"}
        for row in rows:
            if row.event != "enqueue" or row.body is None or row.id is None:
                continue
            headers = msgspec.json.decode(row.body, type=_Sent).headers or {}
            self._bounded(row, headers)
            if row.id.startswith(f"trg-{AUDIT}-"):
                self._once(row)
            elif row.kind == "t" and row.channel in AUDITED and _RULES not in headers and row.meta != MOVED:
                self._owed(row, together)
        if len(self._missing) > self._excused + _excuses(machine):
            raise Broken(checks.TRIGGERS, f"of {list(self._missing)} nobody was told, and nothing says why")

    def _owed(self, row: Row, together: set[tuple[str, str | None]]) -> None:
        """An envelope that the rule waits for is durable: so is what it causes, or it was before."""
        assert row.id is not None
        self._sources[row.id] = self._sources.get(row.id, 0) + 1
        letter = f"trg-{AUDIT}-0-{row.id}"
        if (AUDIT_STREAM, letter) not in together and (AUDIT_STREAM, letter) not in self._history.known:
            self._missing[row.id] = None

    def _once(self, row: Row) -> None:
        """No source is reported more often than it arrived."""
        assert row.id is not None
        source = row.id.removeprefix(f"trg-{AUDIT}-0-")
        self._letters[source] = told = self._letters.get(source, 0) + 1
        if told > self._sources.get(source, 0):
            raise Broken(checks.TRIGGERS, f"`{source}` was told of {told} times, and came less often")

    def _bounded(self, row: Row, headers: dict[str, object]) -> None:
        hops = headers.get(_HOPS, 0)
        chain = str(headers.get(_RULES, "")).split(",")
        named = _RULE.findall(row.id or "")  # ids are derived from one another, so they show the whole path too
        is_twice = len(chain) != len(set(chain)) or len(named) != len(set(named))
        if not isinstance(hops, int) or hops > self._limits.trigger_hops_max or is_twice:
            raise Broken(checks.TRIGGERS, f"`{row.id}` ran in a circle: {headers}")


def _excuses(machine: QueueMachine) -> int:
    rule = machine.triggers.rules.get(AUDIT)
    return 0 if rule is None else rule.activity.fail + rule.activity.blocked
