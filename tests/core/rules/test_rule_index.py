"""Finding the rules that could fit a record: by channel, by kind, in the order of the rules."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.rules import rule_set
from penstock.core.rules.rule_set import Candidates, Rule, RuleIndex


class NoScript:
    """The part of a rule that these tests do not reach."""


def rule(id_: str, **more: Any) -> Rule:
    return Rule(id=id_, hook="on_insert", script=NoScript(), definition=f"{id_} {more}", **more)  # type: ignore[arg-type]


def ids(found: Candidates | None, kind: str) -> list[str]:
    return [] if found is None else [one.id for one in found.of_kind(kind)]


def test_a_rule_without_conditions_is_a_candidate_everywhere() -> None:
    index = RuleIndex([rule("all")])
    assert index
    assert ids(index.candidates("jobs"), "note") == ["all"]


def test_an_index_without_rules_is_false_and_finds_nothing() -> None:
    index = RuleIndex(())
    assert not index
    assert index.candidates("jobs") is None


def test_candidates_keep_the_order_of_the_rules() -> None:
    index = RuleIndex([rule("b", channels=("jobs*",)), rule("elsewhere", channels=("mail",)), rule("a")])
    assert ids(index.candidates("jobs/1"), "note") == ["b", "a"]


def test_exact_kinds_are_looked_up_and_patterns_are_left_to_be_tried() -> None:
    index = RuleIndex([rule("exact", kinds=("note",)), rule("pattern", kinds=("no*",)), rule("any")])
    found = index.candidates("jobs")
    assert ids(found, "note") == ["exact", "pattern", "any"]
    assert ids(found, "other") == ["pattern", "any"]


def test_a_rule_without_a_tenants_pattern_does_not_see_its_channels() -> None:
    channel = f"{rule_set.TENANTS}acme/jobs"
    assert not rule("all").takes_channel(channel)
    assert not rule("star", channels=("*",)).takes_channel(channel)
    assert rule("named", channels=(f"{rule_set.TENANTS}acme/*",)).takes_channel(channel)


@pytest.mark.parametrize(
    ("senders", "sender", "takes"),
    [
        (None, None, True),
        (("sam",), None, False),
        (("sam",), "sam", True),
        (("s*",), "sue", True),
        (("s*",), "jo", False),
    ],
)
def test_a_condition_on_the_sender_needs_a_sender(senders: Any, sender: str | None, takes: bool) -> None:
    assert rule("r", senders=senders).takes_sender(sender) is takes


def test_channels_with_the_same_rules_share_their_candidates() -> None:
    index = RuleIndex([rule("r", channels=("jobs*",))])
    assert index.candidates("jobs/1") is index.candidates("jobs/2")
    assert index.candidates("mail") is None


def test_the_memory_of_channels_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule_set, "INDEX_MAX", 3)
    index = RuleIndex([rule("r")])
    for number in range(10):
        assert ids(index.candidates(f"c{number}"), "note") == ["r"]
        assert len(index._known) <= 3
