"""Control v1: bytes in, bytes out."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.core.limits import Limits
from penstock.core.queue.policy import Policy
from penstock.core.scopes import OPERATOR, Principal, require
from penstock.dialects.courier.sessions.control.frames import FRAME_NAMES
from penstock.dialects.courier.sessions.control.session import HELLO_MAX
from tests.dialects.courier.talking import Broker, HandJournal, ListWire, Peer, codes, envelope, filled, line, turns

SAM = Principal("sam", agent="sam", scopes=require(["streams:agents/*:*"]))


class TestHello:
    @pytest.mark.promise("Queue protocols", "Control v1 matches the gateway's conversation byte for byte")
    def test_answers_under_the_literal_hello(self) -> None:
        peer = Broker().control()
        (answer,) = peer.say(type_="hello", version="v1", features=[])
        assert (answer["type"], answer["reqId"]) == ("ok", "hello")
        assert answer["result"]["version"] == "v1"
        assert "credit" in answer["result"]["features"]
        assert set(answer["result"]) >= {"server", "bootId"}

    def test_echoes_a_reqId_of_its_own(self) -> None:
        (answer,) = Broker().control().say(type_="hello", reqId=7)
        assert answer["reqId"] == 7

    def test_another_version_is_refused_and_ends_the_connection(self) -> None:
        peer = Broker().control()
        assert codes(peer.say(type_="hello", version="v2")) == [("hello", "Unsupported")]
        assert peer.wire.closed == (1003, "Unsupported")

    def test_may_be_left_out_where_no_token_is_needed(self) -> None:
        assert Broker().control().say(type_="ping", reqId=1) == [{"type": "ok", "reqId": 1, "result": {}}]


class TestTokens:
    def peer(self) -> Peer:
        return Broker(tokens={"secret": SAM}).control(token_needed=True)

    def test_hello_with_a_token_opens_the_door(self) -> None:
        peer = self.peer()
        (answer,) = peer.say(type_="hello", token="secret")
        assert answer["type"] == "ok"
        (answer,) = peer.say(type_="enqueue", to="agents/x", env=envelope())
        assert answer["type"] == "ok"
        assert codes(peer.say(type_="enqueue", to="other", env=envelope(), reqId=3)) == [(3, "Forbidden")]
        assert peer.wire.closed is None

    def test_from_is_the_tokens_agent(self) -> None:
        peer = self.peer()
        peer.say(type_="hello", token="secret")
        assert codes(peer.say(type_="enqueue", to="agents/x", env=envelope(from_="x", **{"from": "eve"}))) == [
            ("enqueue", "Forbidden")
        ]

    @pytest.mark.parametrize("end", [b"", b"\n"])
    def test_a_stranger_gets_little_memory(self, end: bytes) -> None:
        peer = self.peer()
        peer.send(b'{"type":"hello","token":"' + b"x" * HELLO_MAX + end)
        peer.broker.run()
        assert codes(peer.heard()) == [("hello", "TooLarge")]
        assert peer.wire.closed == (1009, "TooLarge")

    @pytest.mark.parametrize("frame", [{"type_": "hello"}, {"type_": "hello", "token": "wrong"}])
    def test_hello_without_a_good_one_closes(self, frame: dict[str, Any]) -> None:
        peer = self.peer()
        assert codes(peer.say(**frame)) == [("hello", "Unauthorized")]
        assert peer.wire.closed == (1008, "Unauthorized")

    @pytest.mark.parametrize("name", sorted({str(name) for name in FRAME_NAMES} - {"hello"}))
    def test_nothing_else_is_heard_before(self, name: str) -> None:
        peer = self.peer()
        fields = {
            "to": "agents/x", "env": envelope(), "stream": "agents/x", "id": "1", "n": 1, "view": "v", "op": "ack",
            "kind": "note", "payload": 1, "ids": ["1"],
        }  # fmt: skip
        assert codes(peer.say(type_=name, reqId=1, **fields)) == [(1, "Unauthorized")]
        assert peer.wire.closed == (1008, "Unauthorized")
        assert peer.broker.machine.channels == {}

    def test_a_wrong_token_closes_even_where_none_is_needed(self) -> None:
        peer = Broker().control()
        assert codes(peer.say(type_="hello", token="wrong")) == [("hello", "Unauthorized")]


class TestEnqueue:
    def test_without_reqId_is_answered_as_enqueue(self) -> None:
        peer = Broker().control()
        peer.send(line(type_="enqueue", to="a", env=envelope("e-1")))
        peer.broker.run()
        assert peer.raw() == b'{"type":"ok","reqId":"enqueue","result":{"id":"e-1","seq":1}}\n'

    def test_an_env_without_to_gets_the_frames(self) -> None:
        broker = Broker()
        filled(broker, "agents/x/inbox", "1")
        (record,) = broker.machine.channels["agents/x/inbox"].ready
        assert msgspec.json.decode(record.body)["to"] == "agents/x/inbox"

    @pytest.mark.parametrize("req_id", ["r", 0, -5, "", "é\n", 2**60])
    def test_reqIds_come_back_as_sent(self, req_id: str | int) -> None:
        for env in (envelope(), [envelope()], {"id": "bad"}):
            (answer,) = Broker().control().say(type_="enqueue", to="a", env=env, reqId=req_id)
            assert answer["reqId"] == req_id

    def test_a_duplicate_says_so(self) -> None:
        peer = Broker().control()
        peer.say(type_="enqueue", to="a", env=envelope("1"))
        (answer,) = peer.say(type_="enqueue", to="a", env=envelope("1"), reqId=2)
        assert answer["result"] == {"id": "1", "seq": 1, "duplicate": True}

    def test_an_array_is_all_or_nothing_in_one_answer(self) -> None:
        broker = Broker(Policy(max_depth=3))
        peer = broker.control()
        (answer,) = peer.say(type_="enqueue", to="a", env=[envelope("1"), envelope("2"), envelope("1")])
        assert answer["result"] == {"ids": ["1", "2", "1"], "seqs": [1, 2, 1], "duplicates": ["1"]}
        assert codes(peer.say(type_="enqueue", to="a", env=[envelope("3"), envelope("4")])) == [
            ("enqueue", "StreamFull")
        ]
        assert len(broker.machine.channels["a"].live) == 2

    def test_a_bad_one_in_an_array_is_named_by_its_place(self) -> None:
        peer = Broker().control()
        (error,) = peer.say(type_="enqueue", to="a", env=[envelope("1"), {"id": "2"}])
        assert (error["code"], error["ref"]) == ("InvalidEnvelope", "envelopes[1].ts")
        assert not peer.broker.machine.known("a")

    @pytest.mark.parametrize("env", [[], [envelope(str(n)) for n in range(4097)]], ids=["none", "4097"])
    def test_arrays_are_bounded(self, env: list[Any]) -> None:
        assert codes(Broker().control().say(type_="enqueue", to="a", env=env)) == [("enqueue", "InvalidRequest")]

    def test_a_delay_is_kept(self) -> None:
        broker = Broker()
        peer = broker.control()
        peer.say(type_="subscribe", stream="a", credit=5)
        peer.say(type_="enqueue", to="a", env=envelope("1"), delayMs=5_000)
        broker.advance(4_999)
        assert peer.heard() == []
        broker.advance(1)
        assert [frame["env"]["id"] for frame in peer.heard()] == ["1"]

    def test_deliverAt_is_kept_and_the_past_is_now(self) -> None:
        broker = Broker()
        peer = broker.control()
        peer.say(type_="subscribe", stream="a", credit=5)
        heard = peer.say(type_="enqueue", to="a", env=envelope("past"), deliverAt="2001-01-01T00:00:00Z")
        assert [frame["type"] for frame in heard] == ["deliver", "ok"]
        peer.say(type_="enqueue", to="a", env=envelope("next"), deliverAt="2025-10-09T08:53:30Z")
        broker.advance(10_000)
        assert [frame["env"]["id"] for frame in peer.heard()] == ["next"]

    @pytest.mark.parametrize(
        "fields",
        [
            {"delayMs": -1}, {"delayMs": 1.5}, {"delayMs": "1"}, {"delayMs": 10**12},
            {"deliverAt": "2025-10-18"}, {"deliverAt": 5}, {"deliverAt": "9999-01-01T00:00:00Z"},
        ],
    )  # fmt: skip
    def test_delays_that_make_no_sense(self, fields: dict[str, Any]) -> None:
        peer = Broker().control()
        ((_, code),) = codes(peer.say(type_="enqueue", to="a", env=envelope(), **fields))
        assert code == "InvalidRequest"
        assert not peer.broker.machine.known("a")

    @pytest.mark.parametrize("to", ["", "a:b", "a*", "a\n", "x" * 513])
    def test_stream_names_are_checked(self, to: str) -> None:
        assert codes(Broker().control().say(type_="enqueue", to=to, env=envelope())) == [("enqueue", "InvalidRequest")]


class TestSubscribe:
    def test_is_not_answered_without_a_reqId(self) -> None:
        assert Broker().control().say(type_="subscribe", stream="a") == []

    def test_names_itself_when_asked(self) -> None:
        peer = Broker().control()
        assert peer.say(type_="subscribe", stream="a", reqId=1)[0]["result"] == {"subId": "s1"}
        assert peer.say(type_="subscribe", stream="a", subId="s2", reqId=2)[0]["result"] == {"subId": "s2"}
        assert peer.say(type_="subscribe", stream="b", reqId=3)[0]["result"] == {"subId": "s3"}
        assert codes(peer.say(type_="subscribe", stream="a", subId="s1", reqId=4)) == [(4, "InvalidRequest")]

    @pytest.mark.promise("The document's testing strategy", "Unit: subscribe")
    @pytest.mark.promise("Delivery", "every lease has an id, and every delivery its `attempt`")
    def test_the_delivery_frame(self) -> None:
        broker = Broker(Policy(lease_us=5_000_000))
        peer = broker.control()
        peer.say(type_="subscribe", stream="a", subId="x", credit=1)
        broker.control().say(type_="enqueue", to="a", env=envelope("1"))
        (frame,) = peer.heard()
        expires = (broker.now.wall_us + 5_000_000) // 1000
        assert frame == {
            "type": "deliver", "env": {"to": "a", **envelope("1")}, "stream": "a", "subId": "x", "seq": 1,
            "attempt": 1, "leaseId": frame["leaseId"], "leaseExpiresAt": expires,
        }  # fmt: skip

    def test_batches_are_arrays(self) -> None:
        broker = Broker()
        filled(broker, "a", "1", "2", "3")
        peer = broker.control()
        frames = peer.say(type_="subscribe", stream="a", credit=3, batch=2)
        assert [[env["id"] for env in frame["env"]] for frame in frames] == [["1", "2"], ["3"]]
        assert [frame["seq"] for frame in frames] == [[1, 2], [3]]
        assert [frame["attempt"] for frame in frames] == [[1, 1], [1]]
        assert len(set(frames[0]["leaseId"] + frames[1]["leaseId"])) == 3
        lease = frames[1]["leaseId"][0]
        assert peer.say(type_="ack", id="3", leaseId=lease, reqId=1)[0]["type"] == "ok"

    @pytest.mark.parametrize(
        ("fields", "code"),
        [
            ({"stream": "a:b"}, "InvalidRequest"),
            ({"leaseMs": 999}, "InvalidRequest"),
            ({"leaseMs": 12 * 3_600_000 + 1}, "InvalidRequest"),
            ({"leaseMs": 0}, "InvalidRequest"),
            ({"batch": 0}, "InvalidRequest"),
            ({"batch": 4097}, "InvalidRequest"),
            ({"credit": -1}, "InvalidCredit"),
            ({"credit": 100_001}, "InvalidCredit"),
            ({"credit": 1.0}, "InvalidCredit"),
            ({"credit": True}, "InvalidCredit"),
            ({"auto": -1}, "InvalidCredit"),
            ({"auto": 100_001}, "InvalidCredit"),
            ({"subId": "x" * 257}, "InvalidRequest"),
            ({"subId": 5}, "InvalidRequest"),
        ],
    )
    def test_what_is_refused_changes_nothing(self, fields: dict[str, Any], code: str) -> None:
        peer = Broker().control()
        assert codes(peer.say(type_="subscribe", reqId=1, **{"stream": "a", **fields})) == [(1, code)]
        assert peer.broker.machine.consumers == {}

    def test_leases_may_have_either_bound(self) -> None:
        peer = Broker().control()
        for lease_ms in (1_000, 12 * 3_600_000):
            (answer,) = peer.say(type_="subscribe", stream="a", leaseMs=lease_ms, reqId=1)
            assert answer["type"] == "ok"

    def test_automatic_credit_is_kept_up(self) -> None:
        broker = Broker()
        filled(broker, "a", "1", "2", "3")
        peer = broker.control()
        assert len(peer.say(type_="subscribe", stream="a", auto=1)) == 1
        assert [frame["env"]["id"] for frame in peer.say(type_="ack", id="1")] == ["2"]

    def test_unsubscribe_gives_back_what_it_held(self) -> None:
        broker = Broker()
        filled(broker, "a", "1")
        peer = broker.control()
        peer.say(type_="subscribe", stream="a", credit=1)
        assert peer.say(type_="unsubscribe", reqId=1)[0]["result"] == {"subId": "s1"}
        assert broker.counts("a")["q.depth"] == 1
        assert codes(peer.say(type_="unsubscribe", reqId=2)) == [(2, "InvalidRequest")]
        assert codes(peer.say(type_="grant", n=1)) == [("req", "InvalidRequest")]

    def test_an_expiry_is_reported_on_request(self) -> None:
        broker = Broker(Policy(lease_us=2_000_000))
        filled(broker, "a", "1")
        peer = broker.control()
        (delivery,) = peer.say(type_="subscribe", stream="a", credit=1, expired=True)
        broker.advance(2_000)
        assert peer.heard() == [
            {"type": "expired", "id": "1", "stream": "a", "subId": "s1", "leaseId": delivery["leaseId"]}
        ]


class TestGrant:
    def test_is_silent_without_a_reqId_and_adds(self) -> None:
        peer = Broker().control()
        peer.say(type_="subscribe", stream="a")
        assert peer.say(type_="grant", n=3) == []
        assert peer.say(type_="grant", n=4, reqId=1)[0]["result"] == {"credit": 7}

    def test_goes_to_the_most_recent_subscription(self) -> None:
        broker = Broker()
        filled(broker, "a", "1")
        filled(broker, "b", "2")
        peer = broker.control()
        peer.say(type_="subscribe", stream="a", subId="first")
        peer.say(type_="subscribe", stream="b", subId="second")
        assert [frame["subId"] for frame in peer.say(type_="grant", n=1)] == ["second"]
        assert [frame["subId"] for frame in peer.say(type_="grant", n=1, subId="first")] == ["first"]

    def test_falls_back_to_the_one_before_when_the_newest_is_gone(self) -> None:
        broker = Broker()
        filled(broker, "a", "1")
        peer = broker.control()
        peer.say(type_="subscribe", stream="a", subId="first")
        peer.say(type_="subscribe", stream="b", subId="second")
        peer.say(type_="unsubscribe", subId="second")
        assert [frame["subId"] for frame in peer.say(type_="grant", n=1)] == ["first"]

    @pytest.mark.parametrize("n", [0, -1, 1.0, 1.5, True, "1", None, [], 100_001, 10**30])
    def test_must_be_a_whole_number_that_fits(self, n: object) -> None:
        peer = Broker().control()
        peer.say(type_="subscribe", stream="a")
        assert codes(peer.say(type_="grant", n=n)) == [("req", "InvalidCredit")]
        (consumer,) = peer.broker.machine.consumers.values()
        assert consumer.credit == 0


class TestSettles:
    def peer(self, *ids: str, policy: Policy | None = None) -> Peer:
        broker = Broker(policy)
        filled(broker, "a", *ids)
        peer = broker.control()
        assert len(peer.say(type_="subscribe", stream="a", credit=10)) == len(ids)
        return peer

    @pytest.mark.parametrize(
        ("verb", "fields", "state"),
        [
            ("ack", {}, "settled"),
            ("nack", {"delayMs": 500}, "delayed"),
            ("term", {}, "settled"),
            ("nack", {"requeue": False}, "settled"),
            ("nack", {}, "inflight"),
            ("release", {}, "inflight"),
            ("extend", {}, "inflight"),
        ],
    )
    @pytest.mark.parametrize("req_id", [None, 9])
    def test_each_verb_does_its_work_and_speaks_only_when_asked(
        self, verb: str, fields: dict[str, Any], state: str, req_id: int | None
    ) -> None:
        peer = self.peer("1")
        asked = {} if req_id is None else {"reqId": req_id}
        answers = [f for f in peer.say(type_=verb, id="1", **fields, **asked) if f["type"] != "deliver"]
        assert [frame["reqId"] for frame in answers] == ([] if req_id is None else [9])
        if answers:
            assert answers[0]["result"]["id"] == "1"
        (row,) = [row for row in peer.broker.machine.where(peer.broker.now, "1") if row["stream"] == "a"]
        assert row["state"] == state

    def test_extend_says_until_when(self) -> None:
        peer = self.peer("1")
        (answer,) = peer.say(type_="extend", id="1", ms=60_000, reqId=1)
        assert answer["result"]["leaseExpiresAt"] == peer.broker.now.wall_us // 1000 + 60_000

    def test_errors_fall_back_to_the_reqId_req(self) -> None:
        peer = self.peer("1")
        assert codes(peer.say(type_="ack", id="nobody")) == [("req", "UnknownEnvelope")]
        peer.say(type_="ack", id="1")
        assert codes(peer.say(type_="ack", id="1")) == [("req", "AlreadyAcked")]
        assert codes(peer.say(type_="nack", id="1", reqId=4)) == [(4, "AlreadyAcked")]

    @pytest.mark.promise("Delivery", "deliveries and acks can be batched")
    def test_an_array_of_acks(self) -> None:
        peer = self.peer("1", "2", "3")
        assert peer.say(type_="ack", id=["1", "2"], reqId=1)[0]["result"] == {"id": ["1", "2"]}
        assert codes(peer.say(type_="ack", id=["3", "3"])) == [("req", "AlreadyAcked")]

    def test_unlabelled_acks_find_the_subscription_that_holds_the_id(self) -> None:
        broker = Broker()
        filled(broker, "a", "1")
        filled(broker, "b", "2")
        peer = broker.control()
        peer.say(type_="subscribe", stream="a", credit=1)
        peer.say(type_="subscribe", stream="b", credit=1)
        assert peer.say(type_="ack", id="1") == []
        assert peer.say(type_="nack", id="2", delayMs=500) == []
        assert (broker.counts("a")["q.ack"], broker.counts("b")["q.nack"]) == (1, 1)
        assert codes(peer.say(type_="ack", id="1")) == [("req", "AlreadyAcked")]

    def test_the_same_id_on_two_streams_is_distinguished(self) -> None:
        broker = Broker()
        filled(broker, "a", "1")
        filled(broker, "b", "1")
        peer = broker.control()
        peer.say(type_="subscribe", stream="a", credit=1, subId="a")
        peer.say(type_="subscribe", stream="b", credit=1, subId="b")
        assert peer.say(type_="ack", id="1", subId="b") == []
        assert (broker.counts("a")["q.ack"], broker.counts("b")["q.ack"]) == (0, 1)
        assert codes(peer.say(type_="ack", id="1", subId="nobody")) == [("req", "InvalidRequest")]

    def test_an_unlabelled_ack_passes_by_a_stream_that_has_the_id_and_did_not_deliver_it(self) -> None:
        broker = Broker()
        filled(broker, "a", "1")
        filled(broker, "b", "1")
        peer = broker.control()
        peer.say(type_="subscribe", stream="a")
        peer.say(type_="subscribe", stream="b", credit=1)
        assert peer.say(type_="ack", id="1") == []
        assert (broker.counts("a")["q.ack"], broker.counts("b")["q.ack"]) == (0, 1)

    def test_a_lease_id_is_checked_exactly(self) -> None:
        peer = self.peer("1", policy=Policy(lease_us=2_000_000))
        peer.broker.advance(2_000)
        (again,) = peer.heard()
        assert again["attempt"] == 2
        assert codes(peer.say(type_="ack", id="1", leaseId="1.1.000001")) == [("req", "LeaseExpired")]
        assert peer.say(type_="ack", id="1", leaseId=again["leaseId"], reqId=1)[0]["type"] == "ok"

    @pytest.mark.parametrize(
        "fields",
        [
            {"type_": "nack", "delayMs": -1},
            {"type_": "nack", "delayMs": 900_001},
            {"type_": "extend", "ms": 999},
        ],
    )
    def test_bounds(self, fields: dict[str, Any]) -> None:
        peer = self.peer("1")
        assert codes(peer.say(id="1", **fields)) == [("req", "InvalidRequest")]
        assert peer.broker.counts("a")["q.if"] == 1

    def test_without_a_subscription_there_is_nothing_to_settle(self) -> None:
        assert codes(Broker().control().say(type_="ack", id="1")) == [("req", "InvalidRequest")]

    def test_a_dead_letter_tells_its_reason(self) -> None:
        peer = self.peer("1")
        peer.say(type_="term", id="1", reason="cannot")
        (delivery,) = peer.say(type_="subscribe", stream="dlq/a", credit=1)
        header = delivery["env"]["headers"]["x-courier"]
        assert (header["reason"], header["lastError"], header["stream"]) == ("term", "cannot", "a")
        assert peer.say(type_="redrive", stream="a", reqId=1)[0]["result"]["moved"] == 0


class TestPull:
    def test_answers_with_deliveries_to_settle_from_anywhere(self) -> None:
        broker = Broker()
        filled(broker, "a", "1", "2", "3")
        peer = broker.control()
        (answer,) = peer.say(type_="pull", stream="a", max=2, leaseMs=5_000, reqId=1)
        rows = answer["result"]["deliveries"]
        assert [row["deliver"]["id"] for row in rows] == ["1", "2"]
        assert rows[0]["leaseExpiresAt"] == (broker.now.wall_us + 5_000_000) // 1000
        other = broker.control()
        settled = other.say(type_="settle", id="1", op="ack", leaseId=rows[0]["leaseId"], reqId=2)
        assert settled[0]["result"] == {"id": "1", "op": "ack", "settled": True}
        assert other.say(type_="settle", id="2", op="ack", stream="a", reqId=3)[0]["type"] == "ok"

    def test_keeps_its_place_among_the_answers(self) -> None:
        broker = Broker()
        peer = broker.control()
        peer.send(line(type_="pull", stream="a", waitMs=5_000, reqId="pull"))
        peer.send(line(type_="ping", reqId="ping"))
        peer.send(line(type_="enqueue", to="b", env=envelope("x"), reqId="enqueue"))
        broker.run()
        assert peer.heard() == []
        filled(broker, "a", "1")
        assert [frame["reqId"] for frame in peer.heard()] == ["pull", "ping", "enqueue"]

    def test_ends_empty_after_its_wait(self) -> None:
        broker = Broker()
        peer = broker.control()
        assert peer.say(type_="pull", stream="a", waitMs=1_000, reqId=1) == []
        broker.advance(1_000)
        assert peer.heard() == [{"type": "ok", "reqId": 1, "result": {"deliveries": []}}]

    @pytest.mark.parametrize(
        "fields",
        [{"max": 0}, {"max": 1_001}, {"waitMs": -1}, {"waitMs": 60_001}, {"leaseMs": 1}, {"stream": ""}],
    )
    def test_bounds(self, fields: dict[str, Any]) -> None:
        peer = Broker().control()
        assert codes(peer.say(type_="pull", reqId=1, **{"stream": "a", **fields})) == [(1, "InvalidRequest")]

    def test_an_answer_behind_a_pull_remembers_that_its_commit_was_refused(self) -> None:
        journal = HandJournal()
        broker = Broker(journal=journal)
        peer = broker.control()
        peer.send(line(type_="pull", stream="a", waitMs=1_000, reqId="pull"))
        peer.send(line(type_="enqueue", to="b", env=envelope("x"), reqId="enqueue"))
        broker.run()
        journal.refuse()
        broker.run()
        broker.advance(1_000)
        answers = peer.heard()
        assert [frame["reqId"] for frame in answers] == ["pull", "enqueue"]
        assert answers[1]["code"] == "JournalUnavailable"

    def test_an_answer_behind_a_later_commit_remembers_the_refusal_of_its_own(self) -> None:
        journal = HandJournal()
        broker = Broker(journal=journal)
        peer, other = broker.control(), broker.control()
        other.send(line(type_="enqueue", to="b", env=envelope("x"), reqId="first"))
        broker.run()
        peer.send(line(type_="enqueue", to="b", env=envelope("y"), reqId=1))
        peer.send(line(type_="enqueue", to="c", env=envelope("z"), reqId=2))
        peer.send(line(type_="enqueue", to="b", env=envelope("x"), reqId=3))
        broker.run()
        journal.refuse()
        journal.commit()
        broker.run()
        assert codes(other.heard()) == [("first", "JournalUnavailable")]
        assert [(f["reqId"], f["type"]) for f in peer.heard()] == [(1, "ok"), (2, "ok"), (3, "error")]


class TestReads:
    def test_stats_metrics_peek_where_explain(self) -> None:
        broker = Broker()
        filled(broker, "a", "1")
        peer = broker.control()
        assert peer.say(type_="stats", stream="a", reqId=1)[0]["result"]["depth"] == 1
        (row,) = peer.say(type_="metrics", reqId=2)[0]["result"]["streams"]
        assert (row["id"], row["q"]["q.in"]) == ("a", 1)
        (row,) = peer.say(type_="peek", stream="a", reqId=3)[0]["result"]["rows"]
        assert (row["env"]["id"], row["state"]) == ("1", "ready")
        (place,) = peer.say(type_="where", id="1", reqId=4)[0]["result"]["places"]
        assert place["stream"] == "a"
        assert peer.say(type_="explain", stream="a", reqId=5)[0]["result"]["flowing"] is False

    @pytest.mark.parametrize("name", ["stats", "peek", "explain", "redrive"])
    def test_an_absent_stream_is_unknown_and_stays_absent(self, name: str) -> None:
        peer = Broker().control()
        assert codes(peer.say(type_=name, stream="nowhere", reqId=1)) == [(1, "UnknownStream")]
        assert peer.broker.machine.channels == {}

    def test_an_unknown_view(self) -> None:
        peer = Broker().control()
        assert codes(peer.say(type_="snapshot", view="nothing", reqId=1)) == [(1, "UnknownView")]

    def test_send_makes_the_envelope(self) -> None:
        broker = Broker()
        peer = broker.control()
        (answer,) = peer.say(type_="send", to="Jen", kind="note", payload={"x": 1}, corr="c", reqId=1)
        result = answer["result"]
        assert (result["to"], result["seq"]) == ("agents/Jen/inbox", 1)
        assert result["recipient"] == {"known": False, "present": False}
        (delivery,) = broker.control().say(type_="subscribe", stream="agents/Jen/inbox", credit=1)
        env = delivery["env"]
        assert (env["type"], env["payload"], env["corr"], env["id"]) == ("note", {"x": 1}, "c", result["id"])


def test_purge_and_drop_are_answered_when_they_are_durable() -> None:
    journal = HandJournal()
    peer = Broker(journal=journal).control(OPERATOR)
    for id_ in "123":
        peer.say(type_="enqueue", to="a", env=envelope(id_), reqId=id_)
        journal.commit()
        peer.broker.run()
    peer.heard()
    assert peer.say(type_="drop", stream="a", ids=["1"], reqId="drop") == []
    assert peer.say(type_="purge", stream="a", reqId="purge") == []
    while journal.waiting:
        journal.commit()
        peer.broker.run()
    assert [(answer["reqId"], answer["result"]) for answer in peer.heard()] == [
        ("drop", {"dropped": 1}),
        ("purge", {"purged": 2}),
    ]
    assert codes(peer.say(type_="drop", stream="a", ids=["1"], reqId=1)) == [(1, "UnknownEnvelope")]


class TestTurns:
    @pytest.mark.parametrize(
        "refused",
        [
            b'{"type":"x"}',
            b'{"type":"ping","a":1,"a":2}',
            b'{"type":"ack"}',
            b'{"type":"enqueue","to":"a","env":{}}',
            b'{"type":"ack","id":["x","x","x","x","x","x","x","x"]}',
        ],
    )
    def test_refused_lines_take_several_turns(self, refused: bytes) -> None:
        peer = Broker().control()
        peer.say(type_="subscribe", stream="a")
        peer.send((refused + b"\n") * 2_000)
        assert turns(peer.broker.scheduler) > 5
        assert {frame["type"] for frame in peer.heard()} == {"error"} and peer.wire.closed is None

    @pytest.mark.parametrize("subscriptions", [1, 2])
    def test_a_large_array_of_acks_takes_several(self, subscriptions: int) -> None:
        peer = Broker().control()
        for number in range(subscriptions):
            peer.say(type_="subscribe", stream=f"s/{number}")
        peer.heard()
        peer.send(line(type_="ack", id=["x"] * 4_000) + line(type_="ping", reqId=1))
        assert turns(peer.broker.scheduler) > 4
        *errors, last = peer.heard()
        assert [error["code"] for error in errors] == ["UnknownEnvelope"] * 4_000 and last["reqId"] == 1

    def test_a_run_that_is_accepted_takes_one(self) -> None:
        peer = Broker(journal=HandJournal()).control()
        peer.send(b"".join(line(type_="enqueue", to="a", env=envelope(f"{no}")) for no in range(1_000)))
        assert turns(peer.broker.scheduler) <= 2

    @pytest.mark.parametrize(
        ("first", "name"),
        [
            (b'{"type":"x","reqId":3}', 3),
            (b"GET / HTTP/1.1", "req"),
            (b'{"type":"ping","reqId":"r","a":1,"a":2}', "r"),
            (b'{"type":"enqueue"}', "enqueue"),
        ],
    )
    def test_a_stranger_gets_one_line(self, first: bytes, name: object) -> None:
        peer = Broker(tokens={"secret": SAM}).control(token_needed=True)
        peer.send((first + b"\n") * 1_000)
        assert turns(peer.broker.scheduler) <= 2
        assert codes(peer.heard()) == [(name, "Unauthorized")]
        assert peer.wire.closed == (1008, "Unauthorized")

    def test_a_hello_that_is_wrong_says_why(self) -> None:
        peer = Broker(tokens={"secret": SAM}).control(token_needed=True)
        assert codes(peer.say(type_="hello", token=5)) == [("hello", "InvalidRequest")]
        assert peer.wire.closed == (1008, "InvalidRequest")


class TestLargeAnswers:
    """Pipelined reads of large envelopes: what is queued at once stays bounded."""

    PEEKS = b"".join(line(type_="peek", stream="a", max=12, reqId=n) for n in range(30))

    def broker(self, **limits: int) -> Broker:
        broker = Broker(limits=Limits(**limits))
        for id_ in ("1", "2"):
            broker.control().say(type_="enqueue", to="a", env=envelope(id_, payload="x" * 600_000))
        return broker

    def test_a_turn_makes_few(self) -> None:
        broker = self.broker()
        peer = broker.control()
        peer.send(self.PEEKS)
        broker.run()
        assert max(sum(map(len, write)) for write in peer.wire.writes) < 4_500_000
        assert [frame["reqId"] for frame in peer.heard()] == list(range(30))

    def test_after_a_commit_each_is_written_before_the_next(self) -> None:
        broker = self.broker()
        peer = broker.control()
        peer.send(line(type_="enqueue", to="b", env=envelope("3"), reqId="e") + self.PEEKS)
        broker.run()
        assert max(sum(map(len, write)) for write in peer.wire.writes) < 4_500_000
        assert [frame["reqId"] for frame in peer.heard()] == ["e", *range(30)]

    def test_a_peer_that_does_not_read_is_cut_at_the_hard_bound(self) -> None:
        for first in (b"", line(type_="enqueue", to="b", env=envelope("3"), reqId="e")):
            broker = self.broker(outbox_hard_max=3_000_000)
            peer = broker.control()
            peer.connection.congested(True)
            written: list[int] = []

            def send(messages: list[bytes], wire: ListWire = peer.wire, written: list[int] = written) -> None:
                wire.buffered += sum(map(len, messages))
                written.append(wire.buffered)

            peer.wire.send = send  # type: ignore[method-assign]
            peer.send(first + self.PEEKS)
            broker.run()
            assert peer.wire.aborted
            assert written[-1] < 7_500_000

    def test_answers_behind_a_pull_that_waits_are_bounded(self) -> None:
        broker = self.broker(outbox_hard_max=3_000_000)
        peer = broker.control()
        peer.send(line(type_="pull", stream="empty", waitMs=60_000, reqId="p") + self.PEEKS)
        broker.run()
        frames = peer.heard()
        assert frames[-1]["code"] == "SlowConsumer"
        assert len(frames) < 10
        assert peer.wire.closed == (1008, "SlowConsumer")


@pytest.mark.promise(
    "Hold under hostile conditions", "what is refused before it is a request is counted by door and code"
)
def test_refused_inputs_are_counted_by_door_and_code() -> None:
    broker = Broker(limits=Limits(message_max=100))
    peer, socket = broker.control(), broker.subscribe("a")
    for bad in (b"{", b'{"type":"ping","a":1,"a":2}', b'{"type":"ping","a":1e999}'):
        peer.send(bad + b"\n")
    peer.say(type_="ping", reqId=1)
    socket.send(b'{"credit":1,"a":[' + b"1," * 100 + b"1]}")
    broker.subscribe("a").send(b"{")
    broker.run()
    assert broker.runtime.inputs_refused == {
        ("control", "InvalidJSON"): 3, ("websocket", "TooLarge"): 1, ("websocket", "InvalidJSON"): 1,
    }  # fmt: skip
