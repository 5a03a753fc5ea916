"""Triggers in combination: undecided commits, late cooldowns, bounded bodies, tenants."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.core.limits import Limits
from penstock.core.rules.rule_set import Cooling
from penstock.core.scopes import OPERATOR, Principal, require
from tests.dialects.courier.talking import Broker, Frame, HandJournal, envelope


def rule(id_: str = "r", /, do: Any = None, **more: Any) -> Frame:
    when = more.pop("when", {"type": "note"})
    return {"id": id_, "when": when, "do": do or [{"action": "notify", "to": "told"}], **more}


def cooled(**limits: Any) -> Frame:
    return rule(limits={"cooldownMs": 1_000, **limits})


def told(broker: Broker, stream: str = "told") -> list[Frame]:
    channel = broker.machine.channels.get(stream)
    return [] if channel is None else [msgspec.json.decode(record.body) for record in channel.ready]


def put(broker: Broker, stream: str, *ids: str, who: Principal = OPERATOR, **more: Any) -> None:
    producer = broker.control(who)
    for id_ in ids:
        producer.say(type_="enqueue", to=stream, env=envelope(id_, **more), reqId=id_)


def activity(broker: Broker, id_: str = "r") -> Any:
    return broker.machine.triggers.rules[id_].activity


# Commits that end differently


def test_a_move_to_a_stream_of_an_undecided_commit_does_not_wait_and_loses_nothing() -> None:
    journal = HandJournal()
    move = rule(when={"to": "from/*"}, do=[{"action": "route", "to": "target", "mode": "move"}])
    broker = Broker(triggers=[move], journal=journal)
    put(broker, "from/a", "x")
    put(broker, "from/b", "x")
    journal.refuse()
    broker.run()
    while journal.waiting:
        journal.commit()
        broker.run()
    live = [name for name, channel in broker.machine.channels.items() if "x" in channel.live]
    assert live == ["from/b"]


# Cooldowns


def test_suppressed_matches_are_reported_even_if_the_next_match_precedes_the_timer() -> None:
    broker = Broker(triggers=[cooled(trailing=True)])
    producer = broker.control()
    put(broker, "s", "a", "b")
    broker.us += 1_000_000  # the timers have not run yet
    producer.send({"type": "enqueue", "to": "s", "env": envelope("c")})
    broker.run()
    assert [one["id"] for one in told(broker)] == ["trg-r-0-a", "trg-r-0-b-summary"]
    assert told(broker)[1]["payload"]["suppressed"] == 1


def test_a_cooldown_holds_no_envelope_once_its_firing_is_written() -> None:
    broker = Broker(triggers=[cooled(cooldownKey="${env.id}")])
    put(broker, "s", "a", "b")
    for cooling in broker.machine.triggers.cooling.values():
        held = [getattr(cooling, name) for name in Cooling.__struct_fields__]
        assert not any(hasattr(one, "source") for one in held)


def test_what_cooldowns_hold_for_their_summaries_is_bounded() -> None:
    limits = Limits(cooldown_bytes_max=10_000)
    broker = Broker(triggers=[cooled(cooldownKey="${env.from}", trailing=True)], limits=limits)
    for n in range(20):
        put(broker, "s", f"{n}-a", f"{n}-b", payload="x" * 2_000, **{"from": f"agent-{n}"})
    triggers = broker.machine.triggers
    assert sum(len(one.last[1]) for one in triggers.cooling.values() if one.last is not None) <= 10_000
    assert broker.machine.totals.cooldowns_evicted > 0
    waiting = [one for _, _, one in broker.machine.timers.heap if isinstance(one, Cooling)]
    assert sum(one.bytes for one in waiting) <= 10_000  # one that was forgotten waits there still
    broker.advance(5_000)
    assert triggers.kept_bytes == 0


# Routes


@pytest.mark.parametrize("mode", ["copy", "move"])
def test_an_envelope_that_is_routed_keeps_its_time(mode: str) -> None:
    route = {"action": "route", "to": "there", "mode": mode}
    broker = Broker(triggers=[rule(when={"to": "here"}, do=[route])])
    broker.control().say(type_="enqueue", to="here", env=envelope("a"), delayMs=60_000)
    assert told(broker, "there") == []
    broker.advance(59_000)
    assert told(broker, "there") == []
    broker.advance(2_000)
    assert [one["id"] for one in told(broker, "there")] == ["a"]


# What failures say


@pytest.mark.parametrize("field", ["to", "type"])
def test_a_failure_does_not_repeat_the_envelope(field: str) -> None:
    emit = {"action": "emit", "to": "told", "type": "t", "payload": 1} | {field: "${env.payload}"}
    broker = Broker(triggers=[rule(do=[emit])])
    put(broker, "s", "a", payload=["x" * 100_000])
    (recent,) = broker.machine.triggers.rules["r"].recent
    assert len(recent["failures"][0]) < 500


def test_a_rule_that_only_enriches_rests_after_failures_in_a_row_and_only_then() -> None:
    enrich = [{"action": "enrich", "payload": {"n": "${env.payload}"}}]
    limits = Limits(breaker_failures=3)
    broker = Broker(triggers=[rule(do=enrich)], limits=limits)
    put(broker, "s", "a", "b", payload="no object")
    put(broker, "s", "c")
    put(broker, "s", "d", payload="no object")
    assert broker.machine.triggers.rules["r"].open_until_us == 0
    put(broker, "s", "e", "f", payload="no object")
    assert broker.machine.triggers.rules["r"].open_until_us > broker.us
    put(broker, "s", "g")
    assert activity(broker).enriched == 1
    assert activity(broker).blocked == 1


# Tenants


def tenant(name: str) -> Principal:
    return Principal(name, scopes=require(["streams:*:*"]), tenant=name)


def test_a_template_leads_into_no_other_tenants_streams() -> None:
    do = [{"action": "route", "to": "${env.headers.reply}"}]
    broker = Broker(triggers=[rule(do=do, when={"to": ["s", "t/*"]})])
    put(broker, "s", "a", who=tenant("acme"), headers={"reply": "t/bolt/inbox"})
    put(broker, "s", "b", who=tenant("acme"), headers={"reply": "t/acme/inbox"})
    put(broker, "s", "c", who=Principal("x", scopes=require(["streams:*:*"])), headers={"reply": "t/bolt/q"})
    assert [name for name in broker.machine.channels if name.startswith("t/")] == ["t/acme/s", "t/acme/inbox"]
    assert activity(broker).fail == 2


def test_a_rule_may_name_a_tenant_itself() -> None:
    broker = Broker(triggers=[rule(do=[{"action": "route", "to": "t/bolt/${env.id}"}])])
    put(broker, "s", "a")
    assert len(told(broker, "t/bolt/a")) == 1


def test_no_tenant_keeps_a_rule_from_telling_of_another() -> None:
    broker = Broker(triggers=[rule(when={"to": ["s", "t/*"]})])
    put(broker, "s", "a", who=tenant("acme"))
    put(broker, "s", "a", who=tenant("bolt"))
    put(broker, "s", "a")
    assert len(told(broker)) == 3


# Reload
