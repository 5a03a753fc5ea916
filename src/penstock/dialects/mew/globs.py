"""Globs of MEW capabilities: which kinds, texts and keys a pattern means, and which pattern means more than another.

Owns the meaning of `*`, `?`, `**` and `!`. A text is a row of names between slashes:

- `?` is one character and `*` any run of characters, none included; neither crosses a slash.
- `**` as a whole name is any number of names, none included: `a/**/b` covers `a/b` and `a/x/y/b`, and `a/**` covers `a`.
- The end of a pattern reaches further, because that is what gateways enforce: a kind `a/*` covers everything below `a/`,
  and a text `read_*` everything that begins so, slashes or not. The kind `*` covers all.
- `!` before a pattern means everything that it does not cover; a second `!` is a character.
- A pattern with wildcards never covers the empty text.
- There are no regular expressions, braces or brackets: these characters mean themselves, and a pattern like `/x.*/`, which
  other programs take for a regular expression, means that text alone.

Cost: one comparison where there is no wildcard but a last star. Otherwise nothing recurses and a failure goes back to
the latest star only, which is always enough; every step is taken from an `Effort`, so no pattern and text together can hold
anybody up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Literal

import msgspec

STAR = "*"
ONE = "?"
DEEP = "**"

TEXT_MAX = 65_536
"""Characters of a text that is compared with wildcards inside a pattern; a longer one is too much effort."""

Place = Literal["kind", "text", "key"]
"""Where a pattern stands: in `kind`, in a payload as a value, or in a payload as a key."""


class ExhaustedError(Exception):
    """A comparison cost more than it was allowed to: nobody knows the answer, so it must count against the asker."""


class Effort:
    """The steps that one question may take."""

    __slots__ = ("left",)

    def __init__(self, steps: int) -> None:
        self.left = steps

    def spend(self, steps: int = 1) -> None:
        self.left -= steps
        if self.left < 0:
            raise ExhaustedError


class CapabilityGlob(msgspec.Struct, frozen=True):
    """One pattern, cut into names."""

    is_negated: bool
    literal: str | None
    """The only text that the pattern covers, where it has no wildcard."""
    prefix: str | None
    """What a text must begin with, where that is all there is to it."""
    names: tuple[str, ...]
    """The pattern between its slashes; `**` stands for any number of names."""

    def matches(self, text: str, effort: Effort) -> bool:
        """Whether the pattern covers the text."""
        return self._reaches(text, effort) != self.is_negated

    @property
    def is_everything(self) -> bool:
        """Whether it covers every text but the empty one."""
        return self.prefix == "" and not self.is_negated

    def covers(self, other: CapabilityGlob, effort: Effort) -> bool:
        """Whether everything that the other covers is surely covered, the empty text aside; False when in doubt."""
        if self == other or self.is_everything:
            return True
        if other.is_negated:
            # Everything but `b` is within everything but `a` where `a` is within `b`.
            return self.is_negated and other._contains(self, effort)
        if self.is_negated:
            return other.literal is not None and self.matches(other.literal, effort)
        return self._contains(other, effort)

    def _contains(self, other: CapabilityGlob, effort: Effort) -> bool:
        """The same of what stands after the `!`, if there is one."""
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
        DEEP if name.strip(STAR) == "" and len(name) > 1 else _squeezed(name) for name in pattern.split("/")
    ]
    is_open = pattern == STAR or pattern.endswith("/*") if place == "kind" else pattern.endswith(STAR)
    prefix = None
    if names == [DEEP]:
        prefix = ""
    elif is_open and names[-1] != DEEP:
        names.append(DEEP)  # the last name, and then anything
        prefix = pattern[:-1] if not has_wildcard(pattern[:-1]) else None
    return CapabilityGlob(is_negated, None, prefix, tuple(names))


def _squeezed(name: str) -> str:
    """A name in which no star follows another."""
    while DEEP in name:
        name = name.replace(DEEP, STAR)
    return name


# Patterns come from capabilities, which are bounded in size; the same few are asked for again and again.
parse: Callable[[str, Place], CapabilityGlob] = lru_cache(maxsize=4096)(_parse)


def _align(
    pattern: Sequence[str],
    star: str,
    items: Sequence[str],
    fits: Callable[[str, str, Effort], bool],
    effort: Effort,
) -> bool:
    """Whether the items can be laid along the pattern, of which `star` takes any number."""
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
    """Whether one name of a pattern covers all that a name of another pattern covers."""
    return other != DEEP and _align(pattern, STAR, other, _character_contains, effort)


def _character_contains(pattern: str, other: str, _: Effort) -> bool:
    return other != STAR and pattern in (other, ONE)
