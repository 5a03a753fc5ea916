"""The rules of a machine: rules of the config, rules given at run time, undecided changes, and the index that finds candidates."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.errors import Refusal
from penstock.core.rules import rule_set
from penstock.core.rules.rule_set import RETRY_WRITE_MS, Candidates, Cooling, Rule, RuleIndex, Triggers, change
from tests.core.driving import QueueDriver


class NoScript:
    """The part of a rule that these tests do not reach."""


def rule(id_: str = "r", definition: str = "first", hook: Any = "on_insert", **more: Any) -> Rule:
    return Rule(id=id_, hook=hook, script=NoScript(), definition=definition, **more)  # type: ignore[arg-type]


def installed(*rules: Rule) -> Triggers:
    triggers = Triggers()
    triggers.install(list(rules))
    return triggers


def test_a_rule_is_indexed_by_its_hook_and_only_while_it_is_enabled() -> None:
    triggers = installed(rule("a"), rule("b", hook="on_ack"), rule("off", enabled=False))
    assert [one.id for one in triggers.on_insert.rules] == ["a"]
    assert [one.id for one in triggers.on_ack.rules] == ["b"]
    assert list(triggers.rules) == ["a", "b", "off"]


def test_a_reload_keeps_a_rule_that_did_not_change_and_replaces_one_that_did() -> None:
    same, changed = rule("same"), rule("changed")
    triggers = installed(same, changed)
    triggers.install([rule("same"), rule("changed", "second")])
    assert triggers.rules["same"] is same
    assert triggers.rules["changed"] is not changed


def test_a_rule_given_at_run_time_replaces_that_of_the_config_until_it_is_removed() -> None:
    configured, given = rule(), rule(definition="given")
    triggers = installed(configured)
    triggers.give("r", "text", given)
    assert triggers.rules["r"] is given and triggers.texts == {"r": "text"}
    triggers.give("r", None, None)
    assert triggers.rules["r"] is configured and triggers.texts == {}


def test_a_rule_that_this_version_cannot_read_is_kept_and_not_tried() -> None:
    triggers = installed()
    triggers.give("new", "from a later version", None)
    assert triggers.texts == {"new": "from a later version"}
    assert not triggers.on_insert


def test_the_cooldowns_of_a_replaced_rule_are_dropped() -> None:
    before = rule()
    triggers = installed(before)
    cooling = Cooling(before, "k", 10, ticket=5)
    triggers.cooling["r", "k"] = cooling
    triggers.install([rule(definition="second")])
    assert triggers.cooling == {} and cooling.ticket == 0


def test_a_change_whose_commit_is_rejected_is_undone() -> None:
    driver = QueueDriver()
    state = driver.machine
    assert not isinstance(change(state, "r", "text", rule()), Refusal)
    assert "r" in state.triggers.rules
    driver.refuse()
    assert state.triggers.rules == {} and state.triggers.texts == {}


def test_a_second_change_waits_for_the_commit_of_the_first() -> None:
    driver = QueueDriver()
    state = driver.machine
    change(state, "r", "first", rule())
    state.commit_log.take_batch()
    refusal = change(state, "r", "second", rule(definition="second"))
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.ref, refusal.retry_after_ms) == ("JournalUnavailable", "r", RETRY_WRITE_MS)
    assert not isinstance(change(state, "other", "text", rule("other")), Refusal)


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
