"""`POST /v1/enqueue`: checks of envelopes and their ids."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.core.scopes import ANONYMOUS, Principal
from penstock.dialects.courier.operations.enqueue import EnqueueRequest, SendRequest, enqueue, send
from penstock.dialects.courier.operations.outcomes import Outcome, Result
from tests.dialects.courier.operations.operation_results import code, only, put, raw, value
from tests.dialects.courier.talking import Broker, envelope


class TestEnqueue:
    @pytest.mark.parametrize("request_", [EnqueueRequest("a"), EnqueueRequest("a", raw({}), [raw({})])])
    def test_takes_one_or_many_and_not_both(self, request_: EnqueueRequest) -> None:
        assert code(put(Broker(), request_)) == "InvalidRequest"

    def test_an_id_is_made_only_where_asked(self) -> None:
        broker = Broker()
        bare = {key: field for key, field in envelope().items() if key != "id"}
        assert code(put(broker, EnqueueRequest("a", raw(bare)))) == "InvalidEnvelope"
        assert code(put(broker, EnqueueRequest("a", raw(bare), assign_id=False), assign=True)) == ("InvalidEnvelope")
        first = value(broker, put(broker, EnqueueRequest("a", raw(bare), assign_id=True)))
        second = value(broker, put(broker, EnqueueRequest("a", raw(bare)), assign=True))
        assert first["id"] != second["id"]
        bodies = [msgspec.json.decode(record.body) for record in broker.machine.channels["a"].ready]
        assert [body["id"] for body in bodies] == [first["id"], second["id"]]

    def test_answers_wait_for_new_records(self) -> None:
        outcome = put(Broker(), EnqueueRequest("a", raw(envelope())))
        assert isinstance(outcome, Result)
        assert (outcome.fresh, outcome.gate) == (True, 1)

    def test_scope(self) -> None:
        broker = Broker()
        request = EnqueueRequest("a", raw(envelope()))
        outcome = enqueue(broker.machine, broker.now, only("streams:b:*"), request, assign=False)
        assert code(outcome) == "Forbidden"
        assert not broker.machine.known("a")


class TestSend:
    def send(self, broker: Broker, principal: Principal, **fields: Any) -> Outcome:
        request = SendRequest("Jen", "note", raw({"x": 1}), **fields)
        return send(broker.machine, broker.now, principal, request)

    def test_says_whether_the_recipient_is_there(self) -> None:
        broker = Broker()
        assert value(broker, self.send(broker, ANONYMOUS))["recipient"] == {"known": False, "present": False}
        assert value(broker, self.send(broker, ANONYMOUS))["recipient"] == {"known": True, "present": False}
        broker.subscribe("agents/Jen/inbox")
        assert value(broker, self.send(broker, ANONYMOUS))["recipient"] == {"known": True, "present": True}

    def test_the_sender_is_the_agent_else_the_name(self) -> None:
        broker = Broker()
        self.send(broker, only("streams:*:*", agent="sam"))
        self.send(broker, ANONYMOUS)
        self.send(broker, ANONYMOUS, from_="me")
        senders = [record.sender for record in broker.machine.channels["agents/Jen/inbox"].live.values()]
        assert senders == ["sam", "anonymous", "me"]
        assert code(self.send(broker, only("streams:*:*", agent="sam"), from_="eve")) == "Forbidden"

    def test_the_same_id_and_words_again_are_a_duplicate_or_a_conflict(self) -> None:
        broker = Broker()
        value(broker, self.send(broker, ANONYMOUS, id="1"))
        assert value(broker, self.send(broker, ANONYMOUS, id="1"))["duplicate"] is True
        assert code(self.send(broker, ANONYMOUS, id="1", corr="other")) == "IdConflict"
