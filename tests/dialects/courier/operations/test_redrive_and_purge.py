"""`POST /v1/redrive` and `POST /v1/purge`: scopes and results."""

from __future__ import annotations

import pytest

from penstock.core.records import Record
from penstock.core.scopes import ANONYMOUS, OPERATOR, Principal
from penstock.dialects.courier.operations.outcomes import Outcome
from penstock.dialects.courier.operations.redrive_and_purge import (
    PURGE_STEP,
    RedriveRequest,
    StreamRequest,
    purge_steps,
    redrive,
)
from penstock.dialects.courier.wire.request_checks import Steps
from tests.dialects.courier.operations.operation_results import code, only, value
from tests.dialects.courier.talking import Broker, envelope, filled


def purge(broker: Broker, who: Principal, request: StreamRequest) -> Outcome:
    """All steps of a purge at once."""
    return Steps(purge_steps(broker.machine, broker.now, who, request)).all(broker.now)


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


def test_a_purge_takes_several_steps_and_leaves_what_came_after_it() -> None:
    broker = Broker()
    records = [Record(f"e{number}", "t", b"{}") for number in range(2 * PURGE_STEP + 5)]
    broker.machine.enqueue(broker.now, "q", records)
    broker.runtime.schedule_turn()
    broker.run()
    work = Steps(purge_steps(broker.machine, broker.now, OPERATOR, StreamRequest("q")))
    assert not work.step(broker.now)
    assert len(broker.machine.channels["q"].live) == PURGE_STEP + 5
    filled(broker, "q", "late")
    assert not work.step(broker.now) and work.step(broker.now)
    assert value(broker, work.result) == {"purged": 2 * PURGE_STEP + 5}
    assert list(broker.machine.channels["q"].live) == ["late"]
    assert broker.machine.channels["q"].balance == 0


def test_a_stream_may_be_unloaded_while_it_is_purged() -> None:
    broker = Broker()
    broker.machine.enqueue(broker.now, "q", [Record(f"e{n}", "t", b"{}") for n in range(PURGE_STEP + 5)])
    broker.runtime.schedule_turn()
    broker.run()
    work = Steps(purge_steps(broker.machine, broker.now, OPERATOR, StreamRequest("q")))
    assert not work.step(broker.now)
    assert value(broker, purge(broker, OPERATOR, StreamRequest("q"))) == {"purged": 5}
    assert work.step(broker.now)
    assert value(broker, work.result) == {"purged": PURGE_STEP}
