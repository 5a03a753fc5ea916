"""The subscribe socket: one stream, small messages in both directions."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.limits import Limits
from penstock.core.queue.policy import Policy
from penstock.core.scopes import ANONYMOUS, Principal, require
from penstock.dialects.courier.sessions.subscribe import SubscribeQuery, check
from tests.dialects.courier.talking import Broker, Peer, envelope, turns


def stocked(*ids: str, policy: Policy | None = None, limits: Limits | None = None) -> Broker:
    broker = Broker(policy, limits=limits)
    producer = broker.control()
    for id_ in ids:
        assert producer.say(type_="enqueue", to="a", env=envelope(id_))[0]["type"] == "ok"
    return broker


def told(peer: Peer, data: bytes | dict[str, Any]) -> list[dict[str, Any]]:
    peer.send(data)
    peer.broker.run()
    return peer.heard()


def errors(frames: list[dict[str, Any]]) -> list[str]:
    return [frame["error"]["code"] for frame in frames if "error" in frame]


def settled(id_: str, lease_id: str | None, op: str = "ack", attempt: int = 1) -> dict[str, Any]:
    return {"settled": id_, "leaseId": lease_id, "op": op, "attempt": attempt}


class TestDelivery:
    def test_starts_with_no_credit(self) -> None:
        peer = stocked("1").subscribe("a")
        assert peer.heard() == []
        (frame,) = told(peer, {"credit": 1})
        assert frame["deliver"] == {"to": "a", **envelope("1")}
        assert (frame["seq"], frame["attempt"], set(frame)) == (
            1,
            1,
            {"deliver", "seq", "attempt", "leaseId"},
        )

    def test_one_message_a_delivery(self) -> None:
        peer = stocked("1", "2", "3").subscribe("a", credit=2)
        assert [frame["deliver"]["id"] for frame in peer.heard()] == ["1", "2"]

    def test_batches_are_four_arrays(self) -> None:
        peer = stocked("1", "2", "3").subscribe("a", credit=3, batch=2)
        first, second = peer.heard()
        assert [env["id"] for env in first["deliver"]] == ["1", "2"]
        assert (first["seq"], first["attempt"], len(first["leaseId"])) == ([1, 2], [1, 1], 2)
        assert [env["id"] for env in second["deliver"]] == ["3"]

    def test_auto_keeps_the_window(self) -> None:
        peer = stocked("1", "2", "3").subscribe("a", auto=1)
        assert [frame["deliver"]["id"] for frame in peer.heard()] == ["1"]
        assert [frame["deliver"]["id"] for frame in told(peer, {"ack": "1"})] == ["2"]

    def test_has_its_own_lease(self) -> None:
        broker = stocked("1")
        broker.subscribe("a", credit=1, lease_ms=1_000)
        broker.advance(999)
        assert broker.counts("a")["q.if"] == 1
        broker.advance(1)
        assert broker.counts("a")["q.if"] == 0

    def test_says_what_expired_when_asked(self) -> None:
        broker = stocked("1", policy=Policy(lease_us=2_000_000))
        asked = broker.subscribe("a", credit=1, expired=True)
        (delivery,) = asked.heard()
        broker.advance(2_000)
        assert asked.heard() == [{"expired": "1", "leaseId": delivery["leaseId"]}]


class TestCredit:
    @pytest.mark.parametrize("credit", [0, -1, -(2**70), 1.0, 1.5, True, "1", None, [], {}, 100_001, 2**70])
    def test_must_be_a_whole_number_that_fits(self, credit: object) -> None:
        peer = stocked("1").subscribe("a")
        assert errors(told(peer, {"credit": credit})) == ["InvalidCredit"]
        (consumer,) = peer.broker.machine.channels["a"].consumers.values()
        assert consumer.credit == 0
        assert peer.wire.closed is None

    def test_adds_up_to_the_cap_and_no_further(self) -> None:
        peer = Broker().subscribe("a", credit=99_999)
        assert errors(told(peer, {"credit": 2})) == ["InvalidCredit"]
        assert told(peer, {"credit": 1}) == []


class TestSettles:
    def test_ack_is_silent_unless_confirmation_was_asked_for(self) -> None:
        assert told(stocked("1").subscribe("a", credit=1), {"ack": "1"})[1:] == []
        peer = stocked("1", "2", "3").subscribe("a", credit=3, confirm=True)
        leases = [frame["leaseId"] for frame in peer.heard()]
        assert told(peer, {"ack": "1"}) == [settled("1", leases[0])]
        assert told(peer, {"ack": ["2", "nobody", "3"]}) == [
            {"error": unknown("nobody")},
            settled("2", leases[1]),
            settled("3", leases[2]),
        ]

    @pytest.mark.promise("Delivery", "A confirmed settle says which lease, which attempt and which operation")
    def test_a_confirmation_says_what_was_settled(self) -> None:
        """A client that nacks and then acks the redelivery can tell the two confirmations apart."""
        peer = stocked("1").subscribe("a", credit=2, confirm=True)
        (first,) = peer.heard()
        confirmed, second = sorted(told(peer, {"nack": "1"}), key=lambda frame: "deliver" in frame)
        assert confirmed == settled("1", first["leaseId"], "nack")
        assert (second["attempt"], second["leaseId"] != first["leaseId"]) == (2, True)
        assert told(peer, {"ack": "1"}) == [settled("1", second["leaseId"], "ack", 2)]

    def test_an_id_given_twice_is_settled_and_confirmed_once(self) -> None:
        peer = stocked("1").subscribe("a", credit=1, confirm=True)
        (delivery,) = peer.heard()
        frames = told(peer, {"ack": ["1", "1"]})
        assert errors(frames) == ["AlreadyAcked"]
        assert frames[1:] == [settled("1", delivery["leaseId"])]

    def test_a_late_ack_that_is_accepted_names_no_lease(self) -> None:
        broker = stocked("1", policy=Policy(lease_us=2_000_000, late_ack="accept"))
        peer = broker.subscribe("a", credit=1, confirm=True)
        peer.heard()
        broker.advance(2_000)
        assert told(peer, {"ack": "1"}) == [settled("1", None)]

    @pytest.mark.parametrize(
        "message",
        [
            {"nack": "1", "delayMs": 700},
            {"nack": "1", "backoff": True},
            {"nack": "1", "requeue": False},
            {"term": "1", "reason": "x"},
        ],
    )
    def test_the_other_verbs_confirm_too(self, message: dict[str, Any]) -> None:
        peer = stocked("1").subscribe("a", credit=1, confirm=True)
        (delivery,) = peer.heard()
        assert told(peer, message) == [settled("1", delivery["leaseId"], next(iter(message)))]

    def test_release_gives_back_at_once(self) -> None:
        peer = stocked("1").subscribe("a", credit=2)
        peer.heard()
        (again,) = told(peer, {"release": "1"})
        assert (again["deliver"]["id"], again["attempt"]) == ("1", 2)

    def test_extend_keeps_the_lease(self) -> None:
        broker = stocked("1", policy=Policy(lease_us=2_000_000))
        peer = broker.subscribe("a", credit=1)
        peer.heard()
        broker.advance(1_500)
        assert told(peer, {"extend": "1", "ms": 60_000}) == []
        broker.advance(59_000)
        assert told(peer, {"ack": "1"}) == []
        assert broker.counts("a")["q.ack"] == 1

    def test_a_lease_id_is_checked_exactly(self) -> None:
        peer = stocked("1").subscribe("a", credit=1)
        (delivery,) = peer.heard()
        assert errors(told(peer, {"ack": "1", "leaseId": "0.0.0"})) == ["LeaseExpired"]
        assert told(peer, {"ack": "1", "leaseId": delivery["leaseId"]}) == []

    def test_errors_say_what_and_leave_the_socket_open(self) -> None:
        broker = stocked("1", policy=Policy(lease_us=2_000_000))
        peer, other = broker.subscribe("a", credit=1), broker.subscribe("a")
        peer.heard()
        assert errors(told(other, {"ack": "1"})) == ["NotLeaseHolder"]
        assert errors(told(peer, {"ack": "nobody"})) == ["UnknownEnvelope"]
        broker.advance(2_000)
        assert errors(told(peer, {"ack": "1"})) == ["LeaseExpired"]
        told(other, {"credit": 1})
        told(other, {"ack": "1"})
        (error,) = told(other, {"ack": "1"})
        assert error["error"]["code"] == "AlreadyAcked"
        assert (error["error"]["status"], error["error"]["ref"]) == (409, "1")
        assert peer.wire.closed is None and other.wire.closed is None

    def test_several_verbs_in_one_message_are_all_done(self) -> None:
        peer = stocked("1", "2", "3").subscribe("a", credit=2)
        peer.heard()
        frames = told(peer, {"credit": 1, "ack": "1", "term": "2"})
        assert [frame["deliver"]["id"] for frame in frames] == ["3"]
        assert (peer.broker.counts("a")["q.ack"], peer.broker.counts("a")["q.dead"]) == (1, 1)

    def test_arrays_are_bounded(self) -> None:
        peer = stocked("1", limits=Limits(batch_max=3)).subscribe("a", credit=1)
        peer.heard()
        assert errors(told(peer, {"ack": ["1"] * 4})) == ["InvalidRequest"]
        assert peer.broker.counts("a")["q.ack"] == 0


def unknown(id_: str) -> dict[str, Any]:
    """The error about an id that was never seen."""
    return {
        "code": "UnknownEnvelope",
        "message": f"no envelope `{id_}` is known in `a`",
        "status": 404,
        "retryable": False,
        "hint": "ids are remembered for `streams.dedupWindowMs` after they are settled",
        "ref": id_,
    }


class TestEnds:
    @pytest.mark.parametrize("data", [b"", b"{", b"nonsense", b"\xff", b'{"credit":1} x', b'{"credit":NaN}'])
    def test_malformed_json_closes_with_1007(self, data: bytes) -> None:
        peer = Broker().subscribe("a")
        assert errors(told(peer, data)) == ["InvalidJSON"]
        assert peer.wire.closed == (1007, "InvalidJSON")
        assert told(peer, {"credit": 1}) == []

    def test_a_message_over_the_bound_closes_with_1009(self) -> None:
        peer = Broker(limits=Limits(message_max=50)).subscribe("a")
        assert errors(told(peer, {"ack": "x" * 60})) == ["TooLarge"]
        assert peer.wire.closed == (1009, "TooLarge")

    def test_that_bound_is_1_mib(self) -> None:
        peer = Broker().subscribe("a")
        assert errors(told(peer, {"ack": "x" * (2**20 - 12)})) == ["UnknownEnvelope"]
        assert errors(told(peer, {"ack": "x" * 2**20})) == ["TooLarge"]

    @pytest.mark.parametrize("message", [{}, {"fly": 1}, {"leaseId": "x"}])
    def test_unknown_messages_close_with_1003_after_some(self, message: dict[str, Any]) -> None:
        peer = Broker(limits=Limits(strikes_max=2)).subscribe("a")
        assert [errors(told(peer, message)) for _ in range(2)] == [["UnknownOp"]] * 2
        assert peer.wire.closed is None
        assert errors(told(peer, message)) == ["UnknownOp"]
        assert peer.wire.closed is not None
        assert peer.wire.closed[0] == 1003 and peer.wire.closed[1].startswith("UnknownOp: 3 strikes")

    @pytest.mark.parametrize("data", [b"[]", b"1", b'"x"', b'{"ack":1}', b'{"ack":[1]}', b'{"nack":["x"]}'])
    def test_json_of_another_shape_leaves_it_open(self, data: bytes) -> None:
        peer = Broker().subscribe("a")
        assert errors(told(peer, data)) == ["InvalidRequest"]
        assert peer.wire.closed is None

    def test_a_flood_closes_with_1008(self) -> None:
        peer = Broker(limits=Limits(control_rate=3)).subscribe("a")
        for _ in range(3):
            assert told(peer, {"credit": 1}) == []
        assert errors(told(peer, {"credit": 1})) == ["RateLimited"]
        assert peer.wire.closed == (1008, "RateLimited")

    def test_a_refused_subscription_says_why_and_closes(self) -> None:
        broker = Broker(limits=Limits(streams_max=1))
        broker.subscribe("a")
        peer = broker.subscribe("b")
        assert errors(peer.heard()) == ["QuotaExceeded"]
        assert peer.wire.closed is not None


class TestCheck:
    """What is refused before the socket opens."""

    @pytest.mark.parametrize(
        ("query", "code"),
        [
            ({"stream": ""}, "InvalidRequest"),
            ({"stream": "a:b"}, "InvalidRequest"),
            ({"credit": -1}, "InvalidCredit"),
            ({"credit": 100_001}, "InvalidCredit"),
            ({"auto": -1}, "InvalidCredit"),
            ({"batch": 0}, "InvalidRequest"),
            ({"batch": 4_097}, "InvalidRequest"),
            ({"lease_ms": 999}, "InvalidRequest"),
            ({"lease_ms": 12 * 3_600_000 + 1}, "InvalidRequest"),
        ],
    )
    def test_bounds(self, query: dict[str, Any], code: str) -> None:
        refusal = check(Broker().runtime, ANONYMOUS, SubscribeQuery(**{"stream": "a", **query}))
        assert refusal is not None
        assert refusal.code == code

    def test_scope(self) -> None:
        reader = Principal("reader", scopes=require(["streams:*:read"]))
        refusal = check(Broker().runtime, reader, SubscribeQuery("a"))
        assert refusal is not None
        assert (refusal.code, refusal.ref) == ("Forbidden", "streams:a:subscribe")
        assert check(Broker().runtime, ANONYMOUS, SubscribeQuery("a", credit=100_000)) is None


ODD_VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.floats(), st.sampled_from(["1", "2"]), st.just(["1"])
)


@settings(max_examples=200)
@given(
    st.lists(
        st.binary(max_size=30)
        | st.builds(
            lambda verb, about, more: msgspec.json.encode({verb: about, **more}),
            st.sampled_from(["credit", "ack", "nack", "release", "term", "extend", "x"]),
            ODD_VALUES,
            st.dictionaries(st.sampled_from(["leaseId", "delayMs", "ms", "requeue"]), ODD_VALUES, max_size=2),
        ),
        max_size=5,
    )
)
def test_no_message_breaks_a_session_and_no_error_changes_anything(messages: list[bytes]) -> None:
    broker = stocked("1", "2")
    peer = broker.subscribe("a", credit=1)
    peer.heard()
    for data in messages:
        before = broker.picture()
        frames = told(peer, data)
        if peer.wire.closed is not None:
            break
        if errors(frames):
            assert broker.picture() == before


def test_the_answers_to_a_large_array_of_acks_take_several_turns_and_hold_back_what_follows() -> None:
    broker = stocked("1", "2")
    peer = broker.subscribe("a", credit=2, confirm=True)
    peer.heard()
    peer.send({"ack": ["1", *["x"] * 3_998, "2"]})
    peer.send({"credit": -1})
    assert not broker.machine.channels["a"].live, "the peer may close before the answers are made"
    assert turns(broker.scheduler) > 3
    frames = peer.heard()
    assert errors(frames) == ["UnknownEnvelope"] * 3_998 + ["InvalidCredit"]
    assert [frame["settled"] for frame in frames if "settled" in frame] == ["1", "2"]
