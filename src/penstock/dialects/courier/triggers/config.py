"""The definition of a trigger, in the config and over HTTP, with the checks that types cannot express.

The text under a field becomes its line in `docs/reference/config.md`, so write it for the operator.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from penstock.core.errors import Refusal
from penstock.core.limits import Limits
from penstock.core.names import is_stream, stream_form
from penstock.core.rules.rule_set import Hook
from penstock.dialects.courier.triggers import templates
from penstock.dialects.courier.wire.envelopes import to_refusal

Text: TypeAlias = Annotated[str, Meta(min_length=1)]
Texts: TypeAlias = Text | Annotated[tuple[Text, ...], Meta(min_length=1)]
Scalar: TypeAlias = str | int | float | bool
Count: TypeAlias = Annotated[int, Meta(ge=0)]

RULE_ID = re.compile(r"[^\s,:/?#%]{1,128}")
RULE_BYTES_MAX = 64 * 1024
"""Bytes of one rule as JSON: every firing walks all of it."""
PLACEHOLDERS_MAX = 16
"""Placeholders in a name (`to`, `type`, `cooldownKey`), each of which may stand for a whole payload."""
RESERVED_HEADERS = ("x-courier", "x-penstock")
"""Prefixes of headers that only the server sets."""

Where: TypeAlias = tuple[str | int, ...]
Problem: TypeAlias = tuple[Where, str]


class When(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"from_": "from", "tags_any": "tagsAny"}):
    """What an envelope must look like; every key that is given must fit, and at least one is."""

    to: Texts | UnsetType = UNSET
    """Stream; `*` is any run of characters; in a list one has to fit."""
    from_: Texts | UnsetType = UNSET
    """Sender, likewise."""
    type: Texts | UnsetType = UNSET
    """Type, likewise."""
    tags: Texts | UnsetType = UNSET
    """Tags that must all be there."""
    tags_any: Texts | UnsetType = UNSET
    """Tags of which one must be there."""
    headers: dict[str, Scalar] | UnsetType = UNSET
    """Headers that must have these values."""


class NotifyAction(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="notify", tag_field="action"):
    """Send a notice: `{"title": "Notification", "ref": <id of the envelope>}`, and what `payload` has over it."""

    to: Text
    """Stream it goes to; may hold `${env.<path>}`."""
    type: Text = "notify"
    """Type of the notice."""
    payload: Any = None
    """What its payload says more, or instead when it is no mapping; texts in it may hold `${env.<path>}`."""
    tags: tuple[Text, ...] = ()
    """Tags in addition to `system`."""
    headers: dict[str, Scalar] = {}
    """Its headers; texts may hold `${env.<path>}`."""


class EmitAction(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="emit", tag_field="action"):
    """Send an envelope of your own."""

    to: Text
    """Stream it goes to; may hold `${env.<path>}`."""
    type: Text
    """Its type."""
    payload: Any
    """Its payload, as it stands; texts in it may hold `${env.<path>}`."""
    tags: tuple[Text, ...] = ()
    """Tags in addition to `system`."""
    headers: dict[str, Scalar] = {}
    """Its headers; texts may hold `${env.<path>}`."""


class RouteAction(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="route", tag_field="action"):
    """Send the envelope itself to another stream too, under the same id."""

    to: Text
    """Stream it goes to; may hold `${env.<path>}`."""
    mode: Literal["copy", "move"] = "copy"
    """Whether it also stays where it is. A move is for `on_insert` only, before the first delivery."""


class EnrichAction(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="enrich", tag_field="action"):
    """Add to the envelope before it is taken, so that every consumer sees it. For `on_insert`."""

    headers: dict[str, Scalar] = {}
    """Headers to set; their names begin with `x-`. Texts may hold `${env.<path>}`."""
    payload: dict[str, Any] = {}
    """What to put under `payload.enriched`. Texts may hold `${env.<path>}`."""


Action: TypeAlias = NotifyAction | EmitAction | RouteAction | EnrichAction


class TriggerLimits(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """How often a trigger fires."""

    cooldown_ms: Count = 0
    """After it fired, further matches within this time are suppressed and counted."""
    cooldown_key: Text | UnsetType = UNSET
    """Template of what the cooldown is counted by, e.g. `${env.from}`; left out, the rule as a whole."""
    trailing: bool = False
    """Whether one summary follows at the end of a cooldown that suppressed something; `${suppressed}` says how much."""


class Trigger(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rule that is tried on everything that happens to envelopes."""

    id: Text
    """Name of the rule; no two share one."""
    when: When
    """What it waits for."""
    do: Annotated[tuple[Action, ...], Meta(min_length=1)]
    """What it does then, in this order."""
    hook: Hook = "on_insert"
    """What has to happen to the envelope: it came, was acked, its lease ran out, or it went to the dead letters."""
    limits: TriggerLimits = TriggerLimits()
    """How often."""
    enabled: bool = True
    """Whether it is tried at all."""
    strict: bool = False
    """Whether a placeholder that stands for nothing makes the action fail; otherwise it is an empty text."""


def parse(value: Mapping[str, Any], limits: Limits) -> Trigger | Refusal:
    """A rule from plain values, or its first problem."""
    try:
        trigger = msgspec.convert(value, Trigger)
    except msgspec.ValidationError as error:
        return to_refusal(error)
    return refusal_of(trigger, limits) or trigger


def refusal_of(trigger: Trigger, limits: Limits) -> Refusal | None:
    """The first problem of a rule as a refusal."""
    for where, problem in problems(trigger, limits):
        path = ".".join(map(str, where))
        return Refusal("InvalidRequest", f"`{path}` {problem}", ref=path)
    return None


def problems(trigger: Trigger, limits: Limits) -> Iterator[Problem]:
    """The problems of a rule whose types are right."""
    if trigger.id == "try":
        yield ("id",), "`try` is what the route to try an envelope is called"
    if not RULE_ID.fullmatch(trigger.id) or not trigger.id.isprintable():
        yield ("id",), f"got `{trigger.id[:80]}`, expected up to 128 characters without spaces and `,:/?#%`"
    size = len(msgspec.json.encode(trigger))
    if size > RULE_BYTES_MAX:
        yield ("do",), f"makes a rule of {size} bytes, and at most {RULE_BYTES_MAX} bytes are accepted"
        return
    if all(value is UNSET for value in msgspec.structs.astuple(trigger.when)):
        yield ("when",), "is empty and would fire on every envelope; name at least one key"
    if len(trigger.do) > limits.rule_actions_max:
        yield ("do",), f"has {len(trigger.do)} actions, and `limits.rule_actions_max` allows no more"
    if trigger.limits.cooldown_key is not UNSET:
        for problem in (*templates.problems(trigger.limits.cooldown_key), *_crowded(trigger.limits.cooldown_key)):
            yield ("limits", "cooldownKey"), problem
    if trigger.limits.trailing and not trigger.limits.cooldown_ms:
        yield ("limits", "trailing"), "needs a `cooldownMs` to come after"
    for number, action in enumerate(trigger.do):
        for where, problem in _action_problems(trigger, action, limits):
            yield ("do", number, *where), problem


def _action_problems(trigger: Trigger, action: Action, limits: Limits) -> Iterator[Problem]:
    if isinstance(action, EnrichAction):
        if trigger.hook != "on_insert":
            yield (("action",), "`enrich` adds to an envelope before it is taken: it goes with `hook: on_insert` only")
        if not action.headers and not action.payload:
            yield (), "adds nothing; give `headers` or `payload`"
        for name in action.headers:
            if not name.startswith("x-") or name.startswith(RESERVED_HEADERS):
                yield (
                    ("headers", name),
                    "is not ours to set: a name begins with `x-`, and not with `x-courier` or `x-penstock`",
                )
    else:
        bare = re.sub(r"\$\{[^{}]*\}", "", action.to)
        if not is_stream(bare or "x", limits.name_max):
            yield ("to",), f"{action.to[:80]!a} is not a stream name: {stream_form(limits.name_max)}"
    if isinstance(action, RouteAction) and action.mode == "move" and trigger.hook != "on_insert":
        yield (("mode",), "an envelope can be moved before its first delivery only: `move` goes with `hook: on_insert`")
    if isinstance(action, NotifyAction | EmitAction):
        for name in action.headers:
            if name.startswith(RESERVED_HEADERS):
                yield ("headers", name), "is set by the server itself"
    for field in ("to", "type"):
        for problem in _crowded(getattr(action, field, "")):
            yield (field,), problem
    for field in ("to", "type", "payload", "headers"):
        for problem in templates.problems(getattr(action, field, None)):
            yield (field,), problem


def _crowded(name: str) -> Iterator[str]:
    if name.count("${") > PLACEHOLDERS_MAX:
        yield f"has more than {PLACEHOLDERS_MAX} placeholders"
