"""The config of a trigger: what is rejected, and where the problem is."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.errors import Refusal
from penstock.core.limits import Limits
from penstock.dialects.courier.triggers.config import Trigger, parse, problems

NOTIFY = {"action": "notify", "to": "inbox"}
PLAIN: dict[str, Any] = {"id": "r", "when": {"type": "note"}, "do": [NOTIFY]}


def where(limits: Limits | None = None, /, **more: Any) -> str | None:
    parsed = parse(PLAIN | more, limits or Limits())
    return parsed.ref if isinstance(parsed, Refusal) else None


def test_what_is_left_out_has_its_default() -> None:
    trigger = parse(PLAIN, Limits())
    assert isinstance(trigger, Trigger)
    assert (trigger.hook, trigger.enabled, trigger.strict, trigger.limits.cooldown_ms) == ("on_insert", True, False, 0)


@pytest.mark.parametrize(
    ("more", "ref"),
    [
        ({"id": "try"}, "id"),
        ({"id": "two words"}, "id"),
        ({"id": "a" * 129}, "id"),
        ({"when": {}}, "when"),
        ({"limits": {"trailing": True}}, "limits.trailing"),
        ({"limits": {"cooldownKey": "${env.from"}}, "limits.cooldownKey"),
        ({"do": [{"action": "notify", "to": "a:b"}]}, "do.0.to"),
        ({"do": [NOTIFY, {"action": "route", "to": "jobs/*"}]}, "do.1.to"),
        ({"do": [{"action": "enrich"}]}, "do.0"),
        ({"do": [{"action": "enrich", "headers": {"priority": "high"}}]}, "do.0.headers.priority"),
        ({"do": [{"action": "enrich", "headers": {"x-penstock-a": "1"}}]}, "do.0.headers.x-penstock-a"),
        ({"do": [NOTIFY | {"headers": {"x-courier-a": "1"}}]}, "do.0.headers.x-courier-a"),
    ],
)
def test_a_problem_is_named_with_its_place(more: dict[str, Any], ref: str) -> None:
    assert where(**more) == ref


@pytest.mark.parametrize(
    ("action", "ref"),
    [
        ({"action": "enrich", "headers": {"x-a": "1"}}, "do.0.action"),
        ({"action": "route", "to": "b", "mode": "move"}, "do.0.mode"),
    ],
)
def test_changing_the_envelope_itself_needs_the_hook_on_insert(action: dict[str, Any], ref: str) -> None:
    assert where(do=[action]) is None
    assert where(do=[action], hook="on_ack") == ref


def test_the_number_of_actions_is_bounded() -> None:
    limits = Limits(rule_actions_max=2)
    assert where(limits, do=[NOTIFY] * 2) is None
    assert where(limits, do=[NOTIFY] * 3) == "do"


@pytest.mark.parametrize("more", [{"do": []}, {"hook": "on_fire"}, {"unknown": 1}, {"do": [{"action": "delete"}]}])
def test_values_of_another_shape_are_an_invalid_request(more: dict[str, Any]) -> None:
    parsed = parse(PLAIN | more, Limits())
    assert isinstance(parsed, Refusal) and parsed.code == "InvalidRequest"


def test_all_problems_are_found_at_once() -> None:
    parsed = parse(PLAIN, Limits())
    assert isinstance(parsed, Trigger)
    wrong = [("id",), ("do", 0, "to")]
    trigger = Trigger("try", parsed.when, (type(parsed.do[0])("a*"),))  # type: ignore[call-arg]
    assert [path for path, _ in problems(trigger, Limits())] == wrong
