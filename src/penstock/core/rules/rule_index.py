"""Rules: what a trigger waits for, how to find the few that could match a record, and what each has done.

The cheap conditions of a rule (channel, kind, sender) are indexed here; the rest of its predicate, and everything it writes, is a
`Script` of the dialect. Finding candidates costs one lookup by channel and one by kind, however many rules there are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from penstock.core.patterns import matches
from penstock.core.tenants import TENANTS

if TYPE_CHECKING:
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

    def act(self, source: Any, moment: Moment) -> list[Emission | Failure]:
        """What the rule sends, in the order of its actions."""

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

    __slots__ = ("_by_kind", "_others", "rules")

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        self.rules = rules
        exact = {kind: None for rule in rules for kind in rule.kinds or () if "*" not in kind}
        self._by_kind = {kind: tuple(rule for rule in rules if rule.takes_kind(kind)) for kind in exact}
        self._others = tuple(rule for rule in rules if rule.kinds is None or any("*" in kind for kind in rule.kinds))

    def of_kind(self, kind: str) -> tuple[Rule, ...]:
        """In the order of the rules. Those with a pattern for the kind are still to be tried on it."""
        return self._by_kind.get(kind, self._others)


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
