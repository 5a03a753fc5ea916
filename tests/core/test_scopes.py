"""Scopes, and what a principal with them may do."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.core.scopes import (
    ANONYMOUS,
    OPERATOR,
    TOKEN_BYTES,
    Principal,
    Scope,
    parse,
    require,
    token_text,
)

VERBS = ("enqueue", "subscribe", "read", "admin")


def holder(*scopes: str, agent: str | None = None) -> Principal:
    return Principal("test", agent=agent, scopes=require(scopes))


@pytest.mark.parametrize(
    "text",
    [
        "streams:*:enqueue",
        "streams:agents/Jen/inbox:subscribe",
        "streams:a*:*",
        "streams:x:read",
        "streams:x:admin",
        "views:*:read",
        "views:latestPerAgent:*",
        "admin:*",
    ],
)
def test_a_scope_reads_back_as_written(text: str) -> None:
    scope = parse(text)
    assert isinstance(scope, Scope)
    assert str(scope) == text


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "should start with"),
        ("streams", "should be `streams:<pattern>:<verb>`"),
        ("streams:x", "should be `streams:<pattern>:<verb>`"),
        ("streams::read", "should be `streams:<pattern>:<verb>`"),
        ("streams:a:b:read", "too many `:`"),
        ("streams:x:", "the verb ``"),
        ("streams:x:write", "the verb `write`"),
        ("streams:a\nb:read", "control characters"),
        ("views:x:enqueue", "the verb `enqueue`; views know"),
        ("admin", "should be `admin:*`"),
        ("admin:x", "should be `admin:*`"),
        ("STREAMS:*:read", "should start with"),
        ("stream:*:read", "should start with"),
    ],
)
def test_a_wrong_scope_says_what_is_wrong(text: str, problem: str) -> None:
    answer = parse(text)
    assert isinstance(answer, str)
    assert problem in answer


@given(st.text())
def test_any_text_is_a_scope_or_a_problem(text: str) -> None:
    assert isinstance(parse(text), Scope | str)


def test_required_scopes_raise_every_problem() -> None:
    with pytest.raises(ValueError, match=r"`x`.*`streams:y`"):
        require(["x", "streams:*:read", "streams:y"])


def test_a_scope_allows_its_verb_on_its_streams_only() -> None:
    sam = holder("streams:agents/sam/*:subscribe", "streams:*:enqueue")
    assert sam.allows("subscribe", "agents/sam/inbox")
    assert sam.allows("enqueue", "jobs")
    assert not sam.allows("subscribe", "agents/jen/inbox")
    assert not sam.allows("read", "agents/sam/inbox")
    assert not sam.allows_view("read", "latestPerAgent")
    assert not sam.is_admin


def test_stream_and_view_scopes_do_not_mix() -> None:
    assert holder("views:*:*").allows_view("read", "latestPerAgent")
    assert not holder("views:*:*").allows("read", "latestPerAgent")
    assert not holder("streams:*:*").allows_view("read", "latestPerAgent")


def test_a_star_allows_every_verb_but_not_the_server() -> None:
    everything = holder("streams:*:*")
    assert all(everything.allows(verb, "jobs") for verb in VERBS)
    assert not everything.is_admin


def test_admin_allows_everything() -> None:
    admin = holder("admin:*")
    assert all(admin.allows(verb, "jobs") and admin.allows_view(verb, "x") for verb in VERBS)
    assert admin.is_admin and not admin.operator


def test_no_scopes_allow_nothing() -> None:
    assert not any(holder().allows(verb, "jobs") for verb in VERBS)


def test_anonymous_has_the_courier_verbs_and_no_administration() -> None:
    assert all(ANONYMOUS.allows(verb, "any/stream") for verb in ("enqueue", "subscribe", "read"))
    assert ANONYMOUS.allows_view("read", "latestPerAgent")
    assert not ANONYMOUS.allows("admin", "any/stream")
    assert not ANONYMOUS.is_admin and not ANONYMOUS.operator and ANONYMOUS.anonymous


def test_the_operator_may_do_everything() -> None:
    assert all(OPERATOR.allows(verb, "any/stream") for verb in VERBS)
    assert OPERATOR.is_admin and OPERATOR.operator and not OPERATOR.anonymous


@given(
    st.lists(st.builds(Scope, st.just("streams"), st.text("ab*", max_size=4), st.sampled_from([*VERBS, "*"]))),
    st.sampled_from(VERBS),
    st.text("ab", max_size=4),
)
def test_a_remembered_answer_is_the_right_one(scopes: list[Scope], verb: str, stream: str) -> None:
    principal = Principal("test", scopes=tuple(scopes))
    expected = any(scope.covers("streams", verb, stream) for scope in scopes)
    assert principal.allows(verb, stream) == expected
    assert principal.allows(verb, stream) == expected


@pytest.mark.parametrize("from_", ["sam", "agents/sam", "agents/sam/outbox", "agents/sam/a/b"])
def test_an_agent_speaks_for_itself(from_: str) -> None:
    assert holder(agent="sam").vouches(from_)


@pytest.mark.parametrize(
    "from_",
    [
        "", "jen", "samuel", "Sam", "agents/samuel", "agents/jen", "agents/", "x/agents/sam", "sam/x", "s\u0430m",
        "agents/sam/../jen", "agents/sam/./x", "agents/sam//x", "agents/sam/", "agents//sam", "agents/sam/..",
    ],
)  # fmt: skip
def test_an_agent_does_not_speak_for_others(from_: str) -> None:
    assert not holder(agent="sam").vouches(from_)


@given(st.text() | st.builds("{}/{}".format, st.sampled_from(["system", "pipeline", "systems"]), st.text()))
@example("system/courier")
@example("pipeline/x")
def test_without_an_agent_anyone_but_the_server_may_be_named(from_: str) -> None:
    assert holder().vouches(from_) == (not from_.startswith(("system/", "pipeline/")))


@given(st.binary(min_size=TOKEN_BYTES, max_size=TOKEN_BYTES))
def test_a_token_is_taken_as_a_value_by_every_command_line(entropy: bytes) -> None:
    text = token_text(entropy)
    assert len(text) == 43 and text.isascii() and not text.startswith("-")
    assert text.replace("-", "").replace("_", "").isalnum()


def test_one_that_would_begin_with_a_dash_begins_otherwise() -> None:
    assert token_text(b"\xf8" + bytes(31)).startswith("pA")
