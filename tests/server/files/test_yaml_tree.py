"""Strict YAML: plain values, their lines, and enforced limits."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.server.files import yaml_tree

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**17), 10**17) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(plain)
@example("a\x85b")
def test_what_is_dumped_is_read_back(value: Any) -> None:
    tree = yaml_tree.parse(yaml_tree.dump(value))
    assert (tree.value, tree.errors) == (value, [])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1_000", 1000), ("0x1F", 31), ("0o17", 15), ("-5", -5), ("+5", 5), ("1.5", 1.5), ("1e3", 1000.0), ("2.", 2.0),
        ("true", True), ("False", False), ("~", None), ("null", None), ("", None),
    ],
)  # fmt: skip
def test_numbers_booleans_and_nothing(text: str, value: Any) -> None:
    read = yaml_tree.parse(text).value
    assert read == value and type(read) is type(value)


@pytest.mark.parametrize(
    "text",
    ["off", "on", "yes", "no", "007", "1_", "12:30", "2025-10-18", "1.2.3", ".inf", ".nan", "1" * 30, "'5'"],
)
def test_everything_else_is_a_text(text: str) -> None:
    assert yaml_tree.parse(text).value == text.strip("'")


def test_every_value_knows_its_line() -> None:
    tree = yaml_tree.parse("a:\n  b: 1\n  c:\n    - x\n    - y: 2\n")
    assert tree.value == {"a": {"b": 1, "c": ["x", {"y": 2}]}}
    assert tree.lines["a", "c", 1, "y"] == 5
    assert tree.lines["a", "b"] == 2


def test_paths_read_like_the_file() -> None:
    assert yaml_tree.show(("auth", "tokens", 0, "scopes")) == "auth.tokens[0].scopes"
    assert (
        yaml_tree.show(("streams", "perStreamCaps", "agents/*", "maxDepth"))
        == 'streams.perStreamCaps["agents/*"].maxDepth'
    )
    assert yaml_tree.show(("a", "b\nc")) == "a['b\\nc']"


BOMB = "a0: &a0 [1, 1]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9))


@pytest.mark.parametrize("text", [BOMB, "a: &a [*a]", "a: &a {b: *a}", "[" * 40 + "]" * 40, "[" * 20_000])
def test_a_file_cannot_grow_beyond_the_bounds(text: str) -> None:
    tree = yaml_tree.parse(text)
    assert [message for _, message in tree.errors] == [yaml_tree.TOO_MUCH]
    assert len(tree.lines) <= yaml_tree.NODES_MAX + 2


def test_aliases_within_the_bounds_are_fine() -> None:
    assert yaml_tree.parse("a: &a {x: 1}\nb: *a").value == {"a": {"x": 1}, "b": {"x": 1}}
