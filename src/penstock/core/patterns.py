"""Globs over stream names: what a pattern matches, and which pattern of several fits best.

Owns the meaning of `*`: any run of characters, none and `/` included, so `agents/*` covers `agents/Jen/inbox`. Nothing else is special.
Cost: one substring search per piece between stars. The leftmost place of each piece is always enough, so nothing backtracks.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import msgspec

STAR = "*"


class Glob(msgspec.Struct, frozen=True):
    """One pattern, cut at its stars."""

    pattern: str
    head: str
    """What a name must start with: the pattern up to its first star, or all of it."""
    middle: tuple[str, ...]
    """Pieces between two stars, in the order in which a name must hold them."""
    tail: str | None
    """What a name must end with; None when the pattern has no star and so names one thing."""

    @classmethod
    def parse(cls, pattern: str) -> Glob:
        """Cut a pattern at its stars; every text is a pattern."""
        head, *rest = pattern.split(STAR)
        if not rest:
            return cls(pattern, head, (), None)
        *middle, tail = rest
        return cls(pattern, head, tuple(piece for piece in middle if piece), tail)

    def matches(self, name: str) -> bool:
        """Whether the pattern covers the whole name."""
        if self.tail is None:
            return name == self.head
        position = len(self.head)
        end = len(name) - len(self.tail)
        # The head and the tail may not share characters: `a*a` does not match `a`.
        if end < position or not name.startswith(self.head) or not name.endswith(self.tail):
            return False
        for piece in self.middle:
            position = name.find(piece, position, end)
            if position < 0:
                return False
            position += len(piece)
        return True


# Patterns come from the config and from tokens, so there are few; the bound guards against a caller's mistake.
_glob = lru_cache(maxsize=4096)(Glob.parse)


def matches(pattern: str, name: str) -> bool:
    """Whether the pattern covers the whole name."""
    return _glob(pattern).matches(name)


def best(patterns: Iterable[str], name: str) -> str | None:
    """The pattern that fits a name most closely, or None when none matches.

    A pattern without a star beats every glob. Among globs the longest text before the first star wins,
    then the one that fixes more characters, then the one that comes first.
    """
    chosen: Glob | None = None
    for pattern in patterns:
        glob = _glob(pattern)
        if glob.matches(name) and (chosen is None or _closeness(glob) > _closeness(chosen)):
            chosen = glob
    return None if chosen is None else chosen.pattern


def _closeness(glob: Glob) -> tuple[bool, int, int]:
    fixed = len(glob.head) + sum(map(len, glob.middle)) + len(glob.tail or "")
    return glob.tail is None, len(glob.head), fixed
