"""Globs of capabilities, compared with slow and obvious models."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from penstock.dialects.mew.globs import Effort, parse
from tests.dialects.mew.test_capabilities import patterns, texts


def obvious(pattern: str, place: str) -> re.Pattern[str]:
    """A pattern as a regular expression, one name after another."""
    if (len(pattern) > 1 and pattern[0] == pattern[-1] == "/") or not {"*", "?"} & set(pattern):
        return re.compile(re.escape(pattern))
    names = pattern.split("/")
    last = len(names) - 1
    has_tail = pattern == "*" or pattern.endswith("/*") if place == "kind" else pattern.endswith("*")
    wholes = [len(name) > 1 and set(name) == {"*"} for name in names]
    if has_tail and not wholes[last]:
        names.append("**")
        wholes.append(True)
    # Each name is written with a slash before it, and so is the text.
    parts = [
        "(/[^/]*)*" if whole else "/" + re.escape(name).replace(r"\*", "[^/]*").replace(r"\?", "[^/]")
        for name, whole in zip(names, wholes, strict=True)
    ]
    return re.compile("".join(parts))


@pytest.mark.promise("Capabilities and log files of a gateway", "a glob has one meaning")
@given(patterns, texts, st.sampled_from(["kind", "text"]))
@example("a/**", "a", "kind")
@example("**/**", "a", "kind")
def test_a_glob_means_what_the_obvious_expression_means(pattern: str, text: str, place: Any) -> None:
    expression = obvious(pattern, place)
    is_plain = expression.pattern == re.escape(pattern)
    expected = bool(expression.fullmatch(text if is_plain else "/" + text)) and (is_plain or text != "")
    assert parse(pattern, place).matches(text, Effort(100_000)) is expected
    if not pattern.startswith("!"):
        assert parse("!" + pattern, place).matches(text, Effort(100_000)) is not expected


@pytest.mark.promise("Capabilities and log files of a gateway", "a participant can grant only what it provably has")
@pytest.mark.parametrize("place", ["kind", "text"])
def test_a_glob_covers_another_only_where_it_matches_whatever_that_does(place: Any) -> None:
    """Every two short patterns on every short text."""
    effort = Effort(100_000_000)
    bodies = ["".join(pieces) for n in (1, 2, 3) for pieces in product(("*", "**", "?", "a", "/"), repeat=n)]
    samples = ["".join(letters) for n in (1, 2, 3, 4) for letters in product("ab/", repeat=n)]
    globs = {parse(sign + body, place) for body in bodies for sign in ("", "!")}
    reach = {glob: {text for text in samples if glob.matches(text, effort)} for glob in globs}
    covered = missed = 0
    for wide, narrow in product(globs, repeat=2):
        if wide.covers(narrow, effort):
            assert reach[wide] >= reach[narrow], (wide, narrow)
            covered += 1
        elif not (wide.is_negated or narrow.is_negated):
            missed += reach[wide] >= reach[narrow] and bool(reach[narrow])
    assert covered > 5 * missed, "doubt is the exception"
