"""Triggers: try rules on what happens to records, and send the records that they write.

A rule sends through a `Send` effect in the same turn, so cause and consequence are one commit. The id of a sent record is derived from
the rule and its source, so a source that repeats sends nothing twice. Keeps: a rule never fires on a record it has acted on; no chain
is longer than `trigger_hops_max` and no cause has more than `trigger_fanout_max` consequences; a failing rule never fails its
producer, and pauses after `breaker_failures` in a row; suppressed matches are counted. O(1) a record that no rule matches.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Literal
from zlib import crc32

import msgspec

from penstock.core.effects import Send
from penstock.core.errors import Refusal
from penstock.core.records import Fired, Record, Settle
from penstock.core.rules.rule_set import Cascade, Cooling, Emission, Failure, Firing, Hook, Moment, Rule

if TYPE_CHECKING:
    from penstock.core.clock import Now
    from penstock.core.queue.channel import Channel
    from penstock.core.queue.state import QueueState


RULES_UNIT, READ_UNIT, WRITE_UNIT, EMISSION_COST = 8, 512, 2_048, 2
"""Rules that are tried, bytes that are read and written for them, in the time of one unit of `STEP_COST`; what an envelope costs apart from its bytes."""

# What happens to records


def enrich(state: QueueState, now: Now, channel: Channel, records: list[Record]) -> int:
    """Let rules enrich records before they are admitted. Returns by how many bytes they grew."""
    found = state.triggers.on_insert.candidates(channel.name)
    if found is None or not any(rule.enriches for rule in found.rules):
        return 0
    grown = 0
    for record in records:
        for rule in found.of_kind(record.kind):
            if not rule.enriches or not rule.takes_kind(record.kind) or not rule.takes_sender(record.sender):
                continue
            source = state.wrapping.read(channel.name, record.body)
            if not rule.script.fits(source) or rule.id in source.chain or rule.id in source.enriched:
                continue
            if rule.open_until_us > now.us:
                rule.activity.blocked += not rule.acts  # otherwise counted when it would act
                continue
            moment = Moment(now.wall_us, rule.id)
            body = rule.script.enrich(source, moment)
            rule.activity.warn += moment.warnings
            if isinstance(body, bytes) and len(body) > state.limits.envelope_max:
                body = Failure(f"the envelope would have {len(body)} bytes")
            if isinstance(body, Failure):
                _fail(state, now, rule, body.reason)
            else:
                rule.activity.enriched += 1
                if not rule.acts:
                    rule.failures = 0
                if record.check is None:
                    record.check = crc32(record.body)
                grown += len(body) - len(record.body)
                record.body = body
    return grown


def inserted(
    state: QueueState, now: Now, channel: Channel, records: list[Record], cascade: Cascade | None = None
) -> None:
    """Records were admitted to a channel: try the rules that wait for that."""
    found = state.triggers.on_insert.candidates(channel.name)
    if found is None:
        return
    for record in records:
        if rules := found.of_kind(record.kind):
            state.begin(now, attempt(state, now, rules, record, record.body, 0, cascade or Cascade()))


def happened(state: QueueState, now: Now, hook: Hook, record: Record, body: bytes | None = None) -> None:
    """A record was acked, timed out or died: try the rules that wait for that."""
    found = getattr(state.triggers, hook).candidates(record.channel.name)
    if found is None:
        return
    if rules := found.of_kind(record.kind):
        numbered = record.attempt if hook == "on_timeout" else 0
        body = record.body if body is None else body
        state.begin(now, attempt(state, now, rules, record, body, numbered, Cascade()))


def attempt(
    state: QueueState, now: Now, rules: tuple[Rule, ...], record: Record, body: bytes, numbered: int, cascade: Cascade
) -> Generator[None, Now, None]:
    """Try rules on a record, with the body and the attempt that it has now."""
    source: Any = None
    for number, rule in enumerate(rules):
        if number % RULES_UNIT == 0:
            state.cost += 1
        if not rule.acts or not rule.takes_kind(record.kind) or not rule.takes_sender(record.sender):
            continue
        if state.is_spent:
            now = yield
        if source is None:
            source = state.wrapping.read(record.channel.name, body)
            state.cost += len(body) // READ_UNIT
        if not rule.script.fits(source) or not _may_fire(state, now, rule, source):
            continue
        firing = Firing(rule, record)
        if rule.cooldown_us and not _begin_cooldown(state, now, firing, source, body):
            continue
        now = yield from _send(state, now, firing, source, Moment(now.wall_us, rule.id, numbered), cascade)


def _may_fire(state: QueueState, now: Now, rule: Rule, source: Any) -> bool:
    """Check the guards against loops, long chains and failing rules."""
    activity = rule.activity
    if rule.id in source.chain:
        activity.looped += 1
        return False
    if source.hops >= state.limits.trigger_hops_max:
        activity.hops += 1
        return False
    if rule.open_until_us > now.us:
        activity.blocked += 1
        return False
    return True


def _begin_cooldown(state: QueueState, now: Now, firing: Firing, source: Any, body: bytes) -> bool:
    """Begin the cooldown of a rule that fires; False where one suppresses the firing."""
    rule = firing.rule
    key = (rule.id, rule.script.key(source))
    known = state.triggers.cooling
    cooling = known.get(key)
    if cooling is not None and now.us >= cooling.until_us:
        if cooling.suppressed:  # its timer is late: end it now
            cooled(state, now, cooling)
        cooling = known.get(key) if cooling.suppressed else None
    if cooling is not None:
        _suppress(state, cooling, firing.source, body)
        return False
    firing.cooling = _cool(state, now, rule, key)
    return True


def _suppress(state: QueueState, cooling: Cooling, record: Record, body: bytes) -> None:
    cooling.suppressed += 1
    cooling.rule.activity.suppressed += 1
    triggers = state.triggers
    triggers.kept_bytes -= cooling.bytes
    cooling.last = (record, body)
    triggers.kept_bytes += cooling.bytes
    if cooling.ticket == 0:  # a cooldown that suppressed nothing needs no timer
        state.timers.arm(cooling.until_us, cooling)
    while triggers.kept_bytes > state.limits.cooldown_bytes_max and len(triggers.cooling) > 1:
        _evict(state, spared=cooling)


def _cool(state: QueueState, now: Now, rule: Rule, key: tuple[str, str]) -> Cooling:
    cooling = Cooling(rule, key[1], now.us + rule.cooldown_us)
    known = state.triggers.cooling
    known.pop(key, None)
    if len(known) >= state.limits.cooldowns_max:
        _evict(state)
    known[key] = cooling
    return cooling


def _evict(state: QueueState, spared: Cooling | None = None) -> None:
    """Evict the oldest cooldown; the spared one becomes the newest instead."""
    triggers = state.triggers
    key = next(iter(triggers.cooling))
    if triggers.cooling[key] is spared:
        triggers.cooling[key] = triggers.cooling.pop(key)
        return
    triggers.forget(key)
    state.totals.cooldowns_evicted += 1


def cooled(state: QueueState, now: Now, cooling: Cooling) -> None:
    """A cooldown that suppressed matches ended, by its timer or by the next match."""
    cooling.ticket = 0
    key = (cooling.rule.id, cooling.key)
    if state.triggers.cooling.get(key) is not cooling:
        return
    del state.triggers.cooling[key]
    state.triggers.kept_bytes -= cooling.bytes
    rule = cooling.rule
    assert cooling.last is not None
    record, body = cooling.last
    is_owed = cooling.is_owed
    if (rule.trailing or is_owed) and rule.open_until_us <= now.us:
        source = state.wrapping.read(record.channel.name, body)
        firing = Firing(rule, record, suppressed=cooling.suppressed)
        moment = Moment(now.wall_us, rule.id, suppressed=cooling.suppressed, is_summary=not is_owed)
        firing.cooling = _cool(state, now, rule, key)  # a summary is a firing: a steady burst gets no more
        state.begin(now, _send(state, now, firing, source, moment, Cascade()))
        return
    _observe(state, rule, record, "suppressed", {"suppressed": cooling.suppressed})


def _send(
    state: QueueState, now: Now, firing: Firing, source: Any, moment: Moment, cascade: Cascade
) -> Generator[None, Now, Now]:
    """Send what a rule writes. Returns the time of the last step."""
    rule = firing.rule
    rule.activity.run += 1
    firing.left = 1  # until all is written
    for one in rule.script.act(source, moment):
        if isinstance(one, Emission) and cascade.sent >= state.limits.trigger_fanout_max:
            one = Failure("one envelope has caused more than `limits.trigger_fanout_max` others")
        if isinstance(one, Emission) and len(one.record.body) > state.limits.envelope_max:
            one = Failure(f"the envelope would have {len(one.record.body)} bytes")
        if isinstance(one, Failure):
            firing.failures.append(one.reason)
            continue
        if one.is_source:
            one.record.due_wall_us = one.record.scheduled_wall_us = firing.source.scheduled_wall_us
        cascade.sent += 1
        state.cost += EMISSION_COST + len(one.record.body) // WRITE_UNIT
        firing.left += 1
        event: Literal["move", "trigger"] = "move" if one.moves else "trigger"
        send = Send(one.channel, one.record, firing.source, event, rule.id, firing=firing, cascade=cascade)
        state.effects.append(send)
        if state.is_spent:
            now = yield
    rule.activity.warn += moment.warnings
    firing.left -= 1
    if firing.left == 0:
        _finish(state, now, firing)
    return now


def answered(state: QueueState, now: Now, send: Send, refusal: Refusal | None) -> None:
    """The target channel accepted or refused a record of a rule."""
    firing = send.firing
    assert firing is not None
    firing.left -= 1
    if refusal is not None:
        firing.failures.append(f"`{send.channel}`: {refusal.code}: {refusal.message}")
    else:
        firing.sent.append((send.channel, send.record.id))
        if send.event == "move":
            _move_away(state, now, send)
    if firing.left == 0:
        _finish(state, now, firing)


def _move_away(state: QueueState, now: Now, send: Send) -> None:
    """Settle a source in the commit that admits it; that commit updates the counts."""
    record = send.origin
    moved = Settle("move", record, None, record.attempt, record.first_wall_us, f"route {send.reason}", fresh=True)
    state.commit_log.facts.append(moved)
    state.pending_bytes -= len(record.body)
    state.settle(record, "moved", now)


def _finish(state: QueueState, now: Now, firing: Firing) -> None:
    """Every send of a firing was answered."""
    rule = firing.rule
    activity = rule.activity
    activity.emitted += len(firing.sent) - firing.known
    activity.duplicates += firing.known
    detail: dict[str, Any] = {"at": now.wall_us, "stream": firing.source.channel.name, "id": firing.source.id}
    if firing.sent:
        detail["sent"] = [{"to": channel, "id": id_} for channel, id_ in firing.sent]
    if firing.suppressed:
        detail["suppressed"] = firing.suppressed
    if firing.failures:
        detail["failures"] = firing.failures
        _count_failures(state, now, rule, len(firing.failures))
    else:
        rule.failures = 0
    rule.recent.append(detail)
    meta = {key: value for key, value in detail.items() if key not in ("at", "stream", "id")}
    adds = len(firing.sent) > firing.known
    _observe(state, rule, firing.source, "failed" if firing.failures else "fired", meta, adds=adds)


def _fail(state: QueueState, now: Now, rule: Rule, reason: str) -> None:
    rule.recent.append({"at": now.wall_us, "failures": [reason]})
    _count_failures(state, now, rule, 1)


def _count_failures(state: QueueState, now: Now, rule: Rule, count: int) -> None:
    rule.activity.fail += count
    rule.failures += 1
    if rule.failures >= state.limits.breaker_failures:
        rule.failures = 0
        rule.open_until_us = now.us + state.limits.breaker_ms * 1000


def _observe(
    state: QueueState, rule: Rule, record: Record, outcome: str, meta: dict[str, Any], *, adds: bool = False
) -> None:
    fired = Fired("trigger", record, rule.id, record.attempt, record.first_wall_us, outcome)
    fired.fresh = adds or record.offset < 0  # what is refused with its source, or with what it sent, never happened
    fired.detail = msgspec.json.encode({"hook": rule.hook, **meta}).decode()
    state.commit_log.observe_settle(fired)


# Refusals of the journal

_REFUSED = "the journal refused it"


def withdrawn(state: QueueState, now: Now, firing: Firing) -> None:
    """The journal refused what a rule sent. If it refused the source too, the rule never fired; otherwise it failed."""
    if firing.is_undone:
        return
    firing.is_undone = True
    rule = firing.rule
    rule.activity.undone += 1
    cooling = firing.cooling
    if cooling is not None and state.triggers.cooling.get((rule.id, cooling.key)) is cooling:
        if cooling.suppressed:  # what it suppressed meanwhile would never be reported
            cooling.is_owed = True
            state.timers.arm(now.us, cooling)
        else:
            del state.triggers.cooling[(rule.id, cooling.key)]
    if firing.source.offset >= 0:
        _fail(state, now, rule, _REFUSED)
        _observe(state, rule, firing.source, "failed", {"failures": [_REFUSED]})
