"""The one rule for names, in every place that takes one."""

from __future__ import annotations

import pytest

from penstock.core import names
from penstock.core.errors import Refusal

FORM = "a stream name has 1 to 512 printable characters, without `:` and `*`"


def problem_of(problem: Refusal | None) -> str:
    assert problem is not None
    assert problem.code == "InvalidRequest"
    return problem.message


@pytest.mark.parametrize("name", ["a", "agents/Jen/inbox", "x" * 512, "dlq/a", "é", "a b", "..", "/", "😀"])
def test_good_stream_names(name: str) -> None:
    assert names.stream_problem(name, 512) is None


@pytest.mark.promise("Foundations", "an invalid name is refused everywhere with the form that is allowed")
@pytest.mark.parametrize("name", ["", "x" * 513, "a:b", "a*", "a\n", "\x00", "a\u2028b", "\x7f", "\u200b"])
def test_a_bad_stream_name_is_refused_with_the_form(name: str) -> None:
    message = problem_of(names.stream_problem(name, 512))
    assert message.endswith(f" is not a stream name: {FORM}")
    assert message.isprintable() and len(message) < 300


def test_only_a_server_knows_its_limit() -> None:
    assert names.stream_problem("x" * 9_999) is None
    assert "1 to" not in problem_of(names.stream_problem(":"))


def test_a_pattern_may_have_stars() -> None:
    assert names.is_stream("agents/*", is_pattern=True)
    assert not names.is_stream("agents:*", is_pattern=True)


@pytest.mark.parametrize("name", ["sam", "sensor-1", "é", "a.b@c"])
def test_good_agents(name: str) -> None:
    assert names.agent_problem(name) is None
    assert names.address_problem(name) is None


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a:b", "*", "a\t", "\u200b"])
def test_a_bad_agent_is_refused_with_the_form(name: str) -> None:
    assert problem_of(names.agent_problem(name)).endswith("which is a name without `/`, `:`, `*` or spaces")


def test_an_address_with_a_slash_is_a_stream() -> None:
    assert names.address_problem("jobs/a b") is None
    assert "stream name" in problem_of(names.address_problem("jobs/a:b"))
    assert "agent" in problem_of(names.address_problem("jobs a"))
