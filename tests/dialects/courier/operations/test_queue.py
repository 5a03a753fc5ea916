"""The operations that HTTP and Control v1 share: scope and shape first, then one call."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.core.errors import Refusal
from penstock.core.queue.policy import Policy
from penstock.core.scopes import ANONYMOUS, OPERATOR, Principal, require
from penstock.dialects.courier.operations import queries
from penstock.dialects.courier.operations.enqueue import EnqueueRequest, enqueue
from penstock.dialects.courier.operations.outcomes import Late, Outcome, Result
from penstock.dialects.courier.operations.redrive_and_purge import (
    RedriveRequest,
    StreamRequest,
    purge,
    redrive,
)
from penstock.dialects.courier.operations.send import SendRequest, send
from penstock.dialects.courier.operations.settle import SettleRequest, settle
from tests.dialects.courier.talking import Broker, envelope


def raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def code(outcome: Outcome) -> str:
    if isinstance(outcome, Late):
        return outcome.refusal.code
    assert isinstance(outcome, Refusal), outcome
    return outcome.code


def value(broker: Broker, outcome: Outcome) -> dict[str, Any]:
    assert isinstance(outcome, Result), outcome
    broker.runtime.apply(broker.now)
    broker.run()
    return outcome.value()


def only(*scopes: str, agent: str | None = None) -> Principal:
    return Principal("limited", agent=agent, scopes=require(scopes))


def put(broker: Broker, request: EnqueueRequest, *, assign: bool = False) -> Outcome:
    return enqueue(broker.machine, broker.now, ANONYMOUS, request, assign=assign)


class TestEnqueue:
    @pytest.mark.parametrize("request_", [EnqueueRequest("a"), EnqueueRequest("a", raw({}), [raw({})])])
    def test_takes_one_or_many_and_not_both(self, request_: EnqueueRequest) -> None:
        assert code(put(Broker(), request_)) == "InvalidRequest"

    def test_an_id_is_made_only_where_asked(self) -> None:
        broker = Broker()
        bare = {key: field for key, field in envelope().items() if key != "id"}
        assert code(put(broker, EnqueueRequest("a", raw(bare)))) == "InvalidEnvelope"
        assert code(put(broker, EnqueueRequest("a", raw(bare), assign_id=False), assign=True)) == (
            "InvalidEnvelope"
        )
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


class TestReads:
    def test_only_what_the_scopes_show(self) -> None:
        broker = Broker()
        peer = broker.control()
        peer.say(type_="enqueue", to="a", env=envelope("1"))
        peer.say(type_="enqueue", to="b", env=envelope("1"))
        reader = only("streams:b:read")
        machine, now = broker.machine, broker.now
        (row,) = value(broker, queries.metrics(machine, now, reader))["streams"]
        assert row["id"] == "b"
        (place,) = value(broker, queries.where(machine, now, reader, "1"))["places"]
        assert place["stream"] == "b"
        assert code(queries.where(machine, now, only("streams:c:read"), "1")) == "UnknownEnvelope"
        for read in (queries.stats, queries.explain):
            assert code(read(machine, now, reader, "a")) == "Forbidden"
            assert value(broker, read(machine, now, reader, "b"))
        assert code(queries.peek(machine, now, reader, "a", "ready", 1)) == "Forbidden"

    def test_dead_letters_are_shown_to_those_who_may_read_their_stream(self) -> None:
        broker = Broker()
        broker.control().say(type_="enqueue", to="a", env=envelope("1"))
        machine, now = broker.machine, broker.now
        for scope in ("streams:a:read", "streams:dlq/a:read"):
            assert code(queries.peek(machine, now, only(scope), "a", "dead", 1)) == "Forbidden"
        both = only("streams:a:read", "streams:dlq/a:read")
        assert value(broker, queries.peek(machine, now, both, "a", "dead", 1)) == {"rows": []}

    @pytest.mark.parametrize(("state", "limit"), [("gone", 1), ("ready", 0), ("ready", 1_001), ("ready", -1)])
    def test_peek_is_bounded(self, state: str, limit: int) -> None:
        broker = Broker()
        assert (
            code(queries.peek(broker.machine, broker.now, ANONYMOUS, "a", state, limit)) == "InvalidRequest"
        )

    def test_the_last_time_is_written_for_people(self) -> None:
        broker = Broker()
        broker.subscribe("a")
        assert value(broker, queries.stats(broker.machine, broker.now, ANONYMOUS, "a"))["lastTs"] is None
        broker.control().say(type_="enqueue", to="a", env=envelope("1"))
        stats = value(broker, queries.stats(broker.machine, broker.now, ANONYMOUS, "a"))
        assert stats["lastTs"] == "2025-10-09T08:53:20.000Z"
