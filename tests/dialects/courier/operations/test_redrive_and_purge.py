"""`POST /v1/redrive` and `POST /v1/purge`: scopes and results."""

from __future__ import annotations

import pytest

from penstock.core.scopes import ANONYMOUS, OPERATOR
from penstock.dialects.courier.operations.redrive_and_purge import (
    RedriveRequest,
    StreamRequest,
    purge,
    redrive,
)
from tests.dialects.courier.operations.operation_results import code, only, value
from tests.dialects.courier.talking import Broker, envelope


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
        assert code(purge(broker.machine, broker.now, ANONYMOUS, request)) == "Forbidden"
        assert value(broker, purge(broker.machine, broker.now, OPERATOR, request)) == {"purged": 1}
        nowhere = StreamRequest("nowhere")
        assert code(purge(broker.machine, broker.now, OPERATOR, nowhere)) == "UnknownStream"
