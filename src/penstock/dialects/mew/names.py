"""Ids that look alike. People and models read ids, so an id that looks like another one could speak in its place.

The plain form of an ASCII id is trimmed and case-folded. Any other id is also normalised (NFKC), loses its invisible characters, and has
letters of one script. Glyphs that only resemble each other within a script stay distinct: `worker-1` and `worker-l` are two ids.
"""
# size: one rule, which joins, invitations and the config share

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from unicodedata import category, name, normalize

FORMS_MAX = 16_384
"""Plain forms that are remembered: a join compares the ids of a whole space."""
_INVISIBLE = re.compile("[\u034f\u115f\u1160\u3164\uffa0\ufe00-\ufe0f\U000e0100-\U000e01ef]")
_EAST_ASIAN = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO", "IDEOGRAPHIC")
"""Scripts that one text mixes; they count as one."""


@lru_cache(FORMS_MAX)
def plain_form(id_: str) -> str:
    """The form that ids which look alike have in common."""
    if not id_.isascii():
        id_ = normalize("NFKC", normalize("NFKC", _INVISIBLE.sub("", id_)).casefold())
    return id_.strip().casefold()


def has_one_script(id_: str) -> bool:
    """Whether all letters of an id are of one script."""
    if id_.isascii():
        return True
    words = {name(each, "").partition(" ")[0] for each in normalize("NFKC", id_) if category(each)[0] == "L"}
    return len({"CJK" if word in _EAST_ASIAN else word for word in words}) <= 1


def lookalike(id_: str, others: Iterable[str]) -> str | None:
    """The first of other ids that looks like this one."""
    form = plain_form(id_)
    return next((other for other in others if other != id_ and plain_form(other) == form), None)
