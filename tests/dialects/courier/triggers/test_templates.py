"""Templates of rules: their values and types, and what is rejected."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.rules.rule_set import Moment
from penstock.dialects.courier.triggers.templates import (
    MissingError,
    TemplateError,
    TemplateText,
    TemplateTree,
)

ENV = {
    "id": "e-1",
    "from": "jen",
    "headers": {"priority": "high", "n": 3},
    "payload": {"count": 4, "ok": True, "none": None, "list": ["a", {"b": 2}], "text": "${env.id}"},
}


def fill(text: str) -> object:
    return TemplateText(text, is_strict=False).fill(ENV, Moment(1_760_000_000_000_000, "r1", suppressed=7))


@pytest.mark.promise("Triggers", "templates keep types and are never evaluated")
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("plain", "plain"),
        ("", ""),
        ("${env.id}", "e-1"),
        ("id ${env.id}!", "id e-1!"),
        ("${env.payload.count}", 4),
        ("n=${env.payload.count}", "n=4"),
        ("${env.payload.ok}", True),
        ("ok=${env.payload.ok}", "ok=true"),
        ("${env.payload.none}", None),
        ("${env.payload.list}", ["a", {"b": 2}]),
        ("${env.payload.list.1.b}", 2),
        ("list ${env.payload.list}", 'list ["a",{"b":2}]'),
        ("${env.headers.priority}", "high"),
        ("${now}", "2025-10-09T08:53:20.000Z"),
        ("${rule.id}", "r1"),
        ("${suppressed}", 7),
        ("$${env.id}", "${env.id}"),
        ("$$${env.id}", "$${env.id}"),
        ("$ and $$ and }", "$ and $$ and }"),
        ("${env.id}${env.id}", "e-1e-1"),
        ("${env.payload.text}", "${env.id}"),
        ("x ${env.payload.text}", "x ${env.id}"),
    ],
)
def test_a_template_stands_for(text: str, value: object) -> None:
    assert fill(text) == value
    assert type(fill(text)) is type(value)


@pytest.mark.parametrize(
    "text", ["${env.nope}", "${env.payload.count.x}", "${env.payload.list.9}", "${env.payload.list.x}"]
)
def test_a_path_that_leads_nowhere_is_empty_and_warns_and_strictly_fails(text: str) -> None:
    moment = Moment(0, "r")
    assert TemplateText(text, is_strict=False).fill(ENV, moment) == ""
    assert moment.warnings == 1
    with pytest.raises(MissingError, match="has no"):
        TemplateText(text, is_strict=True).fill(ENV, moment)


@pytest.mark.parametrize(
    "text",
    [
        "${env}",
        "${env.}",
        "${env..a}",
        "${}",
        "${environ.HOME}",
        "${now.x}",
        "${env.id",
        "a ${ b",
        "${__class__}",
    ],
)
def test_a_template_that_cannot_be_read_is_refused_at_once(text: str) -> None:
    with pytest.raises(TemplateError):
        TemplateText(text, is_strict=False)


def test_a_tree_is_filled_at_every_depth_and_only_in_its_values() -> None:
    tree = TemplateTree({"a": ["${env.id}", {"${env.id}": "${env.from}"}], "n": 1}, is_strict=False)
    assert tree.fill(ENV, Moment(0, "r")) == {"a": ["e-1", {"${env.id}": "jen"}], "n": 1}


@pytest.mark.promise("Triggers", "templates keep types and are never evaluated")
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3)))
def test_what_is_substituted_is_never_looked_at_again(value: object) -> None:
    filled = TemplateText("${env.payload}", is_strict=False).fill({"payload": value}, Moment(0, "r"))
    assert filled == value


@given(st.text())
def test_any_text_is_read_or_refused_and_an_escaped_one_comes_out_as_it_was(text: str) -> None:
    escaped = text.replace("${", "$${")
    try:
        plain = TemplateText(escaped, is_strict=True)
    except TemplateError:
        pytest.fail(f"{escaped!r} holds no placeholder")
    assert plain.fill({}, Moment(0, "r")) == text


def test_a_step_with_thousands_of_digits_is_missing() -> None:
    assert fill("${env.payload.list." + "9" * 5_000 + "}") == ""
    assert fill("${env.payload.list.\u0661.b}") == "", "only ASCII digits number the items of a list"


def test_a_template_knows_how_large_its_text_can_become() -> None:
    env = {"payload": "x" * 1_000, "id": "e"}
    tree = TemplateTree({"a": ["${env.payload}"] * 50, "b": "${env.payload} and ${env.none} ${env.id}"}, is_strict=True)
    assert 51_000 < tree.filled_size(env, Moment(0, "r")) < 52_000
