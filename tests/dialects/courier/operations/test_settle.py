"""`POST /v1/settle`: scopes, leases and the five operations."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.queue.policy import Policy
from penstock.core.scopes import ANONYMOUS, Principal
from penstock.dialects.courier.operations.outcomes import Outcome
from penstock.dialects.courier.operations.settle import SettleRequest, settle
from tests.dialects.courier.operations.operation_results import code, only, value
from tests.dialects.courier.talking import Broker, envelope


class TestSettle:
    def pulled(self, policy: Policy | None = None) -> tuple[Broker, str]:
        broker = Broker(policy)
        peer = broker.control()
        peer.say(type_="enqueue", to="a", env=envelope("1"))
        (answer,) = peer.say(type_="pull", stream="a", reqId=1)
        return broker, answer["result"]["deliveries"][0]["leaseId"]

    def settle(self, broker: Broker, principal: Principal = ANONYMOUS, **fields: Any) -> Outcome:
        return settle(broker.machine, broker.now, principal, SettleRequest(**fields))

    @pytest.mark.parametrize("op", ["ack", "nack", "release", "term"])
    @pytest.mark.parametrize("by", ["lease", "stream"])
    def test_each_way_out(self, op: str, by: str) -> None:
        broker, lease_id = self.pulled()
        naming = {"lease_id": lease_id} if by == "lease" else {"stream": "a"}
        done = value(broker, self.settle(broker, id="1", op=op, **naming))
        assert done == {"id": "1", "op": op, "settled": True}
        assert broker.counts("a")["q.if"] == 0

    def test_extend_tells_until_when(self) -> None:
        broker, lease_id = self.pulled()
        done = value(broker, self.settle(broker, id="1", op="extend", lease_id=lease_id, ms=60_000))
        assert done["leaseExpiresAt"] == broker.now.wall_us // 1000 + 60_000

    @pytest.mark.parametrize(
        ("fields", "expected"),
        [
            ({"op": "fly", "stream": "a"}, "InvalidRequest"),
            ({"op": "ack"}, "InvalidRequest"),
            ({"op": "nack", "stream": "a", "delay_ms": -1}, "InvalidRequest"),
            ({"op": "nack", "stream": "a", "delay_ms": 900_001}, "InvalidRequest"),
            ({"op": "extend", "stream": "a", "ms": 1}, "InvalidRequest"),
            ({"op": "ack", "stream": "nowhere"}, "UnknownStream"),
            ({"op": "ack", "stream": "a", "id": "2"}, "UnknownEnvelope"),
            ({"op": "ack", "lease_id": "1.1.1"}, "LeaseExpired"),
        ],
    )
    def test_what_is_refused_leaves_the_lease(self, fields: dict[str, Any], expected: str) -> None:
        broker, _ = self.pulled()
        assert code(self.settle(broker, **{"id": "1", **fields})) == expected
        assert broker.counts("a")["q.if"] == 1
        assert not broker.machine.known("nowhere")

    def test_anothers_lease_is_not_mine(self) -> None:
        broker, lease_id = self.pulled()
        other = only("streams:*:*")
        assert code(self.settle(broker, other, id="1", op="ack", lease_id=lease_id)) == "NotLeaseHolder"
        assert code(self.settle(broker, other, id="1", op="ack", stream="a")) == "NotLeaseHolder"

    def test_twice_is_already_acked(self) -> None:
        broker, lease_id = self.pulled()
        value(broker, self.settle(broker, id="1", op="ack", lease_id=lease_id))
        assert code(self.settle(broker, id="1", op="ack", lease_id=lease_id)) == "AlreadyAcked"
        assert code(self.settle(broker, id="1", op="ack", stream="a")) == "AlreadyAcked"

    def test_a_stranger_learns_nothing_of_a_stream_it_may_not_use(self) -> None:
        broker, _ = self.pulled()
        stranger = only("streams:b:*")
        assert code(self.settle(broker, stranger, id="1", op="ack", lease_id="1.1.1")) == "UnknownEnvelope"
        assert code(self.settle(broker, stranger, id="1", op="ack", stream="a")) == "Forbidden"
