"""Triggers on the real runtime: predicates, actions, cooldowns, guards, the breaker, and the journal's answers."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.limits import Limits
from penstock.core.queue.policy import Policy
from penstock.core.records import Fired, is_fresh
from penstock.core.scopes import ANONYMOUS, OPERATOR
from penstock.dialects.courier.operations.outcomes import Result
from penstock.dialects.courier.triggers import admin, config
from penstock.dialects.courier.triggers.config import Trigger
from penstock.dialects.courier.triggers.script import TriggerEnvelope, TriggerScript
from tests.core.driving import purge_all
from tests.dialects.courier.talking import Broker, HandJournal, envelope, filled

SEED = {
    "id": "trig.jen.log.notify.architect",
    "when": {"type": "sprint.log", "from": "agents/Jen/outbox"},
    "do": [
        {
            "action": "notify",
            "to": "agents/architect/inbox",
            "payload": {"title": "Jen posted sprint log", "ref": "${env.id}"},
        }
    ],
    "limits": {"cooldownMs": 5000},
}


def rule(id_: str = "r", /, do: Any = None, **more: Any) -> dict[str, Any]:
    when = more.pop("when", {"type": "note"})
    return {"id": id_, "when": when, "do": do or [{"action": "notify", "to": "told"}], **more}


def enqueue(broker: Broker, stream: str, *envelopes: dict[str, Any]) -> list[Any]:
    producer = broker.control()
    return [answer for one in envelopes for answer in producer.say(type="enqueue", to=stream, env=one, reqId=one["id"])]


def told(broker: Broker, stream: str = "told") -> list[dict[str, Any]]:
    """The envelopes that wait in a stream."""
    channel = broker.machine.channels.get(stream)
    return [] if channel is None else [msgspec.json.decode(record.body) for record in channel.ready]


def counts(broker: Broker, id_: str = "r") -> dict[str, int]:
    activity = msgspec.to_builtins(broker.machine.triggers.rules[id_].activity)
    return {name: count for name, count in activity.items() if count}


# What a rule sends


@pytest.mark.promise("The document's testing strategy", "Unit: trigger predicate and action")
@pytest.mark.promise("Triggers", "the actions `notify`, `emit`, `route` and `enrich` work")
def test_the_rule_of_the_document_tells_the_architect() -> None:
    broker = Broker(triggers=[SEED])
    enqueue(
        broker,
        "logs",
        envelope("e-1", type="sprint.log", corr="c-9", refs=["T1"], **{"from": "agents/Jen/outbox"}),
    )
    (notice,) = told(broker, "agents/architect/inbox")
    assert notice == {
        "id": "trg-trig.jen.log.notify.architect-0-e-1",
        "ts": "2025-10-09T08:53:20.000Z",
        "from": "system/courier",
        "to": "agents/architect/inbox",
        "type": "notify",
        "corr": "c-9",
        "refs": ["T1", "e-1"],
        "tags": ["system"],
        "headers": {"x-courier-hops": 1, "x-courier-rules": "trig.jen.log.notify.architect"},
        "payload": {"title": "Jen posted sprint log", "ref": "e-1"},
    }


def test_a_notice_has_a_title_and_a_reference_of_its_own() -> None:
    broker = Broker(triggers=[rule(do=[{"action": "notify", "to": "told", "payload": {"more": 1}}])])
    enqueue(broker, "s", envelope("a"))
    assert told(broker)[0]["payload"] == {"title": "Notification", "ref": "a", "more": 1}
    assert told(broker)[0]["corr"] == "a"


@pytest.mark.promise("Triggers", "the actions `notify`, `emit`, `route` and `enrich` work")
def test_emit_sends_what_it_says_and_templates_keep_their_types() -> None:
    emit = {"action": "emit", "to": "to/${env.from}", "type": "x.${env.type}", "tags": ["t"]}
    emit |= {"payload": {"n": "${env.payload.n}", "rule": "${rule.id}"}, "headers": {"h": "${env.payload}"}}
    broker = Broker(triggers=[rule(do=[emit])])
    enqueue(broker, "s", envelope("a", **{"from": "jen"}))
    (sent,) = told(broker, "to/jen")
    assert (sent["type"], sent["tags"]) == ("x.note", ["system", "t"])
    assert sent["payload"] == {"n": 1, "rule": "r"}
    assert sent["headers"]["h"] == '{"n":1}'


def test_two_rules_and_two_actions_never_share_an_id() -> None:
    twice = [{"action": "notify", "to": "told"}, {"action": "notify", "to": "told"}]
    broker = Broker(triggers=[rule("r", do=twice), rule("q", do=twice)])
    enqueue(broker, "s", envelope("a"))
    assert [one["id"] for one in told(broker)] == ["trg-r-0-a", "trg-r-1-a", "trg-q-0-a", "trg-q-1-a"]


def test_a_long_id_is_hashed_and_stays_the_same() -> None:
    broker = Broker(triggers=[rule("r" * 120)], limits=Limits(dedup_max=10))
    enqueue(broker, "s", envelope("a" * 200))
    (sent,) = told(broker)
    assert len(sent["id"]) <= 256
    assert sent["refs"] == ["a" * 200]


def test_route_copies_the_envelope_under_its_own_id() -> None:
    broker = Broker(triggers=[rule(do=[{"action": "route", "to": "copy"}])])
    enqueue(broker, "s", envelope("a", headers={"k": 1}, odd=[1]))
    (kept,), (copy,) = told(broker, "s"), told(broker, "copy")
    assert kept["headers"] == {"k": 1}
    assert copy == {**kept, "to": "copy", "headers": {"k": 1, "x-courier-hops": 1, "x-courier-rules": "r"}}


@pytest.mark.promise("Triggers", "the actions `notify`, `emit`, `route` and `enrich` work")
def test_route_moves_an_envelope_before_anybody_gets_it() -> None:
    broker = Broker(triggers=[rule(do=[{"action": "route", "to": "there", "mode": "move"}])])
    consumer = broker.subscribe("s", credit=5)
    enqueue(broker, "s", envelope("a"))
    assert consumer.heard() == []
    assert [one["id"] for one in told(broker, "there")] == ["a"]
    assert (broker.counts("s")["q.in"], broker.counts("s")["q.moved"]) == (1, 1)
    (again,) = enqueue(broker, "s", envelope("a"))
    assert again["result"]["duplicate"]


def test_a_move_that_finds_no_room_leaves_the_envelope_where_it_is() -> None:
    moving = rule(do=[{"action": "route", "to": "there", "mode": "move"}])
    broker = Broker(triggers=[moving], policies={"there": Policy(max_depth=1)})
    enqueue(broker, "s", envelope("a"), envelope("b"))
    assert [one["id"] for one in told(broker, "s")] == ["b"]
    assert counts(broker)["fail"] == 1


@pytest.mark.promise("Triggers", "the actions `notify`, `emit`, `route` and `enrich` work")
def test_enrich_is_seen_by_consumers_and_by_the_rules_that_follow() -> None:
    enrich = {"action": "enrich", "headers": {"x-seen": "${now}"}, "payload": {"by": "${env.from}"}}
    broker = Broker(
        triggers=[
            rule("add", do=[enrich]),
            rule("tell", when={"headers": {"x-seen": "2025-10-09T08:53:20.000Z"}}),
        ]
    )
    enqueue(broker, "s", envelope("a", **{"from": "jen"}))
    (seen,) = told(broker, "s")
    assert seen["payload"] == {"n": 1, "enriched": {"by": "jen"}}
    assert seen["headers"] == {"x-seen": "2025-10-09T08:53:20.000Z", "x-courier-enriched": "add"}
    assert len(told(broker)) == 1


def test_an_enriched_envelope_that_is_sent_again_is_a_duplicate_also_later_and_when_settled() -> None:
    enrich = {"action": "enrich", "headers": {"x-seen": "${now}"}}
    broker = Broker(triggers=[rule(do=[enrich])])
    consumer = broker.subscribe("s", credit=1)
    enqueue(broker, "s", envelope("a"))
    broker.advance(1_000)
    assert enqueue(broker, "s", envelope("a"))[0]["result"]["duplicate"]
    assert enqueue(broker, "s", envelope("a", odd=1))[0]["code"] == "IdConflict"
    consumer.say(ack="a")
    broker.run()
    assert enqueue(broker, "s", envelope("a"))[0]["result"]["duplicate"]


def test_enrich_leaves_a_payload_alone_that_is_no_object() -> None:
    broker = Broker(triggers=[rule(do=[{"action": "enrich", "payload": {"a": 1}}])])
    enqueue(broker, "s", envelope("a", payload=[1]))
    assert told(broker, "s")[0]["payload"] == [1]
    assert counts(broker) == {"fail": 1}


# When it sends


@pytest.mark.promise("The document's testing strategy", "Unit: trigger predicate and action")
@pytest.mark.promise("Triggers", "predicates select envelopes")
@pytest.mark.parametrize(
    ("when", "fits"),
    [
        ({"to": "agents/Jen/inbox"}, True),
        ({"to": "agents/*"}, True),
        ({"to": ["x", "agents/*/inbox"]}, True),
        ({"to": "agents/Jen"}, False),
        ({"from": "jen"}, True),
        ({"from": "j*n"}, True),
        ({"from": ["a", "b"]}, False),
        ({"type": "note"}, True),
        ({"type": "no*"}, True),
        ({"type": "Note"}, False),
        ({"tags": "a"}, True),
        ({"tags": ["a", "b"]}, True),
        ({"tags": ["a", "c"]}, False),
        ({"tagsAny": ["c", "b"]}, True),
        ({"tagsAny": ["c"]}, False),
        ({"headers": {"priority": "high"}}, True),
        ({"headers": {"priority": "high", "n": 1}}, True),
        ({"headers": {"n": "1"}}, False),
        ({"headers": {"n": True}}, False),
        ({"headers": {"absent": "x"}}, False),
        ({"type": "note", "from": "somebody"}, False),
    ],
)
def test_every_condition_must_hold(when: dict[str, Any], fits: bool) -> None:
    broker = Broker(triggers=[rule(when=when)])
    one = envelope("a", tags=["a", "b"], headers={"priority": "high", "n": 1}, **{"from": "jen"})
    enqueue(broker, "agents/Jen/inbox", one)
    assert len(told(broker)) == fits


@pytest.mark.promise("Triggers", "predicates select envelopes")
def test_an_absent_field_never_fits() -> None:
    whens = [{"from": "*"}, {"tags": "a"}, {"tagsAny": ["a"]}, {"headers": {"a": "b"}}]
    broker = Broker(triggers=[rule(f"r{number}", when=when) for number, when in enumerate(whens)])
    enqueue(broker, "s", envelope("a"))
    assert told(broker) == []


def test_rules_run_in_their_order_also_when_found_by_type() -> None:
    broker = Broker(
        triggers=[
            rule("a", when={"type": "no*e"}),
            rule("b", when={"type": "note"}),
            rule("c", when={"to": "s"}),
        ]
    )
    enqueue(broker, "s", envelope("e"))
    assert [one["id"] for one in told(broker)] == ["trg-a-0-e", "trg-b-0-e", "trg-c-0-e"]


def test_a_duplicate_sets_nothing_off() -> None:
    broker = Broker(triggers=[rule()])
    enqueue(broker, "s", envelope("a"), envelope("a"))
    enqueue(broker, "s", envelope("a"))
    assert len(told(broker)) == 1


@pytest.mark.promise("Triggers", "the hooks `on_insert`, `on_ack`, `on_timeout` and `on_dead` fire")
def test_hooks_fire_on_ack_on_timeout_and_on_death() -> None:
    hooks = ("on_ack", "on_timeout", "on_dead")
    broker = Broker(
        Policy(lease_us=1_000_000),
        triggers=[rule(hook, hook=hook, when={"to": "s"}, do=[{"action": "notify", "to": hook}]) for hook in hooks],
    )
    consumer = broker.subscribe("s", credit=10)
    enqueue(broker, "s", envelope("a"), envelope("b"), envelope("c"))
    consumer.say(ack="a")
    consumer.say(term="b", reason="never")
    broker.run()
    assert [one["refs"] for one in told(broker, "on_ack")] == [["a"]]
    assert [one["refs"] for one in told(broker, "on_dead")] == [["b"]]
    assert told(broker, "on_timeout") == []
    broker.advance(2_500)
    assert [one["id"] for one in told(broker, "on_timeout")] == [
        "trg-on_timeout-0-c-1",
        "trg-on_timeout-0-c-2",
    ]


def test_a_rule_on_death_knows_why() -> None:
    emit = {"action": "emit", "to": "told", "type": "t", "payload": "${env.headers.x-courier.lastError}"}
    broker = Broker(triggers=[rule(hook="on_dead", do=[emit])])
    consumer = broker.subscribe("s", credit=1)
    enqueue(broker, "s", envelope("a"))
    consumer.say(term="a", reason="no such order")
    broker.run()
    assert told(broker)[0]["payload"] == "no such order"


@pytest.mark.promise("Triggers", "the hooks `on_insert`, `on_ack`, `on_timeout` and `on_dead` fire")
def test_dead_letters_fire_no_rules_of_insertion_and_nor_does_their_way_home() -> None:
    broker = Broker(triggers=[rule(when={"to": "*"})])
    consumer = broker.subscribe("s", credit=1)
    enqueue(broker, "s", envelope("a"))
    consumer.say(term="a")
    broker.run()
    assert [one["id"] for one in told(broker, "dlq/s")] == ["a"]
    operator = broker.control(OPERATOR)
    operator.say(type="redrive", stream="s", reqId=1)
    broker.run()
    assert len(told(broker)) == 1


# Cooldowns


def cooled(**limits: Any) -> Broker:
    emit = {"action": "emit", "to": "told", "type": "t", "payload": {"id": "${env.id}", "n": "${suppressed}"}}
    return Broker(triggers=[rule(do=[emit], limits={"cooldownMs": 1_000, **limits})])


@pytest.mark.promise("Triggers", "a cooldown suppresses, counts, and sends a summary")
def test_a_cooldown_suppresses_and_counts_and_begins_with_the_firing() -> None:
    broker = cooled()
    enqueue(broker, "s", envelope("a"), envelope("b"))
    broker.advance(999)
    enqueue(broker, "s", envelope("c"))
    broker.advance(1)
    enqueue(broker, "s", envelope("d"))
    assert [one["payload"]["id"] for one in told(broker)] == ["a", "d"]
    assert counts(broker) == {"run": 2, "emitted": 2, "suppressed": 2}


@pytest.mark.promise("Triggers", "a cooldown suppresses, counts, and sends a summary")
def test_a_summary_follows_a_cooldown_that_suppressed_something() -> None:
    broker = cooled(trailing=True)
    enqueue(broker, "s", envelope("a"))
    broker.advance(5_000)
    enqueue(broker, "s", envelope("b"), envelope("c"), envelope("d"))
    broker.advance(5_000)
    assert [one["payload"] for one in told(broker)] == [
        {"id": "a", "n": 0},
        {"id": "b", "n": 0},
        {"id": "d", "n": 2},
    ]
    assert told(broker)[-1]["id"] == "trg-r-0-d-summary"


def test_a_cooldown_may_be_counted_by_what_the_envelope_says() -> None:
    broker = cooled(cooldownKey="${env.from}")
    senders = ["x", "y", "x"]
    enqueue(broker, "s", *[envelope(f"e{n}", **{"from": who}) for n, who in enumerate(senders)])
    assert [one["payload"]["id"] for one in told(broker)] == ["e0", "e1"]


def test_the_oldest_cooldown_goes_when_there_are_too_many() -> None:
    broker = Broker(
        triggers=[rule(limits={"cooldownMs": 1_000, "cooldownKey": "${env.id}"})],
        limits=Limits(cooldowns_max=2),
    )
    enqueue(broker, "s", *[envelope(f"e{n}") for n in range(5)])
    assert len(broker.machine.triggers.cooling) == 2
    assert broker.machine.totals.cooldowns_evicted == 3


# Guards


@pytest.mark.promise("Triggers", "triggers cannot form cycles or avalanches")
def test_one_rule_that_matches_its_own_notices_sends_one() -> None:
    broker = Broker(triggers=[rule(when={"type": ["note", "notify"]})])
    enqueue(broker, "s", envelope("a"))
    assert len(told(broker)) == 1
    assert counts(broker) == {"run": 1, "emitted": 1, "looped": 1}


@pytest.mark.promise("Triggers", "triggers cannot form cycles or avalanches")
def test_no_chain_of_rules_is_longer_than_the_limit() -> None:
    """Each rule is set off by the one before it, so only the number of hops ends it."""
    chain = [
        rule(
            f"r{n}",
            when={"type": f"t{n}"},
            do=[{"action": "emit", "to": "told", "type": f"t{n + 1}", "payload": n}],
        )
        for n in range(20)
    ]
    broker = Broker(triggers=chain)
    enqueue(broker, "s", envelope("a", type="t0"))
    assert [one["headers"]["x-courier-hops"] for one in told(broker)] == list(range(1, 9))
    assert counts(broker, "r8") == {"hops": 1}


@pytest.mark.promise("Triggers", "triggers cannot form cycles or avalanches")
def test_one_envelope_causes_no_more_than_the_limit() -> None:
    """Twenty rules that all match all their notices would make more than there are atoms."""
    everything = [rule(f"r{n}", when={"to": "*"}) for n in range(20)]
    broker = Broker(triggers=everything, limits=Limits(trigger_fanout_max=50))
    enqueue(broker, "s", envelope("a"))
    assert len(told(broker)) == 50


def test_headers_that_count_hops_are_believed_only_as_far_as_they_make_sense() -> None:
    broker = Broker(triggers=[rule()])
    odd: list[Any] = [-5, "many", 1.5, True, None]
    enqueue(broker, "s", *[envelope(f"e{n}", headers={"x-courier-hops": hops}) for n, hops in enumerate(odd)])
    assert [one["headers"]["x-courier-hops"] for one in told(broker)] == [1] * len(odd)
    enqueue(broker, "s", envelope("far", headers={"x-courier-hops": 8}))
    assert counts(broker)["hops"] == 1


@pytest.mark.promise("Triggers", "a failing rule affects no other rule and is paused")
def test_a_failing_rule_affects_no_other_rule_and_is_paused() -> None:
    broker = Broker(
        triggers=[rule(), rule("q", do=[{"action": "notify", "to": "other"}])],
        policies={"told": Policy(max_depth=1)},
    )
    answers = enqueue(broker, "s", *[envelope(f"e{n}") for n in range(10)])
    assert [one["type"] for one in answers] == ["ok"] * 10
    assert len(told(broker, "other")) == 10
    assert counts(broker) == {"run": 6, "emitted": 1, "fail": 5, "blocked": 4}
    broker.advance(30_001)
    purge_all(broker.machine, broker.now, broker.machine.channels["told"])
    enqueue(broker, "s", envelope("later"))
    assert counts(broker)["emitted"] == 2


def test_a_success_closes_the_row_of_failures() -> None:
    broker = Broker(
        triggers=[rule(strict=True, do=[{"action": "emit", "to": "told", "type": "t", "payload": "${env.payload.x}"}])]
    )
    for n in range(12):
        payload = {"x": n} if n % 4 == 3 else {}
        enqueue(broker, "s", envelope(f"e{n}", payload=payload))
    assert counts(broker) == {"run": 12, "emitted": 3, "fail": 9}


def test_a_target_whose_name_a_template_makes_is_checked() -> None:
    broker = Broker(triggers=[rule(do=[{"action": "notify", "to": "x/${env.payload}"}])])
    enqueue(
        broker,
        "s",
        envelope("a", payload="bad:name"),
        envelope("b", payload="*"),
        envelope("c", payload="ok"),
    )
    assert [one["refs"] for one in told(broker, "x/ok")] == [["c"]]
    assert counts(broker)["fail"] == 2


def test_an_envelope_too_large_to_send_is_a_failure() -> None:
    emit = {"action": "emit", "to": "told", "type": "t", "payload": ["${env.payload}"] * 8}
    broker = Broker(triggers=[rule(do=[emit])], limits=Limits(envelope_max=1_000))
    enqueue(broker, "s", envelope("a", payload="x" * 500))
    assert told(broker) == []
    assert counts(broker) == {"run": 1, "fail": 1}


# The journal


@pytest.mark.promise("Triggers", "an envelope and its triggered envelopes are one commit, even across crashes")
def test_an_envelope_and_what_it_triggers_are_one_append() -> None:
    journal = HandJournal()
    broker = Broker(triggers=[rule(), rule("q", when={"type": "notify"})], journal=journal)
    producer = broker.control()
    producer.say(type="enqueue", to="s", env=envelope("a"))
    broker.run()
    ((facts, _),) = journal.waiting
    assert [fact.id for fact in facts if hasattr(fact, "body")] == ["a", "trg-r-0-a", "trg-q-0-trg-r-0-a"]
    assert [(fact.peer, fact.reason) for fact in facts if isinstance(fact, Fired)] == [
        ("r", "fired"),
        ("q", "fired"),
    ]
    assert told(broker) == []
    journal.commit()
    broker.run()
    assert len(told(broker)) == 2


@pytest.mark.promise("Triggers", "a rejected commit undoes the firing")
@pytest.mark.parametrize("refuse", [HandJournal.refuse, lambda journal: journal.commit("the disk is full")])
def test_a_refused_commit_takes_everything_back_and_the_cooldown_with_it(refuse: Any) -> None:
    journal = HandJournal()
    broker = Broker(triggers=[rule(limits={"cooldownMs": 60_000})], journal=journal)
    producer = broker.control()
    heard = []
    for _ in range(2):
        heard += producer.say(type="enqueue", to="s", env=envelope("a"))
        broker.run()
        if not broker.machine.triggers.rules["r"].activity.undone:
            refuse(journal)
            broker.run()
    heard += producer.heard()
    assert heard[0]["code"] == "JournalUnavailable"
    journal.commit()
    broker.run()
    assert [one["refs"] for one in told(broker)] == [["a"]]
    assert counts(broker) == {"run": 2, "emitted": 2, "undone": 1}


def test_matches_suppressed_by_a_rejected_firing_are_reported() -> None:
    journal = HandJournal()
    broker = Broker(triggers=[rule(limits={"cooldownMs": 60_000})], journal=journal)
    producer = broker.control()
    for id_ in ("a", "b"):
        producer.say(type="enqueue", to="s", env=envelope(id_))
        broker.run()
    journal.refuse()
    journal.commit()
    broker.advance(1)
    journal.commit()
    broker.run()
    assert [one["refs"] for one in told(broker)] == [["b"]]


def test_an_ack_that_is_kept_without_its_notice_counts_as_a_failure() -> None:
    journal = HandJournal()
    broker = Broker(triggers=[rule(hook="on_ack")], journal=journal)
    filled_by = broker.control()
    consumer = broker.subscribe("s", credit=1)
    filled_by.say(type="enqueue", to="s", env=envelope("a"))
    broker.run()
    journal.commit()
    broker.run()
    consumer.say(ack="a")
    broker.run()
    journal.commit("the disk is full")
    broker.run()
    assert broker.counts("s")["q.ack"] == 1
    assert counts(broker)["fail"] == 1


@pytest.mark.promise("Spark: pipeline", "a `trigger` row names the row that caused it and what the journal kept")
def test_a_journal_short_of_space_keeps_no_row_of_a_firing_whose_notice_it_refused() -> None:
    """The ack stays, its notice goes, and so does the row that says it was sent; a row that it failed follows."""
    journal = HandJournal()
    broker = Broker(triggers=[rule(hook="on_ack")], journal=journal)
    consumer = broker.subscribe("s", credit=1)
    broker.control().say(type="enqueue", to="s", env=envelope("a"))
    broker.run()
    journal.commit()
    broker.run()
    consumer.say(ack="a")
    broker.run()
    [(facts, _)] = journal.waiting
    assert [getattr(fact, "event", "enqueue") for fact in facts if not is_fresh(fact)] == ["ack"]
    journal.commit("the disk is full")
    broker.run()
    [([failed], _)] = journal.waiting
    assert isinstance(failed, Fired) and not is_fresh(failed)
    assert (failed.record.id, failed.peer, failed.reason) == ("a", "r", "failed")
    assert msgspec.json.decode(failed.meta or "") == {
        "hook": "on_ack",
        "failures": ["the journal refused it"],
    }


def test_a_move_that_is_refused_leaves_nothing_behind() -> None:
    journal = HandJournal()
    broker = Broker(triggers=[rule(do=[{"action": "route", "to": "there", "mode": "move"}])], journal=journal)
    before = broker.picture()
    producer = broker.control()
    producer.say(type="enqueue", to="s", env=envelope("a"))
    broker.run()
    journal.refuse()
    broker.run()
    live = {name: rows for name, rows in broker.picture().items() if rows[0] or rows[1]}
    assert live == before == {}
    assert (broker.machine.bytes, broker.machine.pending_bytes, broker.machine.ids) == (0, 0, 0)


# Rules at run time


def give(broker: Broker, **definition: Any) -> Any:
    trigger = msgspec.convert(rule(**definition), Trigger)
    return admin.put(broker.machine, broker.now, OPERATOR, trigger.id, trigger)


def test_a_rule_given_at_run_time_stands_in_for_that_of_the_config_until_it_is_taken_back() -> None:
    broker = Broker(triggers=[rule()])
    assert isinstance(give(broker, enabled=False), Result)
    broker.run()
    enqueue(broker, "s", envelope("a"))
    assert told(broker) == []
    admin.remove(broker.machine, broker.now, OPERATOR, "r")
    broker.run()
    enqueue(broker, "s", envelope("b"))
    assert [one["refs"] for one in told(broker)] == [["b"]]
    refusal = admin.remove(broker.machine, broker.now, OPERATOR, "r")
    assert refusal.code == "TriggerInConfig"


def test_a_change_that_the_journal_refuses_never_was() -> None:
    journal = HandJournal()
    broker = Broker(journal=journal)
    give(broker)
    broker.runtime.when(broker.machine.commit_log.gate, False, lambda _: None)
    broker.run()
    journal.refuse()
    broker.run()
    assert broker.machine.triggers.rules == {}
    assert broker.machine.triggers.texts == {}


def test_a_reload_keeps_the_counts_of_rules_that_stay_as_they_were() -> None:
    from penstock.server.engine.machines import install_rules

    broker = Broker(triggers=[rule("r"), rule("q")])
    enqueue(broker, "s", envelope("a"))
    changed = rule("q", when={"type": "other"})
    install_rules(broker.machine, [msgspec.convert(one, Trigger) for one in (rule("r"), changed)])
    assert counts(broker, "r")["run"] == 1
    assert counts(broker, "q") == {}


def test_only_who_administers_the_server_sees_and_changes_rules() -> None:
    broker = Broker(triggers=[rule()])
    trigger = msgspec.convert(rule("q"), Trigger)
    for refusal in (
        admin.listed(broker.machine, broker.now, ANONYMOUS),
        admin.explained(broker.machine, broker.now, ANONYMOUS, "r"),
        admin.put(broker.machine, broker.now, ANONYMOUS, "q", trigger),
        admin.remove(broker.machine, broker.now, ANONYMOUS, "r"),
    ):
        assert refusal.code == "Forbidden"
    assert list(broker.machine.triggers.rules) == ["r"]


@pytest.mark.promise("Triggers", "explain gives the reasons, and try has no effect")
def test_explain_says_what_happened_and_what_keeps_a_rule_quiet() -> None:
    broker = Broker(triggers=[rule(limits={"cooldownMs": 1_000})])
    outcome = admin.explained(broker.machine, broker.now, OPERATOR, "r")
    assert [one["code"] for one in outcome.body["reasons"]] == ["no_match"]
    enqueue(broker, "s", envelope("a"), envelope("b"))
    body = admin.explained(broker.machine, broker.now, OPERATOR, "r").body
    assert body["state"] == "ready"
    assert body["cooling"] == [{"key": "", "endsInMs": 1_000, "suppressed": 1}]
    assert body["recent"][0]["sent"] == [{"to": "told", "id": "trg-r-0-a"}]
    assert [one["code"] for one in body["reasons"]] == ["suppressed"]


@pytest.mark.promise("Triggers", "explain gives the reasons, and try has no effect")
def test_trying_an_envelope_says_who_would_do_what_and_does_nothing() -> None:
    broker = Broker(triggers=[rule(), rule("q", when={"type": "other", "tags": ["x"]})])
    request = admin.TryRequest("s", msgspec.Raw(msgspec.json.encode(envelope("a"))))
    rows = admin.tried(broker.machine, broker.now, OPERATOR, request).body["triggers"]
    assert [row["fits"] for row in rows] == [True, False]
    assert rows[0]["sends"][0]["to"] == "told"
    assert rows[1]["because"] == ["the type `note` does not fit `type`", "it lacks the tag `x`"]
    assert broker.machine.channels == {}


@pytest.mark.parametrize(
    ("definition", "where"),
    [
        (rule(when={}), "when"),
        (rule("a b"), "id"),
        (rule("a,b"), "id"),
        (rule(do=[{"action": "notify", "to": "a:b"}]), "do.0.to"),
        (rule(do=[{"action": "notify", "to": "${oops}"}]), "do.0.to"),
        (rule(do=[{"action": "notify", "to": "a", "payload": {"x": ["${"]}}]), "do.0.payload"),
        (
            rule(do=[{"action": "notify", "to": "a", "headers": {"x-courier-hops": 0}}]),
            "do.0.headers.x-courier-hops",
        ),
        (rule(do=[{"action": "route", "to": "a", "mode": "move"}], hook="on_ack"), "do.0.mode"),
        (rule(do=[{"action": "enrich", "headers": {"x-a": 1}}], hook="on_dead"), "do.0.action"),
        (rule(do=[{"action": "enrich", "headers": {"from": "me"}}]), "do.0.headers.from"),
        (rule(do=[{"action": "enrich"}]), "do.0"),
        (rule(do=[{"action": "notify", "to": "a"}] * 17), "do"),
        (rule(limits={"trailing": True}), "limits.trailing"),
        (rule(limits={"cooldownMs": 1, "cooldownKey": "${x}"}), "limits.cooldownKey"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused_with_the_place(definition: dict[str, Any], where: str) -> None:
    refusal = config.parse(definition, Limits())
    assert not isinstance(refusal, Trigger)
    assert (refusal.code, refusal.ref) == ("InvalidRequest", where)


def test_a_queue_that_no_rule_fits_is_filled_as_ever() -> None:
    broker = Broker(triggers=[rule(f"r{n}", when={"type": f"t{n}"}) for n in range(100)])
    filled(broker, "s", "a", "b")
    assert [one["id"] for one in told(broker, "s")] == ["a", "b"]


SCALARS = st.sampled_from(["a", "b", "1", 1, 1.0, True, None])
NAMES = st.sampled_from(["a", "b", "c"])


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "tags": st.lists(NAMES, min_size=1),
            "tagsAny": st.lists(NAMES, min_size=1),
            "headers": st.dictionaries(NAMES, SCALARS.filter(lambda value: value is not None)),
        },
    ).filter(bool),
    st.lists(NAMES),
    st.dictionaries(NAMES, SCALARS),
)
def test_what_fits_and_the_words_for_what_does_not_agree(when: Any, tags: list[str], headers: Any) -> None:
    script = TriggerScript(msgspec.convert(rule(when=when), Trigger), Limits())
    source = TriggerEnvelope("s", msgspec.json.encode(envelope("a", tags=tags, headers=headers)))
    assert script.fits(source) == (list(script.mismatches(source)) == [])


# What a hostile rule or envelope costs


def test_copies_of_a_large_payload_are_counted_before_they_are_written() -> None:
    """300 copies of 900 KB would be 270 MB: the rule fails at once, and no such text is made."""
    do = [{"action": "emit", "to": "told", "type": "copied", "payload": ["${env.payload}"] * 300}]
    broker = Broker(triggers=[rule(do=do)])
    enqueue(broker, "notes", envelope("small", type="note", payload="x"))
    tracemalloc.start()
    try:
        enqueue(broker, "notes", envelope("large", type="note", payload={"text": "x" * 900_000}))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [one["payload"] for one in told(broker)] == [["x"] * 300]
    assert counts(broker)["fail"] == 1 and peak < 50_000_000


def test_an_enrichment_with_copies_of_a_large_payload_fails_and_its_envelope_arrives() -> None:
    do = [{"action": "enrich", "payload": {"copies": ["${env.payload}"] * 300}}]
    broker = Broker(triggers=[rule(do=do)])
    tracemalloc.start()
    try:
        (answer,) = enqueue(broker, "notes", envelope("large", type="note", payload={"text": "x" * 900_000}))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert answer["type"] != "error" and counts(broker)["fail"] == 1 and peak < 50_000_000
    assert "enriched" not in told(broker, "notes")[0]["payload"]


def test_a_rule_of_megabytes_is_refused() -> None:
    broker = Broker()
    trigger = msgspec.convert(
        rule(do=[{"action": "emit", "to": "t", "type": "t", "payload": [[]] * 50_000}]), type=Trigger
    )
    refusal = config.refusal_of(trigger, broker.machine.limits)
    assert refusal is not None and "65536 bytes" in refusal.message


@pytest.mark.parametrize("field", ["to", "type", "cooldownKey"])
def test_a_name_of_many_placeholders_is_refused(field: str) -> None:
    action = {"action": "emit", "to": "t", "type": "t", "payload": 1}
    name, limits = "${env.payload}" * 17, {}
    if field == "cooldownKey":
        limits = {field: name, "cooldownMs": 1}
    else:
        action[field] = name
    trigger = msgspec.convert(rule(do=[action], limits=limits), type=Trigger)
    refusal = config.refusal_of(trigger, Limits())
    assert refusal is not None and "more than 16 placeholders" in refusal.message
