"""The rules of one machine: those of the config, those set at run time, how to find the few that could match a record, and what each has done.

A change at run time is a fact like any other: it counts at once, is durable with its commit, and is undone if that is refused.

The cheap conditions of a rule (channel, kind, sender) are indexed here; the rest of its predicate, and everything it writes, is a
`Script` of the dialect. Finding candidates costs one lookup by channel and one by kind, however many rules there are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from penstock.core.errors import Refusal
from penstock.core.patterns import matches
from penstock.core.records import Record, Ruled
from penstock.core.tenants import TENANTS

if TYPE_CHECKING:
    from penstock.core.queue.state import QueueState
    from penstock.core.records import Record

Hook = Literal["on_insert", "on_ack", "on_timeout", "on_dead"]
HOOKS: tuple[Hook, ...] = ("on_insert", "on_ack", "on_timeout", "on_dead")

RECENT_MAX = 20
"""Firings that a rule remembers for `explain`."""
INDEX_MAX = 100_000
"""Channels whose candidates are remembered; then the memory starts over."""


class Emission(msgspec.Struct, gc=False, eq=False):
    """A record that an action sends."""

    channel: str
    record: Record
    moves: bool = False
    """The source itself goes there, and leaves where it is."""
    is_source: bool = False
    """It is the source itself, or a copy of it: with its time, if it was scheduled."""


class Failure(msgspec.Struct, frozen=True):
    """Why an action could not be carried out."""

    reason: str


class Moment(msgspec.Struct, gc=False):
    """What a script knows apart from the envelope. It counts its own warnings here."""

    wall_us: int
    rule: str
    attempt: int = 0
    suppressed: int = 0
    is_summary: bool = False
    warnings: int = 0


class Source(Protocol):
    """A record as a script sees it, parsed only as far as needed."""

    @property
    def hops(self) -> int:
        """How many rules have acted on it."""

    @property
    def chain(self) -> tuple[str, ...]:
        """Which rules."""

    @property
    def enriched(self) -> tuple[str, ...]:
        """Which rules have added to it."""


class Script(Protocol):
    """The part of a rule that knows what records say."""

    def fits(self, source: Any) -> bool:
        """Whether the rest of the predicate holds."""

    def key(self, source: Any) -> str:
        """What the cooldown is counted by."""

    def act(self, source: Any, moment: Moment) -> Iterator[Emission | Failure]:
        """What the rule sends, in the order of its actions, each written when it is asked for."""

    def enrich(self, source: Any, moment: Moment) -> bytes | Failure:
        """The record's bytes with what the rule adds before it is taken."""


class Activity(msgspec.Struct):
    """What a rule has done since the server started."""

    run: int = 0
    """Firings."""
    emitted: int = 0
    """Records that were taken by their channels."""
    duplicates: int = 0
    """Records that their channels knew already."""
    fail: int = 0
    """Actions that could not be carried out."""
    suppressed: int = 0
    """Matches within a cooldown."""
    warn: int = 0
    """Placeholders that stood for nothing."""
    enriched: int = 0
    looped: int = 0
    """Matches on records that the rule itself has acted on."""
    hops: int = 0
    """Matches on records that too many rules have acted on."""
    blocked: int = 0
    """Matches while the breaker was open."""
    undone: int = 0
    """Firings that the journal refused."""


class Rule(msgspec.Struct, eq=False, kw_only=True):
    """One trigger at work."""

    id: str
    hook: Hook
    script: Script
    definition: Any
    """As it was written, for people."""
    channels: tuple[str, ...] | None = None
    """Patterns of which the channel's name must fit one; None takes every channel."""
    kinds: tuple[str, ...] | None = None
    senders: tuple[str, ...] | None = None
    enriches: bool = False
    acts: bool = True
    """Whether it does more than enrich."""
    enabled: bool = True
    origin: Literal["config", "runtime"] = "config"
    cooldown_us: int = 0
    trailing: bool = False
    activity: Activity = msgspec.field(default_factory=Activity)
    recent: deque[dict[str, Any]] = msgspec.field(default_factory=lambda: deque(maxlen=RECENT_MAX))
    failures: int = 0
    """Firings in a row that failed."""
    open_until_us: int = 0
    """The breaker: until then nothing is tried."""

    def takes_kind(self, kind: str) -> bool:
        return self.kinds is None or any(matches(pattern, kind) for pattern in self.kinds)

    def takes_sender(self, sender: str | None) -> bool:
        if self.senders is None:
            return True
        return sender is not None and any(matches(pattern, sender) for pattern in self.senders)

    def takes_channel(self, name: str) -> bool:
        """Whether it looks at a channel; at a tenant's only where it says so, as scopes do."""
        if name.startswith(TENANTS):
            patterns = self.channels or ()
            return any(pattern.startswith(TENANTS) and matches(pattern, name) for pattern in patterns)
        return self.channels is None or any(matches(pattern, name) for pattern in self.channels)


class Candidates:
    """The rules that could fit a record of one channel."""

    __slots__ = ("_by_kind", "_exact", "_others", "rules")

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        self.rules = rules
        self._exact = frozenset(kind for rule in rules for kind in rule.kinds or () if "*" not in kind)
        self._by_kind: dict[str, tuple[Rule, ...]] = {}
        """Those of an exact kind, since it was first seen: for all at once it would cost the square of the rules."""
        self._others = tuple(rule for rule in rules if rule.kinds is None or any("*" in kind for kind in rule.kinds))

    def of_kind(self, kind: str) -> tuple[Rule, ...]:
        """In the order of the rules. Those with a pattern for the kind are still to be tried on it."""
        if kind not in self._exact:
            return self._others
        found = self._by_kind.get(kind)
        if found is None:
            found = self._by_kind[kind] = tuple(rule for rule in self.rules if rule.takes_kind(kind))
        return found


class RuleIndex:
    """The enabled rules of one hook, found by channel."""

    __slots__ = ("_known", "_shared", "rules")

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = tuple(rules)
        self._known: dict[str, Candidates | None] = {}
        self._shared: dict[tuple[str, ...], Candidates] = {}

    def __bool__(self) -> bool:
        return bool(self.rules)

    def candidates(self, channel: str) -> Candidates | None:
        """None when no rule can fit anything there."""
        try:
            return self._known[channel]
        except KeyError:
            pass
        if len(self._known) >= INDEX_MAX:
            self._known.clear()
            self._shared.clear()
        rules = tuple(rule for rule in self.rules if rule.takes_channel(channel))
        found = None
        if rules:
            ids = tuple(rule.id for rule in rules)
            found = self._shared.get(ids)
            if found is None:
                found = self._shared[ids] = Candidates(rules)
        self._known[channel] = found
        return found


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
