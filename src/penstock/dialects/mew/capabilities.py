"""Capabilities: which envelopes a participant may send, and which capabilities it may pass on.

A capability is a JSON object with a `kind`, which is a pattern or a list of alternatives, and optionally a `payload`, which is a pattern
too. Its other keys (`id`, `to` and so on) are ignored. A participant may send what any one of its capabilities matches; there are no deny
rules. Patterns of kinds, texts and keys are those of `globs.py`. In a payload:

- An object matches an object in which every named key matches; other keys are free. An empty `payload` counts as none.
- A text matches texts by its glob; numbers, `true` and `false` match equal values; `null` matches any value and a missing key.
- `!glob` matches any value that is not such a text, and a missing key.
- A list matches a value that one of its items matches (there `null` means `null`). A value that is itself a list is compared item by
  item, in order, and may be longer.
- A key with wildcards matches any key that fits; `**` searches at any depth. A `!glob` under such a key must hold for all matches. A key
  that begins with `$`, a path in other gateways, is a plain name here and must exist.

Everything that older gateways allow is allowed, except where they do not check: numbers and booleans; a payload pattern with `kind: "*"`;
a glob after `!`; a text or a list where the pattern has an object; a payload pattern that is not an object. A match that takes more than
`STEPS_MAX` steps is denied, and so is a payload of more than `VALUES_MAX` values.

Cost: the capabilities for a kind are cached, so the usual envelope costs one lookup. A payload is decoded only if a capability for its
kind has a payload pattern.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from penstock.core import json_checks
from penstock.dialects.mew.globs import DEEP, CapabilityGlob, Effort, ExhaustedError, has_wildcard, parse

Capability = dict[str, Any]

BASELINE: Final[Capability] = {"id": "mcp-response", "kind": "mcp/response"}
"""What every participant may send: responses to requests."""

CAPABILITIES_MAX = 1_024
"""Capabilities of one participant; further ones are dropped."""
PATTERN_MAX = 1_024
"""Characters of one text in a capability; a capability with a longer one is dropped."""
NODES_MAX = 1_024
"""Values in one capability; a larger one is dropped."""
DEPTH_MAX = 32
"""Nesting of one capability; a deeper one is dropped."""
KIND_MAX = 256
"""Characters of a kind; a longer one is denied."""
KINDS_MAX = 1_024
"""Kinds whose capabilities a matcher caches; then the oldest is evicted."""
STEPS_MAX = 50_000
"""Steps of one match, about 10 ms: a longer one is denied and counted."""

_MISSING: Final = object()
_encode = msgspec.json.encode


class _Rule(msgspec.Struct, frozen=True):
    capability: Capability
    kinds: tuple[CapabilityGlob, ...]
    payload: Mapping[str, Any] | None
    """None if every payload matches."""


_Candidates = tuple[_Rule, ...]


def clean(raw: object) -> tuple[Capability, ...]:
    """The valid capabilities of a list, each once."""
    if not isinstance(raw, list | tuple):
        return ()
    found: dict[bytes, Capability] = {}
    for item in raw:
        if len(found) == CAPABILITIES_MAX:
            break
        if isinstance(item, dict) and _is_sound(item):
            found.setdefault(_text(item), item)
    return tuple(found.values())


def with_baseline(capabilities: Sequence[Capability]) -> tuple[Capability, ...]:
    """The capabilities, with the one that every participant has."""
    if BASELINE in capabilities:
        return tuple(capabilities)
    return (*capabilities, BASELINE)


class Matcher:
    """Matches envelopes against the capabilities of one participant."""

    def __init__(self, capabilities: Sequence[Capability]) -> None:
        self._rules = tuple(_rule(capability) for capability in clean(tuple(capabilities)))
        self._known: dict[str, _Candidates] = {}
        self.exhausted = 0
        """Matches that took too many steps and were denied."""

    def match(self, kind: str, payload: bytes | None) -> Capability | None:
        """The first capability that allows an envelope of this kind with this payload, as JSON; None if none does."""
        candidates = self._known.get(kind)
        if candidates is None:
            if not 0 < len(kind) <= KIND_MAX:
                return None
            candidates = self._find(kind)
        content: object = _MISSING
        effort = None
        for rule in candidates:
            if rule.payload is None:
                return rule.capability
            try:
                if effort is None:
                    content, effort = _decoded(payload), Effort(STEPS_MAX)
                if isinstance(content, dict) and _object_fits(rule.payload, content, effort):
                    return rule.capability
            except ExhaustedError:
                self.exhausted += 1
                return None
        return None

    def _find(self, kind: str) -> _Candidates:
        """The rules for a kind, those without a payload pattern first."""
        effort = Effort(STEPS_MAX)
        try:
            found = [rule for rule in self._rules if any(glob.matches(kind, effort) for glob in rule.kinds)]
        except ExhaustedError:
            self.exhausted += 1
            return ()
        found.sort(key=lambda rule: rule.payload is not None)
        if found and found[0].payload is None:
            del found[1:]
        if len(self._known) >= KINDS_MAX:
            del self._known[next(iter(self._known))]
        candidates = self._known[kind] = tuple(found)
        return candidates


def covers(held: Sequence[Capability], asked: Capability) -> bool:
    """Whether one of the held capabilities allows everything that another allows; False when in doubt."""
    if not _is_sound(asked):
        return False
    wanted = _rule(asked)
    rules = [_rule(capability) for capability in clean(tuple(held))]
    effort = Effort(STEPS_MAX)
    try:
        return all(any(_rule_covers(rule, kind, wanted, effort) for rule in rules) for kind in wanted.kinds)
    except ExhaustedError:
        return False


def _rule(capability: Capability) -> _Rule:
    kinds = capability["kind"]
    patterns = [kinds] if isinstance(kinds, str) else kinds
    return _Rule(capability, tuple(parse(kind, "kind") for kind in patterns), capability.get("payload") or None)


def _is_sound(capability: Capability) -> bool:
    """Whether a value is a valid capability within the size limits."""
    kind = capability.get("kind")
    is_kind = isinstance(kind, str) or (
        isinstance(kind, list | tuple) and bool(kind) and all(isinstance(one, str) for one in kind)
    )
    payload = capability.get("payload")
    if not is_kind or not (payload is None or isinstance(payload, dict)):
        return False
    left = NODES_MAX
    waiting: list[tuple[object, int]] = [(capability, 0)]
    while waiting:
        value, depth = waiting.pop()
        match value:
            case dict():
                inner = [*value.keys(), *value.values()]
                if not all(isinstance(key, str) for key in value):
                    return False
            case list() | tuple():
                inner = list(value)
            case str():
                # Half of a surrogate pair, which JSON can escape, has no UTF-8 form.
                if len(value) > PATTERN_MAX or any("\ud800" <= character <= "\udfff" for character in value):
                    return False
                continue
            case float():
                if not math.isfinite(value):
                    return False
                continue
            case int():
                if not -(2**63) <= value < 2**64:
                    return False
                continue
            case None:
                continue
            case _:
                return False
        left -= len(inner)
        if left < 0 or depth == DEPTH_MAX:
            return False
        waiting += [(one, depth + 1) for one in inner]
    return True


def _text(value: object) -> bytes:
    """JSON that is equal for equal values in any order of keys; 1, 1.0 and true differ."""
    return _encode(value, order="sorted")


def _decoded(payload: bytes | None) -> object:
    if payload is None:
        return _MISSING
    try:
        return json_checks.decode(payload)
    except msgspec.ValidationError as error:
        raise ExhaustedError from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _MISSING


def _object_fits(pattern: Mapping[str, Any], value: dict[str, Any], effort: Effort) -> bool:
    return all(_key_fits(key, wanted, value, effort) for key, wanted in pattern.items())


def _key_fits(key: str, wanted: Any, value: dict[str, Any], effort: Effort) -> bool:
    effort.spend()
    if key != DEEP and not has_wildcard(key):
        item = value.get(key, _MISSING)
        return not (item is _MISSING and key.startswith("$")) and _fits(wanted, item, effort)
    if wanted is None:
        return True
    glob = parse(key, "key")
    below = (item for name, item in value.items() if glob.matches(name, effort))
    found = _deep(value, effort) if key == DEEP else below
    # An exclusion must hold for every match, anything else for at least one.
    each = all if isinstance(wanted, str) and wanted.startswith("!") else any
    return each(_fits(wanted, item, effort) for item in found)


def _deep(value: object, effort: Effort) -> Iterator[Any]:
    """A value and all values in it."""
    waiting = [value]
    while waiting:
        effort.spend()
        item = waiting.pop()
        yield item
        if isinstance(item, dict):
            effort.spend(len(item))
            waiting += item.values()
        elif isinstance(item, list):
            effort.spend(len(item))
            waiting += item


def _fits(pattern: Any, value: object, effort: Effort) -> bool:
    effort.spend()
    match pattern:
        case None:
            return True
        case str():
            glob = parse(pattern, "text")
            return glob.matches(value, effort) if isinstance(value, str) else glob.is_negated
        case dict():
            return isinstance(value, dict) and _object_fits(pattern, value, effort)
        case list() | tuple():
            if isinstance(value, list):
                items = [*value[: len(pattern)], *[_MISSING] * (len(pattern) - len(value))]
                return all(_fits(one, item, effort) for one, item in zip(pattern, items, strict=True))
            if value is _MISSING:
                return False
            return any(value is None if one is None else _fits(one, value, effort) for one in pattern)
        case _:
            # In Python true equals 1; in JSON it does not.
            return isinstance(value, int | float) and (
                isinstance(pattern, bool) == isinstance(value, bool) and bool(pattern == value)
            )


def _rule_covers(rule: _Rule, kind: CapabilityGlob, wanted: _Rule, effort: Effort) -> bool:
    if not any(glob.covers(kind, effort) for glob in rule.kinds):
        return False
    if rule.payload is None:
        return True
    return wanted.payload is not None and _object_covers(rule.payload, wanted.payload, effort)


def _object_covers(held: Mapping[str, Any], asked: Mapping[str, Any], effort: Effort) -> bool:
    return all(_key_covers(key, wanted, asked.get(key, _MISSING), effort) for key, wanted in held.items())


def _key_covers(key: str, held: Any, asked: Any, effort: Effort) -> bool:
    effort.spend()
    if asked is _MISSING:
        return held is None and not key.startswith("$")
    return _text(held) == _text(asked) if has_wildcard(key) else _covers(held, asked, effort)


def _covers(held: Any, asked: Any, effort: Effort) -> bool:
    effort.spend()
    if held is None or _text(held) == _text(asked):
        return True
    match held, asked:
        case str(), str():
            return _text_covers(parse(held, "text"), parse(asked, "text"), effort)
        case str(), None | list() | tuple():
            return False
        case str(), _:
            return parse(held, "text").is_negated  # a number or an object is not such a text
        case dict(), dict():
            return _object_covers(held, asked, effort)
        case ((list() | tuple()), str()):
            # An exclusion also matches a list and a missing key.
            return not asked.startswith("!") and _one_covers(held, asked, effort)
        case ((list() | tuple()), (bool() | int() | float() | dict())):
            return _one_covers(held, asked, effort)
    return False


def _one_covers(held: Sequence[Any], asked: Any, effort: Effort) -> bool:
    return any(one is not None and _covers(one, asked, effort) for one in held)


def _text_covers(held: CapabilityGlob, asked: CapabilityGlob, effort: Effort) -> bool:
    # An exclusion also matches values that are not texts, so only another exclusion covers it. And `*` does not cover "".
    if asked.is_negated and not held.is_negated:
        return False
    return held.covers(asked, effort) if asked.literal != "" or held.is_negated else held == asked
