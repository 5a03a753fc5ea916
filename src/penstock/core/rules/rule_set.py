"""The rules of one machine: those of the config, those set at run time, and what they wait for.

A change at run time is a fact like any other: it counts at once, is durable with its commit, and is undone if that is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.core.errors import Refusal
from penstock.core.records import Record, Ruled
from penstock.core.rules.rule_index import HOOKS, Rule, RuleIndex

if TYPE_CHECKING:
    from penstock.core.queue.state import QueueState

RETRY_WRITE_MS = 50
"""Retry hint while an earlier change of the same rule is being written: a few commits."""


class Cascade(msgspec.Struct):
    """Everything that one cause has brought about so far."""

    sent: int = 0


class Cooling(msgspec.Struct, eq=False):
    """A rule that fired for a key and rests there for a while."""

    rule: Rule
    key: str
    until_us: int
    is_owed: bool = False
    """The journal refused the firing that began it, so what it suppressed must still be reported. It keeps no firing, and so no source."""
    suppressed: int = 0
    last: tuple[Record, bytes] | None = None
    """The newest suppressed source, and its bytes."""
    ticket: int = 0

    @property
    def bytes(self) -> int:
        """What it keeps of that source."""
        if self.last is None:
            return 0
        record, body = self.last
        return len(body) if body is record.body else len(body) + len(record.body)


class Firing(msgspec.Struct, eq=False):
    """One rule acting on one source."""

    rule: Rule
    source: Record
    left: int = 0
    """Sends not answered yet."""
    sent: list[tuple[str, str]] = []
    """Where they went, under which ids."""
    failures: list[str] = []
    known: int = 0
    cooling: Cooling | None = None
    suppressed: int = 0
    is_undone: bool = False


_NO_RULES = RuleIndex(())


class Triggers(msgspec.Struct, eq=False):
    """The rules of one machine, and what they are waiting for."""

    base: dict[str, Rule] = {}
    """Rules of the config."""
    given: dict[str, Rule] = {}
    """Rules that were given at run time; each stands in for one of the config with the same id."""
    texts: dict[str, str] = {}
    """The same as they are journaled. One that this version cannot read is kept and not tried."""
    rules: dict[str, Rule] = {}
    """Both, in the order in which they are tried."""
    changing: dict[str, int] = {}
    """The commit of the newest change of a rule, while that is undecided or was lately."""
    cooling: dict[tuple[str, str], Cooling] = {}
    kept_bytes: int = 0
    """What cooldowns keep for their summaries."""
    pending: dict[Record, Firing] = {}
    """What rules have sent and the journal has not answered for."""
    on_insert: RuleIndex = _NO_RULES
    on_ack: RuleIndex = _NO_RULES
    on_timeout: RuleIndex = _NO_RULES
    on_dead: RuleIndex = _NO_RULES

    def install(self, rules: list[Rule]) -> None:
        """Replace the rules of the config. One that stays as it was keeps its counts, its cooldowns and its breaker."""
        before = self.base
        self.base = {
            rule.id: before[rule.id] if rule.id in before and before[rule.id].definition == rule.definition else rule
            for rule in rules
        }
        self._merge()

    def give(self, rule_id: str, text: str | None, rule: Rule | None) -> None:
        """Give a rule at run time, or take it back."""
        if text is None:
            self.texts.pop(rule_id, None)
        else:
            self.texts[rule_id] = text
        if rule is None:
            self.given.pop(rule_id, None)
        else:
            self.given[rule_id] = rule
        self._merge()

    def forget(self, key: tuple[str, str]) -> None:
        """A cooldown ends without a word. Its timer finds nothing to do, and holds no envelope meanwhile."""
        cooling = self.cooling.pop(key)
        self.kept_bytes -= cooling.bytes
        cooling.ticket = 0
        cooling.last = None

    def _merge(self) -> None:
        self.rules = rules = {**self.base, **self.given}
        for key, cooling in list(self.cooling.items()):
            if rules.get(key[0]) is not cooling.rule:
                self.forget(key)
        enabled = [rule for rule in rules.values() if rule.enabled]
        for hook in HOOKS:
            setattr(self, hook, RuleIndex([rule for rule in enabled if rule.hook == hook]))


def change(state: QueueState, rule_id: str, text: str | None, rule: Rule | None) -> int | Refusal:
    """Give a rule at run time, or take it back; durable once the returned gate is committed."""
    triggers = state.triggers
    triggers.changing = {id_: gate for id_, gate in triggers.changing.items() if gate > state.commit_log.decided}
    if triggers.changing.get(rule_id, state.commit_log.gate) != state.commit_log.gate:
        # Were that one refused and this one not, taking that one back would undo this one.
        busy = f"an earlier change of `{rule_id}` is being written"
        return Refusal("JournalUnavailable", busy, ref=rule_id, retry_after_ms=RETRY_WRITE_MS)
    triggers.changing[rule_id] = state.commit_log.gate
    fact = Ruled(rule_id, text, triggers.texts.get(rule_id), triggers.given.get(rule_id))
    triggers.give(rule_id, text, rule)
    state.commit_log.facts.append(fact)
    return state.commit_log.gate


def unchange(state: QueueState, fact: Ruled) -> None:
    """The commit of a change was refused: it never was."""
    state.triggers.give(fact.id, fact.text_before, fact.rule_before)
