"""Operations on triggers, for administrators: list, show, explain, change at run time, and try an envelope.

A change is a fact in the journal, so it survives a restart. It replaces a rule of the config with the same id until it is removed.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.core.clock import Now, rfc3339
from penstock.core.errors import Refusal
from penstock.core.queue.machine import QueueMachine
from penstock.core.records import Record
from penstock.core.rules.rule_set import Emission, Moment, Rule
from penstock.core.scopes import Principal
from penstock.dialects.courier.operations.outcomes import Body, Outcome, Result, check_access
from penstock.dialects.courier.triggers import config
from penstock.dialects.courier.triggers.config import Trigger
from penstock.dialects.courier.triggers.script import TriggerEnvelope, mismatches, rule_of
from penstock.dialects.courier.triggers.shard_checks import cross_shard_refusal
from penstock.dialects.courier.wire import envelopes

COOLING_SHOWN = 20
"""Cooldowns that `explain` lists."""


class TryRequest(msgspec.Struct, forbid_unknown_fields=True):
    """`POST /v1/triggers/try`: an envelope that is not sent."""

    to: str
    envelope: msgspec.Raw


class TriggerOperation(msgspec.Struct):
    """Look at triggers and change them, as Control v1 does: `op` is one of `OPS`."""

    op: str = "ls"
    id: str = ""
    rule: Trigger | None = None
    to: str = ""
    env: msgspec.Raw = msgspec.Raw(b"null")


OPS = ("ls", "show", "explain", "put", "remove", "try")


def operate(machine: QueueMachine, now: Now, principal: Principal, asked: TriggerOperation) -> Outcome:
    """Carry out an operation by its name."""
    match asked.op:
        case "ls":
            return listed(machine, now, principal)
        case "show":
            return shown(machine, now, principal, asked.id)
        case "explain":
            return explained(machine, now, principal, asked.id)
        case "put" if asked.rule is not None:
            return put(machine, now, principal, asked.rule.id, asked.rule)
        case "put":
            return Refusal("InvalidRequest", "`put` needs a `rule`", ref="rule")
        case "remove":
            return remove(machine, now, principal, asked.id)
        case "try":
            return tried(machine, now, principal, TryRequest(asked.to, asked.env))
        case _:
            return Refusal("InvalidRequest", f"`op` is one of {', '.join(OPS)}, not `{asked.op[:64]}`", ref="op")


def _check_admin(principal: Principal) -> Refusal | None:
    if principal.is_admin:
        return None
    return Refusal(
        "Forbidden",
        f"`{principal.name}` may not see or change triggers",
        ref="admin:*",
        hint="use the operator token in `run/operator.token`, or a token with the scope `admin:*`",
    )


def _unknown(rule_id: str) -> Refusal:
    return Refusal("UnknownTrigger", f"there is no trigger `{rule_id}`", ref=rule_id)


def listed(machine: QueueMachine, now: Now, principal: Principal) -> Outcome:
    """Every rule, in the order in which they are tried."""
    if (refusal := _check_admin(principal)) is not None:
        return refusal
    return Result({"triggers": [_row(now, rule) for rule in machine.triggers.rules.values()]})


def shown(machine: QueueMachine, now: Now, principal: Principal, rule_id: str) -> Outcome:
    """One rule as it is defined."""
    rule = _check_admin(principal) or machine.triggers.rules.get(rule_id) or _unknown(rule_id)
    return rule if isinstance(rule, Refusal) else Result(_row(now, rule))


def explained(machine: QueueMachine, now: Now, principal: Principal, rule_id: str) -> Outcome:
    """What a rule matches, what it did recently, and what prevents it from firing."""
    rule = _check_admin(principal) or machine.triggers.rules.get(rule_id) or _unknown(rule_id)
    if isinstance(rule, Refusal):
        return rule
    body = _row(now, rule)
    body["reasons"] = list(_reasons(now, rule))
    cooling = [one for one in machine.triggers.cooling.values() if one.rule is rule and one.until_us > now.us]
    body["cooling"] = [
        {"key": one.key, "endsInMs": (one.until_us - now.us) // 1000, "suppressed": one.suppressed}
        for one in cooling[-COOLING_SHOWN:]
    ]
    body["recent"] = [
        {"at": rfc3339(event["at"]), **{key: event[key] for key in event if key != "at"}}
        for event in reversed(rule.recent)
    ]
    return Result(body)


def _row(now: Now, rule: Rule) -> Body:
    if not rule.enabled:
        state = "disabled"
    else:
        state = "resting" if rule.open_until_us > now.us else "ready"
    return {
        "id": rule.id,
        "hook": rule.hook,
        "origin": rule.origin,
        "state": state,
        "rule": msgspec.to_builtins(rule.definition),
        "counters": msgspec.to_builtins(rule.activity),
    }


def _reasons(now: Now, rule: Rule) -> Any:
    activity = rule.activity
    if not rule.enabled:
        yield {"code": "disabled", "message": "`enabled` is false"}
    if rule.open_until_us > now.us:
        rest_ms = (rule.open_until_us - now.us) // 1000
        yield {"code": "resting", "message": "it failed too often in a row", "endsInMs": rest_ms}
    if activity.suppressed:
        yield {"code": "suppressed", "message": "matches came within its cooldown", "count": activity.suppressed}
    if activity.looped:
        yield {"code": "looped", "message": "it had a hand in what it matched", "count": activity.looped}
    if activity.hops:
        message = "as many triggers as `limits.trigger_hops_max` allows had a hand in what it matched"
        yield {"code": "hops", "message": message, "count": activity.hops}
    if not activity.run and not activity.suppressed and not activity.looped and not activity.hops:
        yield {"code": "no_match", "message": "nothing has matched yet; `POST /v1/triggers/try` says why"}


def put(machine: QueueMachine, now: Now, principal: Principal, rule_id: str, trigger: Trigger) -> Outcome:
    """Add a rule, or replace one."""
    if (refusal := _check_admin(principal)) is not None:
        return refusal
    if trigger.id != rule_id:
        message = f"the path says `{rule_id}` and the rule `{trigger.id}`"
        return Refusal("InvalidRequest", message, ref="id")
    if (refusal := config.refusal_of(trigger, machine.limits)) is not None:
        return refusal
    if machine.is_here is not None and (refusal := cross_shard_refusal(trigger)) is not None:
        return refusal
    triggers = machine.triggers
    if rule_id not in triggers.rules and len(triggers.rules) >= machine.limits.rules_max:
        message = f"there are {len(triggers.rules)} triggers and `limits.rules_max` allows no more"
        return Refusal("QuotaExceeded", message, ref="limits.rules_max", retry_after_ms=1_000)
    rule = rule_of(trigger, machine.limits, at_run_time=True)
    text = msgspec.json.encode(trigger).decode()
    is_new = rule_id not in triggers.rules
    gate = machine.change_rule(rule_id, text, rule)
    return gate if isinstance(gate, Refusal) else Result({"id": rule_id, "created": is_new}, gate)


def remove(machine: QueueMachine, now: Now, principal: Principal, rule_id: str) -> Outcome:
    """Remove a rule that was added at run time."""
    if (refusal := _check_admin(principal)) is not None:
        return refusal
    triggers = machine.triggers
    if rule_id in triggers.texts:
        gate = machine.change_rule(rule_id, None, None)
        if isinstance(gate, Refusal):
            return gate
        return Result({"id": rule_id, "removed": True, "config": rule_id in triggers.base}, gate)
    if rule_id in triggers.base:
        return Refusal(
            "TriggerInConfig",
            f"`{rule_id}` comes from the config file",
            ref=rule_id,
            hint="take it out of the file and reload, or PUT it here with `enabled: false`",
        )
    return _unknown(rule_id)


def tried(machine: QueueMachine, now: Now, principal: Principal, request: TryRequest) -> Outcome:
    """What each rule would do with an envelope, or why nothing. Nothing is sent."""
    refusal = _check_admin(principal) or check_access(machine, principal, "enqueue", request.to)
    record = refusal or envelopes.parse(bytes(request.envelope), request.to, principal, machine.limits)
    if isinstance(record, Refusal):
        return record
    source = TriggerEnvelope(request.to, record.body)
    rows = [_verdict(machine, now, rule, record, source) for rule in machine.triggers.rules.values()]
    return Result({"triggers": rows})


def _verdict(machine: QueueMachine, now: Now, rule: Rule, record: Record, source: TriggerEnvelope) -> Body:
    because = mismatches(rule, source.stream, record.kind, record.sender, source)
    if source.hops >= machine.limits.trigger_hops_max:
        because.append("too many rules had a hand in it")
    if not rule.enabled:
        because.append("the rule is disabled")
    row: Body = {"id": rule.id, "hook": rule.hook, "fits": not because}
    if because:
        row["because"] = because
        return row
    moment = Moment(now.wall_us, rule.id)
    row["sends"] = [
        {"to": one.channel, "envelope": msgspec.Raw(one.record.body), "moves": one.moves}
        if isinstance(one, Emission)
        else {"failure": one.reason}
        for one in rule.script.act(source, moment)
    ]
    if moment.warnings:
        row["warnings"] = moment.warnings
    return row


def recovered_rules(machine: QueueMachine) -> list[str]:
    """Compile the rules that were added before a restart; returns those that are no longer valid. Safe to call again."""
    lost: list[str] = []
    for rule_id, text in list(machine.triggers.texts.items()):
        try:
            trigger = msgspec.json.decode(text, type=Trigger)
        except msgspec.DecodeError:
            lost.append(rule_id)
            continue
        if config.refusal_of(trigger, machine.limits) is not None:
            lost.append(rule_id)
            continue
        known = machine.triggers.given.get(rule_id)
        if known is not None and known.definition == trigger:
            continue
        machine.triggers.give(rule_id, text, rule_of(trigger, machine.limits, at_run_time=True))
    return lost
