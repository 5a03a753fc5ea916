"""Globs: `*` is any run of characters, and the closest pattern wins."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.patterns import Glob, best, matches

names = st.text("ab/", max_size=12)
globs = st.text("ab/*", max_size=8)


def naive(pattern: str, name: str) -> bool:
    """The definition, one character at a time, with no thought for cost."""
    if not pattern:
        return not name
    if pattern[0] == "*":
        return naive(pattern[1:], name) or (bool(name) and naive(pattern, name[1:]))
    return bool(name) and name[0] == pattern[0] and naive(pattern[1:], name[1:])


@given(globs, names)
def test_matching_agrees_with_the_definition(pattern: str, name: str) -> None:
    assert matches(pattern, name) == naive(pattern, name)


@given(st.text("ab?[]!.\\^$", max_size=6))
def test_nothing_but_the_star_is_special(text: str) -> None:
    assert matches(text, text)
    assert matches(text + "*", text)
    assert not matches(text, text + "a")


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("*", ""),
        ("agents/*", "agents/Jen/inbox"),
        ("agents/*", "agents/"),
        ("agents/*/inbox", "agents/a/b/inbox"),
        ("**", "anything/at/all"),
        ("*inbox", "inbox"),
        ("a*b*c", "abbc"),
    ],
)
def test_matches(pattern: str, name: str) -> None:
    assert matches(pattern, name)


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("", "a"),
        ("agents/*", "agents"),
        ("agents/*", "Agents/Jen"),
        ("a*a", "a"),
        ("a*b*c", "acb"),
        ("ab*ab", "aba"),
        ("*aa*aa*", "aaa"),
        ("a*b*b", "ab"),
    ],
)
def test_does_not_match(pattern: str, name: str) -> None:
    assert not matches(pattern, name)


def test_many_stars_against_a_long_name_do_not_backtrack() -> None:
    # A backtracking matcher would need longer than the universe has existed.
    assert not matches("*a" * 200 + "*b", "a" * 100_000)


def test_a_glob_knows_its_pieces() -> None:
    glob = Glob.parse("a/*/b*/c")
    assert (glob.head, glob.middle, glob.tail) == ("a/", ("/b",), "/c")
    assert Glob.parse("a/b").tail is None


@pytest.mark.promise("Streams", "`perStreamCaps` accepts globs")
@pytest.mark.parametrize(
    ("patterns", "name", "winner"),
    [
        (["*", "agents/*", "agents/sam/inbox"], "agents/sam/inbox", "agents/sam/inbox"),
        (["*", "agents/*", "agents/sam/*"], "agents/sam/inbox", "agents/sam/*"),
        (["*", "agents/*"], "jobs", "*"),
        (["agents/*", "*/very/long/literal/tail"], "agents/very/long/literal/tail", "agents/*"),
        (["agents/*", "agents/*/inbox"], "agents/sam/inbox", "agents/*/inbox"),
        (["a*b", "ab*"], "abb", "ab*"),
        (["a**", "a*"], "ab", "a**"),
        (["agents/*"], "jobs", None),
        ([], "jobs", None),
    ],
)
def test_the_closest_pattern_wins(patterns: list[str], name: str, winner: str | None) -> None:
    assert best(patterns, name) == winner


@given(st.lists(globs, max_size=6), names)
def test_the_winner_matches_and_no_match_is_closer(patterns: list[str], name: str) -> None:
    winner = best(patterns, name)
    fitting = [pattern for pattern in patterns if naive(pattern, name)]
    assert (winner is None) == (not fitting)
    if winner is not None and "*" in winner:
        assert all("*" in pattern for pattern in fitting)
        assert len(winner.split("*")[0]) == max(len(pattern.split("*")[0]) for pattern in fitting)
