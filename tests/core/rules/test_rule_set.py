"""The rules of a machine: rules of the config, rules given at run time, and changes whose commit is undecided."""

from __future__ import annotations

from typing import Any

from penstock.core.errors import Refusal
from penstock.core.rules.rule_set import RETRY_WRITE_MS, Cooling, Rule, Triggers, change
from tests.core.driving import QueueDriver
from tests.core.rules.test_rule_index import NoScript


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
