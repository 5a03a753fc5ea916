"""Capabilities: the cases of existing gateways and clients, then properties against slow, obvious models."""

from __future__ import annotations

import re
import time
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import assume, event, given

from penstock.dialects.mew import capabilities
from penstock.dialects.mew.capabilities import BASELINE, Matcher, clean, covers, with_baseline

NOTHING = object()


def allowed(capability: Any, kind: str, payload: Any = NOTHING) -> bool:
    body = None if payload is NOTHING else msgspec.json.encode(payload)
    return Matcher([capability]).match(kind, body) is not None


def fits(pattern: Any, payload: Any = NOTHING) -> bool:
    return allowed({"kind": "k", "payload": pattern}, "k", payload)


KINDS: list[tuple[str, Any, str, bool]] = [
    # What gateways enforce.
    ("a star allows everything", "*", "chat", True),
    ("a star allows everything below", "*", "a/b/c", True),
    ("a trailing star allows one level", "a/*", "a/b", True),
    ("a trailing star allows any depth", "a/*", "a/b/c/d", True),
    ("a trailing star allows whatever begins so", "a/*", "a/", True),
    ("a trailing star does not allow the name itself", "a/*", "a", False),
    ("a trailing star does not allow a longer name", "a/*", "ab/c", False),
    ("exact", "mcp/request", "mcp/request", True),
    ("exact and nothing below", "mcp/request", "mcp/request/x", False),
    ("case counts", "chat", "Chat", False),
    # What clients expect beyond that.
    ("a star within a name", "reasoning*", "reasoning", True),
    ("a star within a name does not cross a slash", "reasoning*", "reasoning/start", False),
    ("a star as the first name", "*/list", "tools/list", True),
    ("a star as the first name is one name", "*/list", "a/tools/list", False),
    ("a star between names", "mcp/*/x", "mcp/a/x", True),
    ("a star between names is one name", "mcp/*/x", "mcp/a/b/x", False),
    ("one character", "chat?", "chats", True),
    ("one character and not none", "chat?", "chat", False),
    ("one character is no slash", "a?b", "a/b", False),
    ("two stars between names", "a/**/z", "a/b/c/z", True),
    ("two stars may be nothing", "a/**/z", "a/z", True),
    ("two stars at the end", "a/**", "a/b/c", True),
    ("two stars at the end may be nothing", "a/**", "a", True),
    ("two stars at the start", "**/z", "a/b/z", True),
    ("two stars alone", "**", "a/b", True),
    ("two stars within a name are one", "a**", "a/b", False),
    ("a kind as a list", ["chat", "mcp/*"], "mcp/request", True),
    ("a kind as a list that does not fit", ["chat", "mcp/*"], "stream/open", False),
    ("not a kind", "!chat", "mcp/request", True),
    ("not a kind, and it is", "!chat", "chat", False),
    ("not a glob", "!mcp/*", "chat", True),
    ("not a glob, and it is", "!mcp/*", "mcp/request", False),
    ("a second exclamation mark is a character", "!!chat", "!chat", False),
    ("a second exclamation mark is no double negation", "!!chat", "stream/open", True),
    # What stays a plain text.
    ("no regular expressions", "/mcp.*/", "mcp/request", False),
    ("what looks like one is a text", "/mcp.*/", "/mcp.*/", True),
    ("no braces", "{chat,mcp}*", "chat", False),
    ("no brackets", "[a-z]*", "chat", False),
    ("a dot is a dot", "a.c", "abc", False),
    # What has no kind.
    ("an empty kind", "*", "", False),
    ("an empty kind is not allowed by its own name", "", "", False),
]  # fmt: skip


@pytest.mark.promise(
    "Capabilities and log files of a gateway",
    "kinds and payloads are decided as gateways and clients do, case by case",
)
@pytest.mark.parametrize(("kind", "asked", "is_allowed"), [case[1:] for case in KINDS], ids=[case[0] for case in KINDS])
def test_kinds(kind: Any, asked: str, is_allowed: bool) -> None:
    assert allowed({"kind": kind}, asked) is is_allowed


PAYLOADS: list[tuple[str, Any, Any, bool]] = [
    # What gateways enforce.
    ("no payload, with a pattern", {"a": "!x"}, NOTHING, False),
    ("an empty pattern is none", {}, NOTHING, True),
    ("an empty pattern fits what is no object", {}, "text", True),
    ("all keys must fit", {"a": "1", "b": "2"}, {"a": "1"}, False),
    ("more keys are free", {"a": "1"}, {"a": "1", "b": 2}, True),
    ("equal texts", {"a": "x"}, {"a": "x"}, True),
    ("other texts", {"a": "x"}, {"a": "xx"}, False),
    ("a text that is missing", {"a": "x"}, {}, False),
    ("not a text", {"a": "!x"}, {"a": "y"}, True),
    ("not a text, and it is", {"a": "!x"}, {"a": "x"}, False),
    ("not a text, and it is missing", {"a": "!x"}, {}, True),
    ("not a text, and it is a number", {"a": "!x"}, {"a": 1}, True),
    ("not a text, and it is null", {"a": "!x"}, {"a": None}, True),
    ("a prefix", {"a": "read_*"}, {"a": "read_file"}, True),
    ("a prefix alone", {"a": "read_*"}, {"a": "read_"}, True),
    ("a prefix crosses slashes", {"a": "/docs/*"}, {"a": "/docs/a/b.md"}, True),
    ("a prefix of slashes and names", {"a": "/docs*"}, {"a": "/docs/a"}, True),
    ("another prefix", {"a": "read_*"}, {"a": "write_file"}, False),
    ("a prefix of a missing text", {"a": "read_*"}, {}, False),
    ("any text", {"a": "*"}, {"a": "x/y"}, True),
    ("any text, and it is empty", {"a": "*"}, {"a": ""}, False),
    ("any text, and it is missing", {"a": "*"}, {}, False),
    ("any text, and it is a number", {"a": "*"}, {"a": 5}, False),
    ("null fits anything", {"a": None}, {"a": 5}, True),
    ("null fits what is missing", {"a": None}, {}, True),
    ("an object within", {"p": {"n": "x"}}, {"p": {"n": "x", "m": 1}}, True),
    ("an object within that does not fit", {"p": {"n": "x"}}, {"p": {"n": "y"}}, False),
    ("an object that is missing", {"p": {"n": "!x"}}, {}, False),
    ("a list item by item", {"l": ["a", "b"]}, {"l": ["a", "b", "c"]}, True),
    ("a list in another order", {"l": ["a", "b"]}, {"l": ["b", "a"]}, False),
    ("a list that is too short", {"l": ["a", "b"]}, {"l": ["a"]}, False),
    ("a list with holes", {"l": [None, "b"]}, {"l": ["x", "b"]}, True),
    ("a list of objects", {"l": [{"t": "x"}]}, {"l": [{"t": "x"}]}, True),
    ("an empty list pattern and a list", {"l": []}, {"l": ["x"]}, True),
    # What clients expect beyond that.
    ("one of a list", {"a": ["x", "y"]}, {"a": "y"}, True),
    ("none of a list", {"a": ["x", "y"]}, {"a": "z"}, False),
    ("one of a list of globs", {"a": ["x", "y_*"]}, {"a": "y_1"}, True),
    ("one of a list of numbers", {"a": [1, 2]}, {"a": 2}, True),
    ("one of a list of objects", {"a": [{"t": "x"}, {"t": "y"}]}, {"a": {"t": "y"}}, True),
    ("null in a list is null", {"a": ["x", None]}, {"a": None}, True),
    ("null in a list is nothing else", {"a": ["x", None]}, {"a": "z"}, False),
    ("one of a list, and it is missing", {"a": ["x", "!y"]}, {}, False),
    ("none of an empty list", {"a": []}, {"a": "x"}, False),
    ("an equal number", {"a": 1}, {"a": 1}, True),
    ("an equal number, written otherwise", {"a": 1}, {"a": 1.0}, True),
    ("true", {"a": True}, {"a": True}, True),
    ("a glob before the end", {"a": "*.md"}, {"a": "x.md"}, True),
    ("a glob before the end does not cross a slash", {"a": "*.md"}, {"a": "d/x.md"}, False),
    ("two stars cross slashes", {"a": "docs/**/x.md"}, {"a": "docs/a/b/x.md"}, True),
    ("one character", {"a": "v?"}, {"a": "v1"}, True),
    ("a glob of keys", {"tool_*": "x"}, {"tool_1": "y", "tool_2": "x"}, True),
    ("a glob of keys that does not fit", {"tool_*": "x"}, {"tool_1": "y", "other": "x"}, False),
    ("a glob of keys, and none is there", {"tool_*": "x"}, {}, False),
    ("deep", {"**": "x"}, {"a": [{"b": "x"}]}, True),
    ("deep, and nowhere", {"**": "x"}, {"a": [{"b": "y"}]}, False),
    ("deep for an object", {"**": {"name": "x"}}, {"a": {"name": "x"}}, True),
    ("deep includes the payload itself", {"**": {"name": "x"}}, {"name": "x"}, True),
    # What they let pass by not looking.
    ("another number", {"a": 1}, {"a": 2}, False),
    ("a missing number", {"a": 1}, {}, False),
    ("another boolean", {"a": True}, {"a": False}, False),
    ("true is not 1", {"a": True}, {"a": 1}, False),
    ("1 is not true", {"a": 1}, {"a": True}, False),
    ("0 is not false", {"a": 0}, {"a": False}, False),
    ("not a glob, and it is", {"a": "!secret*"}, {"a": "secret1"}, False),
    ("not a glob", {"a": "!secret*"}, {"a": "public"}, True),
    ("a text for an object", {"p": {"n": "!x"}}, {"p": "text"}, False),
    ("a payload that is no object", {"a": "!x"}, "text", False),
    ("a payload that is a list", {"a": "!x"}, ["a"], False),
    ("a payload that is null", {"a": "!x"}, None, False),
    # Exclusion is for all.
    ("excluded under every key that fits", {"t*": "!x"}, {"t1": "y", "t2": "x"}, False),
    ("excluded under keys that are not there", {"t*": "!x"}, {}, True),
    ("excluded everywhere", {"**": "!x"}, {"a": ["y", {"b": "x"}]}, False),
    ("excluded everywhere, and nowhere to be found", {"**": "!x"}, {"a": ["y", {"b": 1}]}, True),
    # Paths are plain names.
    ("a path is a name", {"$.a": "x"}, {"$.a": "x"}, True),
    ("a path is not followed", {"$.a": "x"}, {"a": "x"}, False),
    ("a path that excludes does not pass because it is not understood", {"$.a": "!x"}, {"a": "x"}, False),
    ("no regular expressions", {"a": "/x.*/"}, {"a": "xyz"}, False),
]  # fmt: skip


@pytest.mark.promise(
    "Capabilities and log files of a gateway",
    "kinds and payloads are decided as gateways and clients do, case by case",
)
@pytest.mark.parametrize(
    ("pattern", "payload", "is_allowed"), [case[1:] for case in PAYLOADS], ids=[case[0] for case in PAYLOADS]
)
def test_payloads(pattern: Any, payload: Any, is_allowed: bool) -> None:
    assert fits(pattern, payload) is is_allowed


@pytest.mark.promise(
    "Capabilities and log files of a gateway",
    "kinds and payloads are decided as gateways and clients do, case by case",
)
def test_a_payload_pattern_counts_beside_a_star_too() -> None:
    only = {"kind": "*", "payload": {"method": "tools/list"}}
    assert allowed(only, "mcp/request", {"method": "tools/list"})
    assert not allowed(only, "mcp/request", {"method": "tools/call"})
    assert not allowed(only, "chat", {"text": "hello"})


def test_other_keys_of_a_capability_mean_nothing() -> None:
    assert allowed({"kind": "mcp/request", "to": ["file-server"], "id": "g1"}, "mcp/request", {"method": "x"})


def test_any_of_several_is_enough_and_none_forbids() -> None:
    matcher = Matcher([{"kind": "chat", "payload": {"text": "!no"}}, {"kind": "mcp/*"}, {"kind": "chat"}])
    assert matcher.match("chat", b'{"text":"no"}') == {"kind": "chat"}
    assert matcher.match("mcp/request", None) == {"kind": "mcp/*"}
    assert matcher.match("stream/open", None) is None


def test_a_payload_is_looked_at_only_where_a_pattern_needs_it() -> None:
    matcher = Matcher([{"kind": "chat"}, {"kind": "mcp/*", "payload": {"method": "x"}}])
    assert matcher.match("chat", b"not json") == {"kind": "chat"}
    assert matcher.match("mcp/request", b"not json") is None
    assert matcher.match("mcp/request", b"[" * 100_000) is None
    assert matcher.match("mcp/request", b'{"method":"\xff"}') is None


def test_the_answer_is_the_same_when_it_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capabilities, "KINDS_MAX", 3)
    matcher = Matcher([{"kind": "a/*"}, {"kind": "b", "payload": {"x": "1"}}])
    for _ in range(3):
        for n in range(10):
            assert matcher.match(f"a/{n}", None) == {"kind": "a/*"}
            assert matcher.match(f"c/{n}", None) is None
        assert matcher.match("b", b'{"x":"1"}') is not None
        assert matcher.match("b", b'{"x":"2"}') is None
        assert len(matcher._known) <= 3


def test_what_is_no_capability_is_left_out() -> None:
    good = [{"kind": "chat"}, {"kind": ["a", "b"]}, {"kind": "c", "payload": {"x": None}}]
    bad = [
        "chat",
        None,
        7,
        {},
        {"kind": 7},
        {"kind": []},
        {"kind": ["a", 1]},
        {"kind": None},
        [{"kind": "chat"}],
    ]
    odd = [{"kind": "d", "payload": pattern} for pattern in ("x", 0, False, True, [], ["x"])]
    worse = [{"kind": "e", "x": value} for value in ({1: 2}, float("nan"), b"x", object(), 2**64, "\ud800")]
    assert clean([*good, *bad, *odd, *worse]) == tuple(good)
    assert clean(None) == clean({"kind": "chat"}) == clean("chat") == ()


def test_what_is_written_twice_counts_once_and_the_order_stays() -> None:
    raw = [
        {"kind": "b"},
        {"id": "1", "kind": "a"},
        {"kind": "a", "id": "1"},
        {"kind": "b"},
        {"kind": "a", "id": 1},
    ]
    assert clean(raw) == ({"kind": "b"}, {"id": "1", "kind": "a"}, {"kind": "a", "id": 1})


@pytest.mark.promise(
    "Capabilities and log files of a gateway",
    "no pattern is expensive, and a too complex pattern never allows",
)
def test_what_is_too_big_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def nested(depth: int) -> Any:
        return {"kind": "k", "payload": {"a": 1} if depth == 0 else {"a": nested(depth - 1)["payload"]}}

    assert clean([nested(capabilities.DEPTH_MAX - 2)]) and not clean([nested(capabilities.DEPTH_MAX - 1)])
    assert clean([{"kind": "x" * 1_024}]) and not clean([{"kind": "x" * 1_025}])
    assert clean([{"kind": ["x"] * 1_000}]) and not clean([{"kind": ["x"] * 1_025}])
    monkeypatch.setattr(capabilities, "CAPABILITIES_MAX", 2)
    assert clean([{"kind": "a"}, {"kind": "b"}, {"kind": "c"}]) == ({"kind": "a"}, {"kind": "b"})


def test_a_kind_that_is_too_long_is_never_allowed() -> None:
    assert allowed({"kind": "*"}, "k" * 256) and not allowed({"kind": "*"}, "k" * 257)


def test_everybody_may_answer() -> None:
    assert with_baseline([]) == (BASELINE,)
    assert with_baseline([{"kind": "mcp/response"}]) == ({"kind": "mcp/response"}, BASELINE)
    assert with_baseline([BASELINE, {"kind": "chat"}]) == (BASELINE, {"kind": "chat"})


def chain(length: int) -> Any:
    """Objects within objects."""
    return {"a": chain(length - 1)} if length else {}


HOSTILE: list[tuple[str, Any, Any]] = [
    ("many stars", {"a": "*a" * 500 + "b?c"}, {"a": "a" * 60_000}),
    ("many deep stars", {"a": "**/a/" * 200 + "b"}, {"a": "a/" * 30_000}),
    ("a long text", {"a": "*x*y?"}, {"a": "x" * 1_000_000}),
    ("deep within deep", {"**": {"**": {"**": {"**": {"**": "x"}}}}}, chain(60)),
    ("deep lists", {"**": ["x"] * 500}, {"a": [["y"] * 500] * 500}),
    ("many globs of keys", {f"*{n}?": "x" for n in range(400)}, {f"k{n}": "y" for n in range(10_000)}),
]


@pytest.mark.promise(
    "Capabilities and log files of a gateway",
    "no pattern is expensive, and a too complex pattern never allows",
)
@pytest.mark.parametrize(("pattern", "payload"), [case[1:] for case in HOSTILE], ids=[case[0] for case in HOSTILE])
def test_hostile_patterns_cost_little_and_allow_nothing(pattern: Any, payload: Any) -> None:
    matcher = Matcher([{"kind": "k", "payload": pattern}])
    before = time.perf_counter()
    assert matcher.match("k", msgspec.json.encode(payload)) is None
    assert time.perf_counter() - before < 2, "hours, if the steps were not bounded"
    assert matcher.exhausted == 1


@pytest.mark.promise(
    "Capabilities and log files of a gateway",
    "no pattern is expensive, and a too complex pattern never allows",
)
def test_hostile_exclusions_do_not_allow_by_being_too_hard() -> None:
    assert not fits({"a": "!" + "*a" * 500 + "b?c"}, {"a": "a" * 60_000})
    assert not fits({"a": "!*x*y?"}, {"a": "x" * 1_000_000})


# The laws

_PIECES = ("*", "**", "?", "a", "b", "/", "ab")
patterns = st.lists(st.sampled_from(_PIECES), min_size=1, max_size=6).map("".join)
signed = st.tuples(st.sampled_from(["", "", "!"]), patterns).map("".join)
texts = st.text("ab/", max_size=7)


def old_gateway(pattern: Any, value: Any) -> bool:
    """What gateways of old allow, without what they let pass by not looking."""
    match pattern:
        case None:
            return True
        case str():
            if pattern.startswith("!"):
                return value != pattern[1:]
            if pattern.endswith("*"):
                return isinstance(value, str) and value != "" and value.startswith(pattern[:-1])
            return bool(value == pattern)
        case dict():
            return isinstance(value, dict) and all(old_gateway(p, value.get(k)) for k, p in pattern.items())
        case list():
            return isinstance(value, list) and all(
                old_gateway(p, value[n] if n < len(value) else None) for n, p in enumerate(pattern)
            )
    return type(pattern) is type(value) and bool(pattern == value)


plain_names = st.sampled_from(["a", "b", "c"])
leaves = st.one_of(st.none(), st.booleans(), st.integers(0, 2), st.text("ab/", max_size=3))
values = st.recursive(
    leaves,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(plain_names, inner, max_size=3)),
    max_leaves=6,
)
objects = st.dictionaries(plain_names, values, min_size=1, max_size=3)
old_texts = st.one_of(texts, st.text("ab/", max_size=3).map(lambda text: text + "*"), texts.map("!".__add__))
old_patterns = st.recursive(
    st.one_of(old_texts, st.none(), st.booleans(), st.integers(0, 2)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(plain_names, inner, max_size=3)),
    max_leaves=5,
)


@pytest.mark.promise(
    "Capabilities and log files of a gateway",
    "a capability that older gateways accept by matching is accepted",
)
@given(st.dictionaries(plain_names, old_patterns, max_size=3), objects)
def test_nothing_that_gateways_of_old_allow_by_looking_is_refused(pattern: Any, payload: Any) -> None:
    assume(old_gateway(pattern, payload))
    event("the old gateway allows it")
    assert fits(pattern, payload)


keys = st.sampled_from(["a", "b", "c", "a*", "?", "**", "$", "*"])
new_patterns = st.recursive(
    st.one_of(signed, texts, st.none(), st.booleans(), st.integers(0, 2), st.just(1.0)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=3)),
    max_leaves=5,
)
new_capabilities = st.fixed_dictionaries(
    {"kind": st.one_of(signed, st.lists(signed, min_size=1, max_size=2))},
    optional={"payload": st.dictionaries(keys, new_patterns, max_size=2)},
)


def likely(pattern: Any) -> st.SearchStrategy[Any]:
    """Values that a pattern may fit, more often than any value."""
    match pattern:
        case str():
            words = st.lists(st.text("ab/", max_size=2), min_size=9, max_size=9)
            return words.map(lambda fill: re.sub(r"[*?!]", lambda _: fill.pop() if fill else "a", pattern))
        case dict():
            named = {re.sub(r"[*?]+", "a", key): likely(one) for key, one in pattern.items()}
            return st.one_of(st.fixed_dictionaries(named), st.fixed_dictionaries({}, optional=named))
        case list() if pattern:
            return st.one_of(st.tuples(*map(likely, pattern)).map(list), *map(likely, pattern))
    return st.just(pattern)


def messages(capability: dict[str, Any]) -> st.SearchStrategy[tuple[str, Any]]:
    kinds = capability["kind"] if isinstance(capability["kind"], list) else [capability["kind"]]
    kind = st.one_of(*map(likely, kinds), st.text("ab/", min_size=1, max_size=5))
    return st.tuples(kind, st.one_of(likely(capability.get("payload", {})), values, objects))


@pytest.mark.promise("Capabilities and log files of a gateway", "a participant can grant only what it provably has")
@given(st.lists(new_capabilities, min_size=1, max_size=3), st.data())
def test_what_covers_allows_everything_that_is_covered(held: list[Any], data: st.DataObject) -> None:
    # A relative of something held is covered more often than two strangers are.
    near = data.draw(st.sampled_from(held))
    asked = data.draw(st.one_of(st.just(near), _relatives(near), new_capabilities))
    assume(covers(held, asked))
    event("covered")
    for kind, payload in data.draw(st.lists(messages(asked), min_size=3, max_size=8)):
        if allowed(asked, kind, payload):
            event("allowed")
            assert Matcher(held).match(kind, msgspec.json.encode(payload)) is not None, (kind, payload)


def _relatives(near: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    payload = near.get("payload") or {}
    patterns_ = st.fixed_dictionaries({key: st.one_of(st.just(one), new_patterns) for key, one in payload.items()})
    both = st.tuples(patterns_, st.dictionaries(keys, new_patterns, max_size=1)).map(lambda two: two[1] | two[0])
    return st.fixed_dictionaries({"kind": st.one_of(st.just(near["kind"]), signed)}, optional={"payload": both})


anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.binary(max_size=2)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(st.text(max_size=3), st.integers(), keys, st.just("kind")), inner, max_size=3),
    ),
    max_leaves=8,
)


@pytest.mark.promise(
    "Capabilities and log files of a gateway",
    "no pattern is expensive, and a too complex pattern never allows",
)
@given(
    anything,
    st.lists(st.one_of(anything, new_capabilities), max_size=3),
    st.text(max_size=5),
    st.binary(max_size=9),
)
def test_nothing_ever_raises(raw: Any, several: list[Any], kind: str, payload: bytes) -> None:
    found = clean(several)
    assert clean(list(found)) == found, "cleaning twice changes nothing"
    clean(raw)
    Matcher(several).match(kind, payload)
    if isinstance(raw, dict):
        covers(several, raw)
    for one in found:
        assert covers(found, one), "what is held may be passed on as it is"


# What may be passed on

DELEGATIONS: list[tuple[str, Any, Any, bool]] = [
    ("all of all", {"kind": "*"}, {"kind": "*"}, True),
    ("a kind of all", {"kind": "*"}, {"kind": "chat"}, True),
    ("a glob of all", {"kind": "*"}, {"kind": "mcp/*"}, True),
    ("all but one of all", {"kind": "*"}, {"kind": "!chat"}, True),
    ("several of all", {"kind": "*"}, {"kind": ["chat", "mcp/**"]}, True),
    ("a kind of a glob", {"kind": "mcp/*"}, {"kind": "mcp/request"}, True),
    ("a narrower glob", {"kind": "mcp/*"}, {"kind": "mcp/re*"}, True),
    ("a deeper glob", {"kind": "mcp/*"}, {"kind": "mcp/a/*"}, True),
    ("a wider glob", {"kind": "mcp/*"}, {"kind": "*"}, False),
    ("another glob", {"kind": "mcp/*"}, {"kind": "chat"}, False),
    ("a glob that includes its own name", {"kind": "mcp/*"}, {"kind": "mcp/**"}, False),
    ("a glob without its own name", {"kind": "mcp/**"}, {"kind": "mcp/*"}, True),
    ("one of a list", {"kind": ["chat", "mcp/*"]}, {"kind": "chat"}, True),
    ("one more than a list", {"kind": ["chat", "mcp/*"]}, {"kind": ["chat", "stream/open"]}, False),
    ("fewer exclusions", {"kind": "!a"}, {"kind": "!b"}, False),
    ("more exclusions", {"kind": "!a"}, {"kind": "!a*"}, True),
    ("what is not excluded", {"kind": "!a"}, {"kind": "b"}, True),
    ("what is excluded", {"kind": "!a"}, {"kind": "a"}, False),
    ("with a pattern, where none is held", {"kind": "k"}, {"kind": "k", "payload": {"a": "x"}}, True),
    ("without the pattern that is held", {"kind": "k", "payload": {"a": "x"}}, {"kind": "k"}, False),
    ("with an empty pattern", {"kind": "k", "payload": {"a": "x"}}, {"kind": "k", "payload": {}}, False),
    ("one more key", {"kind": "k", "payload": {"a": "x"}}, {"kind": "k", "payload": {"a": "x", "b": 1}}, True),
    ("a narrower text", {"kind": "k", "payload": {"a": "x*"}}, {"kind": "k", "payload": {"a": "xy"}}, True),
    ("a wider text", {"kind": "k", "payload": {"a": "xy"}}, {"kind": "k", "payload": {"a": "x*"}}, False),
    ("any value of a key", {"kind": "k", "payload": {"a": "x"}}, {"kind": "k", "payload": {"a": None}}, False),
    ("one of a list of texts", {"kind": "k", "payload": {"a": ["x", "y"]}}, {"kind": "k", "payload": {"a": "y"}}, True),
    ("true for 1", {"kind": "k", "payload": {"a": 1}}, {"kind": "k", "payload": {"a": True}}, False),
    ("deeper", {"kind": "k", "payload": {"p": {"n": "r*"}}}, {"kind": "k", "payload": {"p": {"n": "rd"}}}, True),
    ("an equal path", {"kind": "k", "payload": {"**": "x"}}, {"kind": "k", "payload": {"**": "x", "a": "y"}}, True),
    ("a narrower name that begins as paths do", {"kind": "k", "payload": {"$a": "x*"}}, {"kind": "k", "payload": {"$a": "xy"}}, True),
    ("without a name that must be there", {"kind": "k", "payload": {"$a": None}}, {"kind": "k", "payload": {"b": "x"}}, False),
    ("one of a list, or missing", {"kind": "k", "payload": {"a": ["!x"]}}, {"kind": "k", "payload": {"a": "!x"}}, False),
    ("a number of a list with null", {"kind": "k", "payload": {"a": ["x", None]}}, {"kind": "k", "payload": {"a": 5}}, False),
    ("missing, where there must be a text", {"kind": "k", "payload": {"a": "*"}}, {"kind": "k", "payload": {"a": "!x"}}, False),
    ("the empty text of any text", {"kind": "k", "payload": {"a": "*"}}, {"kind": "k", "payload": {"a": ""}}, False),
    ("the empty text, which is not excluded", {"kind": "k", "payload": {"a": "!x"}}, {"kind": "k", "payload": {"a": ""}}, True),
    ("somewhere, where it must be everywhere", {"kind": "k", "payload": {"a*": "!x"}}, {"kind": "k", "payload": {"a*": "y"}}, False),
    ("what is no capability", {"kind": "*"}, {"kind": 7}, False),
    ("what can match nothing", {"kind": "*"}, {"kind": "k", "payload": "x"}, False),
]  # fmt: skip


@pytest.mark.promise("Capabilities and log files of a gateway", "a participant can grant only what it provably has")
@pytest.mark.parametrize(
    ("held", "asked", "is_covered"), [case[1:] for case in DELEGATIONS], ids=[case[0] for case in DELEGATIONS]
)
def test_delegation(held: Any, asked: Any, is_covered: bool) -> None:
    assert covers([held], asked) is is_covered


def test_several_that_are_held_may_cover_a_list_together() -> None:
    held = [{"kind": "chat"}, {"kind": "mcp/*", "payload": {"method": "tools/*"}}]
    assert not covers(held, {"kind": ["chat", "mcp/request"]})
    assert covers(held, {"kind": ["chat", "mcp/request"], "payload": {"method": "tools/list"}})
    assert not covers([], {"kind": "chat"})
