"""What an input brings about runs in slices, in order, and is one commit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from penstock.core.queue import dead_letters
from penstock.core.queue.policy import Policy
from penstock.core.steps import STEP_COST
from tests.dialects.courier.talking import Broker, Frame, HandJournal, Peer, envelope


def rule(hook: str, to: str = "told", actions: int = 1, **more: Any) -> Frame:
    do = [{"action": "notify", "to": f"{to}{number or ''}"} for number in range(actions)]
    return {"id": "r", "hook": hook, "when": {"to": "q"}, "do": do, **more}


def array(*ids: str) -> bytes:
    frame = {"type": "enqueue", "reqId": 1, "to": "q", "env": [envelope(id_) for id_ in ids]}
    return msgspec.json.encode(frame) + b"\n"


def settles(kind: str, ids: list[str]) -> bytes:
    return b"".join(msgspec.json.encode({"type": kind, "id": id_, "reqId": id_}) + b"\n" for id_ in ids)


def seen(broker: Broker, stream: str) -> list[str]:
    """The sources of the notices that wait in a stream."""
    channel = broker.machine.channels.get(stream)
    return [] if channel is None else [msgspec.json.decode(record.body)["payload"]["ref"] for record in channel.ready]


def slices(broker: Broker) -> list[int]:
    """Run until nothing is due; the cost of each slice of the backlog."""
    found: list[int] = []
    apply = broker.machine.work_off

    def counted(now: Any, carry_out: Callable[[Any], None]) -> None:
        apply(now, carry_out)
        found.append(broker.machine.cost)

    broker.machine.work_off = counted  # type: ignore[method-assign]
    broker.run()
    return found


def leased(broker: Broker, count: int) -> tuple[Peer, list[str]]:
    ids = [f"e{number:04}" for number in range(count)]
    broker.control().send(array(*ids))
    broker.run()
    peer = broker.control()
    peer.say(type_="subscribe", stream="q", credit=count)
    return peer, ids


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> int:
    """A turn in which little fits."""
    monkeypatch.setattr("penstock.core.queue.state.STEP_COST", 50)
    return 50


@pytest.mark.promise("Triggers", "the rules of a large array run in slices, and are visible with it, in its order")
def test_the_rules_of_an_array_run_in_slices_and_are_visible_at_once(narrow: int) -> None:
    journal = HandJournal()
    broker = Broker(triggers=[rule("on_insert")], journal=journal)
    ids = [f"e{number:04}" for number in range(200)]
    peer = broker.control()
    peer.send(array(*ids))
    costs = slices(broker)
    assert len(costs) > 10 and max(costs) < 2 * narrow
    assert journal.appended == [3 * len(ids)], "envelopes, what rules sent, and their firings are one commit"
    assert seen(broker, "told") == [] == peer.heard()
    journal.commit()
    broker.run()
    assert seen(broker, "told") == ids and peer.heard()[0]["type"] == "ok"


def test_what_does_not_fit_is_refused_with_its_source(narrow: int) -> None:
    journal = HandJournal()
    broker = Broker(triggers=[rule("on_insert")], journal=journal)
    peer = broker.control()
    peer.send(array(*(f"e{number}" for number in range(100))))
    broker.run()
    journal.refuse()
    broker.run()
    assert peer.heard()[0]["code"] == "JournalUnavailable"
    assert not broker.machine.channels["told"].live and not broker.machine.channels["q"].live


def test_work_that_fails_by_a_bug_is_dropped_and_the_rest_is_committed(
    narrow: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []
    accept = dead_letters.accept

    def broken(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 60:
            raise RuntimeError("a bug")
        return accept(*args)

    monkeypatch.setattr(dead_letters, "accept", broken)
    broker = Broker(triggers=[rule("on_insert")])
    peer, other = broker.control(), broker.control()
    peer.send(array(*(f"e{number:04}" for number in range(200))))
    broker.run()
    assert len(seen(broker, "told")) == 199 and peer.heard()[0]["type"] == "ok"
    other.send(array("later"))
    broker.run()
    assert other.heard()[0]["type"] == "ok", "commits go on"


@pytest.mark.parametrize("cost", [5, 50, 120, 301, 500])
def test_chains_of_rules_keep_the_order_of_their_causes(cost: int) -> None:
    chained = rule("on_insert", "second", id="s", when={"to": "told*"}, actions=2)
    broker = Broker(triggers=[rule("on_insert", actions=3), chained])
    broker.machine.step_cost = cost
    ids = [f"e{number:04}" for number in range(60)]
    broker.control().send(array(*ids))
    assert len(slices(broker)) > 1
    for stream in ("told", "told2"):
        assert seen(broker, stream) == ids
    for stream, source in [("second", "told"), ("second1", "told2")]:
        found = [ref for ref in seen(broker, stream) if ref in broker.machine.channels[source].live]
        assert found == list(broker.machine.channels[source].live)


@pytest.mark.parametrize(("hook", "op", "dead"), [("on_ack", "ack", 0), ("on_dead", "term", 100)])
def test_settles_that_fire_rules_are_confirmed_with_what_they_bring_about(
    narrow: int, hook: str, op: str, dead: int
) -> None:
    journal = HandJournal()
    broker = Broker(triggers=[rule(hook, actions=3)], journal=journal)
    broker.control().send(array(*(ids := [f"e{number:04}" for number in range(100)])))
    broker.run()
    journal.commit()
    peer = broker.control()
    peer.say(type_="subscribe", stream="q", credit=len(ids))
    before = len(journal.appended)
    peer.send(settles(op, ids))
    costs = slices(broker)
    assert len(costs) > 10 and max(costs) < 2 * narrow
    assert len(journal.appended) == before + 1 and peer.heard() == []
    journal.commit()
    broker.run()
    assert [frame["type"] for frame in peer.heard()] == ["ok"] * len(ids)
    assert seen(broker, "told") == seen(broker, "told2") == ids
    assert dead == (len(broker.machine.channels["dlq/q"].ready) if dead else 0)


def test_one_envelope_with_a_large_fan_out_takes_several_turns(narrow: int) -> None:
    broker = Broker(triggers=[rule("on_insert", actions=16)])
    broker.control().send(array("e"))
    assert len(slices(broker)) > 5
    assert all(seen(broker, f"told{number or ''}") == ["e"] for number in range(16))
    assert broker.machine.triggers.rules["r"].activity.run == 1
    assert len(broker.machine.triggers.rules["r"].recent[-1]["sent"]) == 16


def test_rules_that_do_not_match_count_too() -> None:
    rules = [{**rule("on_insert"), "id": f"r{n}", "when": {"to": "q", "tags": "x"}} for n in range(200)]
    broker = Broker(triggers=rules)
    broker.control().send(array(*(f"e{n}" for n in range(400))))
    costs = slices(broker)
    assert len(costs) + 1 >= 400 * 200 / 8 / STEP_COST and max(costs) < 2 * STEP_COST


def test_leases_of_a_lost_connection_go_back_in_slices_and_keep_their_order(narrow: int) -> None:
    broker = Broker(Policy(redelivery="head"))
    peer, ids = leased(broker, 300)
    peer.connection.lost()
    assert broker.machine.channels["q"].leased == 300 - narrow
    assert len(slices(broker)) > 4
    assert [record.id for record in broker.machine.channels["q"].ready] == ids


def test_an_envelope_that_is_settled_before_its_lease_goes_back_stays_settled(narrow: int) -> None:
    broker = Broker()
    peer, ids = leased(broker, 200)
    other = broker.control()
    peer.send({"type": "unsubscribe", "subId": next(iter(broker.machine.consumers.values())).label})
    assert broker.machine.channels["q"].leased, "the rest waits"
    other.send({"type": "settle", "id": ids[0], "op": "ack", "stream": "q", "reqId": 1})
    broker.run()
    assert other.heard()[0]["type"] == "ok"
    assert [record.id for record in broker.machine.channels["q"].ready] == ids[1:]


def test_requests_during_a_backlog_are_in_the_same_commit_and_their_connection_waits(narrow: int) -> None:
    journal = HandJournal()
    broker = Broker(triggers=[rule("on_insert")], journal=journal)
    other = broker.control()
    broker.control().send(array(*(f"e{number}" for number in range(100))))
    other.send({"type": "enqueue", "reqId": 2, "to": "else", "env": envelope("x")})
    broker.run()
    assert journal.appended == [301] and other.wire.holds == [True, False]
    journal.commit()
    broker.run()
    assert other.heard()[0]["result"]["id"] == "x"


def test_the_steps_of_a_request_are_commits_of_their_own(narrow: int) -> None:
    journal = HandJournal()
    broker = Broker(journal=journal)
    operator = broker.control()
    frame = {"type": "enqueue", "reqId": 1, "to": "dlq/q", "env": [envelope(f"e{n}") for n in range(2 * STEP_COST)]}
    operator.send(msgspec.json.encode(frame) + b"\n")
    broker.run()
    journal.commit()
    broker.run()
    operator.say(type_="redrive", stream="q", max=10_000, reqId=2)
    while journal.waiting:
        journal.commit()
        broker.run()
    assert operator.heard()[-1]["result"]["moved"] == 2 * STEP_COST and len(journal.appended) > 2
    assert len(broker.machine.channels["q"].ready) == 2 * STEP_COST
