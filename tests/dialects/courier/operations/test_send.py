"""`POST /v1/send`: the envelope it writes, and the state of the recipient in its answer."""

from __future__ import annotations

from typing import Any

from penstock.core.scopes import ANONYMOUS, Principal
from penstock.dialects.courier.operations.outcomes import Outcome
from penstock.dialects.courier.operations.send import SendRequest, send
from tests.dialects.courier.operations.operation_results import code, only, raw, value
from tests.dialects.courier.talking import Broker


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
