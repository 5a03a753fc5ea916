"""`POST /v1/redrive` and `POST /v1/purge`: scopes and results."""

from __future__ import annotations

import pytest

from penstock.core.clock import Now
from penstock.core.errors import Refusal
from penstock.core.records import Record
from penstock.core.scopes import ANONYMOUS, OPERATOR, Principal, require
from penstock.core.steps import STEP_COST, Steps
from penstock.dialects.courier.operations.outcomes import Outcome
from penstock.dialects.courier.operations.redrive_and_purge import (
    PURGE_STEP,
    DropRequest,
    RedriveRequest,
    StreamRequest,
    drop_steps,
    purge_steps,
    redrive,
    redrive_steps,
)
from tests.core.driving import purge_all
from tests.dialects.courier.operations.operation_results import code, only, value
from tests.dialects.courier.talking import Broker, envelope, filled


def purge(broker: Broker, who: Principal, request: StreamRequest) -> Outcome:
    """All steps of a purge at once."""
    return Steps(purge_steps(broker.machine, broker.now, who, request)).all(broker.now)


def drop(broker: Broker, who: Principal, request: DropRequest) -> Outcome:
    return Steps(drop_steps(broker.machine, who, request)).all(broker.now)


class TestMoving:
    def dead(self) -> Broker:
        broker = Broker()
        peer = broker.control()
        peer.say(type_="enqueue", to="a", env=envelope("1"))
        peer.say(type_="subscribe", stream="a", credit=1)
        peer.say(type_="term", id="1")
        peer.say(type_="unsubscribe")
        return broker

    def test_redrive_counts_when_done(self) -> None:
        broker = self.dead()
        outcome = redrive(broker.machine, broker.now, ANONYMOUS, RedriveRequest("a"))
        done = value(broker, outcome)
        assert (done["moved"], done["left"]) == (1, 0)

    @pytest.mark.parametrize("scope", ["streams:dlq/a:subscribe", "streams:a:enqueue"])
    def test_redrive_needs_both_rights(self, scope: str) -> None:
        broker = self.dead()
        assert code(redrive(broker.machine, broker.now, only(scope), RedriveRequest("a"))) == "Forbidden"

    def test_purge_is_for_administrators(self) -> None:
        broker = self.dead()
        request = StreamRequest("dlq/a")
        assert code(purge(broker, ANONYMOUS, request)) == "Forbidden"
        assert value(broker, purge(broker, OPERATOR, request)) == {"purged": 1}
        nowhere = StreamRequest("nowhere")
        assert code(purge(broker, OPERATOR, nowhere)) == "UnknownStream"

    def test_purge_names_the_stream_as_the_tenant_knows_it(self) -> None:
        tenant = Principal("ops", scopes=require(["streams:*:*"]), tenant="acme")
        refused = purge(self.dead(), tenant, StreamRequest("x"))
        assert isinstance(refused, Refusal) and refused.code == "UnknownStream"
        assert "`x`" in refused.message and "t/acme" not in f"{refused.message} {refused.ref} {refused.hint}"

    def test_redrive_takes_ids(self) -> None:
        broker = self.dead()
        unknown = RedriveRequest("a", ids=["2"])
        assert code(redrive(broker.machine, broker.now, ANONYMOUS, unknown)) == "UnknownEnvelope"
        done = value(broker, redrive(broker.machine, broker.now, ANONYMOUS, RedriveRequest("a", ids=["1"])))
        assert done == {"moved": 1, "kept": 0, "left": 0}

    def test_drop_is_for_administrators(self) -> None:
        broker = self.dead()
        request = DropRequest("dlq/a", ["1"])
        assert code(drop(broker, ANONYMOUS, request)) == "Forbidden"
        assert value(broker, drop(broker, OPERATOR, request)) == {"dropped": 1}
        nowhere = DropRequest("nowhere", ["1"])
        assert code(drop(broker, OPERATOR, nowhere)) == "UnknownStream"


def many(count: int) -> Broker:
    broker = Broker()
    broker.machine.enqueue(broker.now, "q", [Record(f"e{number}", "t", b"{}") for number in range(count)])
    broker.runtime.schedule_turn()
    broker.run()
    return broker


@pytest.mark.promise("Hold under hostile conditions", "a purge runs in slices and becomes visible at once at its end")
def test_a_purge_runs_in_slices_and_is_seen_at_once_at_its_end() -> None:
    broker = many(2 * PURGE_STEP + 5)
    channel = broker.machine.channels["q"]
    work = Steps(purge_steps(broker.machine, broker.now, OPERATOR, StreamRequest("q")))
    for _ in range(3):
        assert not work.step(broker.now)
        assert len(channel.ready) < 2 * PURGE_STEP
        assert broker.counts("q")["q.depth"] == 2 * PURGE_STEP + 5, "none is dropped before all are held"
        assert (broker.counts("q")["q.delayed"], broker.counts("q")["q.purged"]) == (0, 0)
        assert (channel.balance, channel.ready_order) == (0, None)
    filled(broker, "q", "late")
    assert not work.step(broker.now)
    assert (broker.counts("q")["q.depth"], broker.counts("q")["q.purged"]) == (1, 2 * PURGE_STEP + 5)
    assert len(channel.live) == PURGE_STEP + 6, "the facts of the others follow in the next turns"
    assert not work.step(broker.now) and work.step(broker.now)
    assert value(broker, work.result) == {"purged": 2 * PURGE_STEP + 5}
    assert list(channel.live) == ["late"] and channel.balance == 0


def test_a_purge_leaves_what_came_after_it_when_a_consumer_takes_from_it() -> None:
    broker = many(PURGE_STEP + 5)
    work = Steps(purge_steps(broker.machine, broker.now, OPERATOR, StreamRequest("q")))
    assert not work.step(broker.now)
    filled(broker, "q", "late")
    peer = broker.control()
    peer.say(type_="subscribe", stream="q", credit=2)
    while not work.step(broker.now):
        pass
    assert value(broker, work.result) == {"purged": PURGE_STEP + 3}
    assert [record.id for record in broker.machine.channels["q"].ready] == ["late"]
    peer.say(type_="grant", n=1)
    assert broker.machine.channels["q"].leased == 3 and broker.machine.channels["q"].balance == 0


def test_two_purges_at_once_share_the_stream() -> None:
    broker = many(2 * PURGE_STEP)
    broker.machine.enqueue(broker.now, "q", [Record("late", "t", b"{}", due_wall_us=broker.now.wall_us + 1_000)])
    broker.runtime.schedule_turn()
    broker.run()
    work = Steps(purge_steps(broker.machine, broker.now, OPERATOR, StreamRequest("q")))
    assert not work.step(broker.now)
    assert (broker.counts("q")["q.depth"], broker.counts("q")["q.delayed"]) == (2 * PURGE_STEP, 1)
    assert value(broker, purge(broker, OPERATOR, StreamRequest("q"))) == {"purged": PURGE_STEP}
    while not work.step(broker.now):
        pass
    assert value(broker, work.result) == {"purged": PURGE_STEP + 1}
    assert broker.machine.channels["q"].balance == 0 and not broker.machine.channels["q"].live


@pytest.mark.promise("Hold under hostile conditions", "a redrive runs in slices that cost about the same")
@pytest.mark.parametrize(("body", "window", "least"), [(b"{}", 0, 2), (b"{}", 10_000, 10), (b'{"p":"%b"}', 0, 30)])
def test_a_step_of_a_redrive_is_shorter_where_a_letter_costs_more(body: bytes, window: int, least: int) -> None:
    broker = many(window)
    if window:
        purge_all(broker.machine, broker.now, broker.machine.channels["q"])
    text = body % (b"x" * 8_000) if b"%" in body else body
    broker.machine.enqueue(broker.now, "dlq/q", [Record(f"e{number}", "t", text) for number in range(1_000)])
    broker.runtime.schedule_turn()
    broker.run()
    ids = [f"e{number}" for number in range(1_000)]
    work = Steps(redrive_steps(broker.machine, broker.now, OPERATOR, RedriveRequest("q", ids=ids)))
    steps = 1
    while not work.step(broker.now):
        broker.runtime.apply(broker.now)
        steps += 1
    broker.runtime.apply(broker.now)
    assert value(broker, work.result) == {"moved": 1_000, "kept": 0, "left": 0}
    assert least <= steps <= 10 * least


def test_a_redrive_takes_several_steps_and_keeps_what_has_no_room_in_its_order() -> None:
    broker = Broker()
    letters = [Record(f"e{number}", "t", b'{"headers":{}}') for number in range(STEP_COST + 5)]
    broker.machine.enqueue(broker.now, "dlq/q", letters)
    filled(broker, "q", "e1", f"e{STEP_COST + 1}")
    work = Steps(redrive_steps(broker.machine, broker.now, OPERATOR, RedriveRequest("q", 100_000)))
    assert not work.step(broker.now) and not work.step(broker.now)
    broker.runtime.apply(broker.now)
    assert work.step(broker.now)
    broker.runtime.apply(broker.now)
    assert value(broker, work.result) == {"moved": STEP_COST + 3, "kept": 2, "left": 2}
    assert [record.id for record in broker.machine.channels["dlq/q"].ready] == ["e1", f"e{STEP_COST + 1}"]


def test_each_step_of_a_purge_has_its_own_time() -> None:
    broker = many(PURGE_STEP + 5)
    work = Steps(purge_steps(broker.machine, broker.now, OPERATOR, StreamRequest("q")))
    assert not any(work.step(broker.now) for _ in range(3))
    later = Now(broker.now.us + 5_000_000, broker.now.wall_us + 5_000_000)
    assert work.step(later)
    assert broker.machine.channels["q"].settled[f"e{PURGE_STEP + 4}"].settled_us == later.us
