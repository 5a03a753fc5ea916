"""Globs of MEW capabilities: which kinds, texts and keys a pattern matches, and which pattern covers another.

Owns the meaning of `*`, `?`, `**` and `!`. A text is a list of names separated by slashes:

- `?` is one character and `*` any run of characters, none included; neither crosses a slash.
- `**` as a whole name is any number of names, none included: `a/**/b` covers `a/b` and `a/x/y/b`, and `a/**` covers `a`.
- The end of a pattern reaches further, as in other gateways: a kind `a/*` covers everything below `a/`, and a text `read_*` everything
  with that prefix, slashes included. The kind `*` covers all kinds.
- `!` before a pattern negates it; a second `!` is a character.
- A pattern with wildcards never covers the empty text.
- There are no regular expressions, braces or brackets: these characters are literal, and a pattern like `/x.*/`, a regular expression in
  other gateways, matches that text only.

Cost: one comparison if the only wildcard is a final star. Otherwise matching does not recurse, and a mismatch backtracks to the latest
star only, which is always sufficient. Every step is charged to an `Effort`, so no pattern can block the loop.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import msgspec

STAR = "*"
ONE = "?"
DEEP = "**"

TEXT_MAX = 65_536
"""Characters of a text that is matched against wildcards; a longer one exhausts the effort."""

Place = Literal["kind", "text", "key"]
"""Where a pattern is used: in `kind`, as a value of a payload, or as a key of one."""


class ExhaustedError(Exception):
    """A match took more steps than allowed: the answer is unknown, so it counts as no."""


@dataclass(slots=True)
class Effort:
    """The steps that one match may still take."""

    left: int

    def spend(self, steps: int = 1) -> None:
        self.left -= steps
        if self.left < 0:
            raise ExhaustedError


class CapabilityGlob(msgspec.Struct, frozen=True):
    """One pattern, split into names."""

    is_negated: bool
    literal: str | None
    """The only text that the pattern covers, if it has no wildcard."""
    prefix: str | None
    """The prefix that a text needs, if that is the whole condition."""
    names: tuple[str, ...]
    """The pattern between its slashes; `**` stands for any number of names."""

    def matches(self, text: str, effort: Effort) -> bool:
        """Whether the pattern covers the text."""
        return self._reaches(text, effort) != self.is_negated

    def covers(self, other: CapabilityGlob, effort: Effort) -> bool:
        """Whether it covers everything that the other covers, except the empty text; False when in doubt."""
        is_everything = self.prefix == "" and not self.is_negated
        if self == other or is_everything:
            return True
        if other.is_negated:
            # "not b" is within "not a" if a is within b.
            return self.is_negated and other._contains(self, effort)
        if self.is_negated:
            return other.literal is not None and self.matches(other.literal, effort)
        return self._contains(other, effort)

    def _contains(self, other: CapabilityGlob, effort: Effort) -> bool:
        """The same for the patterns without their `!`."""
        if other.literal is not None:
            return self._reaches(other.literal, effort)
        if self.literal is not None:
            return False
        return self.prefix == "" or _align(self.names, DEEP, other.names, _name_contains, effort)

    def _reaches(self, text: str, effort: Effort) -> bool:
        effort.spend()
        if self.literal is not None:
            return text == self.literal
        if self.prefix is not None:
            return bool(text) and text.startswith(self.prefix)
        if not text:
            return False
        if len(text) > TEXT_MAX:
            raise ExhaustedError
        return _align(self.names, DEEP, text.split("/"), _name_fits, effort)


def has_wildcard(pattern: str) -> bool:
    return STAR in pattern or ONE in pattern


def _parse(pattern: str, place: Place) -> CapabilityGlob:
    is_negated = place != "key" and pattern.startswith("!")
    if is_negated:
        pattern = pattern[1:]
    is_expression = len(pattern) > 1 and pattern.startswith("/") and pattern.endswith("/")
    if is_expression or not has_wildcard(pattern):
        return CapabilityGlob(is_negated, pattern, None, ())
    names = [
        DEEP if name.strip(STAR) == "" and len(name) > 1 else re.sub(r"\*+", STAR, name) for name in pattern.split("/")
    ]
    is_open = pattern == STAR or pattern.endswith("/*") if place == "kind" else pattern.endswith(STAR)
    prefix = None
    if names == [DEEP]:
        prefix = ""
    elif is_open and names[-1] != DEEP:
        names.append(DEEP)  # the last name, then anything
        prefix = pattern[:-1] if not has_wildcard(pattern[:-1]) else None
    return CapabilityGlob(is_negated, None, prefix, tuple(names))


# Patterns come from capabilities, which are bounded in size; the same few are used again and again.
parse: Callable[[str, Place], CapabilityGlob] = lru_cache(maxsize=4096)(_parse)


def _align(
    pattern: Sequence[str], star: str, items: Sequence[str], fits: Callable[[str, str, Effort], bool], effort: Effort
) -> bool:
    """Whether the items match the pattern, in which `star` matches any number of items."""
    p = i = 0
    retry_p, retry_i = -1, 0
    while i < len(items):
        effort.spend()
        if p < len(pattern) and pattern[p] == star:
            p += 1
            retry_p, retry_i = p, i
        elif p < len(pattern) and fits(pattern[p], items[i], effort):
            p += 1
            i += 1
        elif retry_p >= 0:
            retry_i += 1
            p, i = retry_p, retry_i
        else:
            return False
    return all(rest == star for rest in pattern[p:])


def _name_fits(pattern: str, name: str, effort: Effort) -> bool:
    if not has_wildcard(pattern):
        return pattern == name
    return _align(pattern, STAR, name, _character_fits, effort)


def _character_fits(pattern: str, character: str, _: Effort) -> bool:
    return pattern in (character, ONE)


def _name_contains(pattern: str, other: str, effort: Effort) -> bool:
    """Whether one name of a pattern covers a name of another pattern."""
    return other != DEEP and _align(pattern, STAR, other, _character_contains, effort)


def _character_contains(pattern: str, other: str, _: Effort) -> bool:
    return other != STAR and pattern in (other, ONE)
