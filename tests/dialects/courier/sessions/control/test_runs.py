"""Control v1 as a stream of lines: splitting, invalid lines, and no input breaks a session."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.core.limits import Limits
from penstock.core.queue.policy import Policy
from penstock.core.records import Record
from penstock.core.scopes import OPERATOR
from penstock.dialects.courier.sessions.control.frames import FRAME_NAMES, FRAME_WEIGHT
from penstock.dialects.courier.sessions.control.runs import RUN_MAX
from penstock.dialects.courier.sessions.control.session import WEIGHT_MAX
from tests.dialects.courier.talking import TS, Broker, HandJournal, codes, envelope, filled, line


class TestLines:
    @pytest.mark.parametrize(
        "bad",
        [
            b"nonsense",
            b"{",
            b"[]",
            b"null",
            b"1",
            b'"x"',
            b'{"type":"ping"} x',
            b"\xff",
            b"\x00",
            b"[" * 5_000,
        ],
    )
    def test_a_malformed_line_is_answered_and_the_next_one_heard(self, bad: bytes) -> None:
        peer = Broker().control()
        peer.send(bad + b"\n" + line(type_="ping", reqId=1))
        peer.broker.run()
        error, pong = peer.heard()
        assert (error["type"], error["reqId"], error["code"]) == ("error", "req", "InvalidJSON")
        assert error["detail"] and error["status"] == 400
        assert pong["reqId"] == 1

    @pytest.mark.parametrize(
        "twice",
        [
            b'{"type":"grant","n":1,"n":5,"reqId":1}',
            b'{"type":"enqueue","to":"a","to":"b","env":{},"reqId":1}',
        ],
    )
    def test_a_key_given_twice_in_a_frame_is_refused(self, twice: bytes) -> None:
        peer = Broker().control()
        peer.send(twice + b"\n")
        peer.broker.run()
        assert codes(peer.heard()) == [(1, "InvalidJSON")]

    def test_empty_lines_and_carriage_returns_are_passed_over(self) -> None:
        peer = Broker().control()
        peer.send(b'\n\r\n{"type":"ping","reqId":1}\r\n\n')
        peer.broker.run()
        assert [frame["reqId"] for frame in peer.heard()] == [1]

    @pytest.mark.parametrize("frame", [{"type_": "fly", "reqId": 5}, {"reqId": 5}, {"type_": 7, "reqId": 5}])
    def test_an_unknown_operation_is_named(self, frame: dict[str, Any]) -> None:
        (error,) = Broker().control().say(**frame)
        assert (error["reqId"], error["code"]) == (5, "UnknownOp")
        assert "enqueue" in error["hint"]

    @pytest.mark.parametrize("frame", [b'{"type":"enqueue"}', b'{"type":"enqueue","to":"a","to":"b","env":{}}'])
    def test_an_enqueue_that_cannot_be_read_is_answered_by_its_name(self, frame: bytes) -> None:
        peer = Broker().control()
        peer.send(frame + b"\n")
        peer.broker.run()
        assert [error["reqId"] for error in peer.heard()] == ["enqueue"]

    def test_unknown_operations_and_bad_envelopes_leave_the_connection_open(self) -> None:
        """A gateway sends what its users wrote, and one of them must not end it for all."""
        peer = Broker(limits=Limits(strikes_max=3)).control()
        half = msgspec.json.encode({"type": "enqueue", "to": "a", "env": envelope("1"), "reqId": 7})
        half = half.replace(b'{"n":1}', rb'"\ud800"')
        for _ in range(21):
            assert codes(peer.say(type_="fly")) == [("req", "UnknownOp")]
            peer.send(half + b"\n")
            peer.broker.run()
            assert codes(peer.heard()) == [(7, "InvalidJSON")]
        assert peer.wire.closed is None
        assert len(peer.say(type_="ping", reqId=1)) == 1

    def test_too_many_lines_without_a_request_close_it(self) -> None:
        peer = Broker(limits=Limits(strikes_max=3)).control()
        for number in range(4):
            assert peer.wire.closed is None, number
            peer.send(b"GET / HTTP/1.1\n")
            peer.broker.run()
            assert codes(peer.heard()) == [("req", "InvalidJSON")]
        assert peer.wire.closed is not None
        code, reason = peer.wire.closed
        assert code == 1007 and reason.startswith("InvalidJSON: 4 strikes, the last: not a JSON object")
        assert peer.say(type_="ping", reqId=1) == []

    def test_strikes_decay(self) -> None:
        broker = Broker(limits=Limits(strikes_max=3, strike_decay_ms=1_000))
        peer = broker.control()
        for _ in range(3):
            peer.send(b"x\n")
        for _ in range(20):
            broker.advance(1_000)
            peer.send(b"x\n")
        broker.run()
        assert peer.wire.closed is None
        peer.send(b"x\n")
        broker.run()
        assert peer.wire.closed is not None

    @pytest.mark.promise("Queue protocols", "A line that is too long is refused, and the connection stays open")
    @pytest.mark.parametrize("size", [1, 7, 1000])
    def test_a_line_over_the_bound_is_dropped_up_to_its_end(self, size: int) -> None:
        peer = Broker(limits=Limits(frame_max=100)).control()
        long = line(type_="ping", reqId="long", pad="x" * 300)
        data = long + line(type_="ping", reqId=1) + long + b"\n" + line(type_="ping", reqId=2)
        for start in range(0, len(data), size):
            peer.send(data[start : start + size])
        peer.broker.run()
        assert [(frame["reqId"], frame.get("code")) for frame in peer.heard()] == [
            ("long", "TooLarge"), (1, None), ("long", "TooLarge"), (2, None),
        ]  # fmt: skip
        assert peer.wire.closed is None

    def test_a_line_that_never_ends_costs_no_memory(self) -> None:
        peer = Broker(limits=Limits(frame_max=100)).control()
        for _ in range(50):
            peer.send(b"{" * 99)
        peer.broker.run()
        assert codes(peer.heard()) == [("req", "TooLarge")]
        assert peer.session._lines._parts == []

    def test_what_came_before_a_line_that_is_too_long_is_answered_first(self) -> None:
        peer = Broker(limits=Limits(frame_max=300)).control()
        peer.send(line(type_="enqueue", to="a", env=envelope("1")) + b"x" * 301 + b"\n")
        peer.broker.run()
        heard = peer.heard()
        assert [(frame["type"], frame["reqId"]) for frame in heard] == [("ok", "enqueue"), ("error", "req")]

    def test_a_line_may_come_in_pieces_up_to_the_bound(self) -> None:
        peer = Broker(limits=Limits(frame_max=100)).control()
        whole = b'{"type":"ping","reqId":"%b"}' % (b"x" * 70)
        for byte in whole + b"\n":
            peer.send(bytes([byte]))
        peer.broker.run()
        assert len(peer.heard()) == 1

    def test_a_flood_is_cut_off(self) -> None:
        peer = Broker(limits=Limits(control_rate=5)).control()
        peer.send(line(type_="ping", reqId=1) * 6)
        peer.broker.run()
        assert codes(peer.heard()) == [("req", "RateLimited")]
        assert peer.wire.closed == (1008, "RateLimited")

    def test_the_flood_gate_opens_every_second(self) -> None:
        peer = Broker(limits=Limits(control_rate=5)).control()
        for _ in range(4):
            peer.send(line(type_="ping", reqId=1) * 5)
            peer.broker.advance(1_000)
        assert len(peer.heard()) == 20


CONVERSATION = b"".join(
    [
        line(type_="hello", version="v1"),
        line(type_="subscribe", stream="a", credit=3, reqId=1),
        line(type_="enqueue", to="a", env=envelope("1"), reqId=2),
        line(type_="enqueue", to="a", env=envelope("2")),
        line(type_="enqueue", to="a", env=envelope("1"), reqId=3),
        line(type_="enqueue", to="a", env={"id": "bad"}, reqId=4),
        line(type_="enqueue", to="a", env=envelope("1", payload="other"), reqId=5),
        line(type_="enqueue", to="b", env=envelope("é😀"), reqId=6),
        b"nonsense\n",
        line(type_="ack", id="nobody"),
        line(type_="ack", id=["x", "y"], reqId=7),
        line(type_="pull", stream="b", reqId=8),
        line(type_="stats", stream="none", reqId=9),
        line(type_="ping", reqId=10),
    ]
)


def converse(chunks: list[bytes], *, run_between: bool = False) -> bytes:
    broker = Broker()
    peer = broker.control()
    for chunk in chunks:
        peer.send(chunk)
        if run_between:
            broker.run()
    broker.run()
    return peer.raw()


class TestChunks:
    def test_cut_anywhere_the_answers_are_the_same_bytes(self) -> None:
        whole = converse([CONVERSATION])
        assert whole.count(b"\n") == 17
        for cut in range(1, len(CONVERSATION)):
            assert converse([CONVERSATION[:cut], CONVERSATION[cut:]]) == whole, cut

    def test_byte_by_byte_too(self) -> None:
        assert converse([bytes([byte]) for byte in CONVERSATION]) == converse([CONVERSATION])

    def test_a_run_of_singles_equals_lines_sent_one_by_one(self) -> None:
        def answers(chunks: list[bytes]) -> tuple[bytes, dict[str, Any]]:
            broker = Broker(Policy(max_depth=5))
            peer = broker.control()
            peer.say(type_="enqueue", to="a", env=envelope("0"))
            for chunk in chunks:
                peer.send(chunk)
            broker.run()
            return peer.raw(), broker.counts("a")

        lines = [
            line(type_="enqueue", to="a", env=envelope(id_, payload=note), reqId=n)
            for n, (id_, note) in enumerate(
                [("1", 0), ("2", 0), ("1", 0), ("1", 5), ("3", 0), ("4", 0), ("5", 0), ("2", 0), ("6", 0)]
            )
        ]
        together, one_by_one = answers([b"".join(lines)]), answers(lines)
        assert together[0] == one_by_one[0]
        assert together[1] == one_by_one[1]

    @pytest.mark.parametrize(
        "bad",
        [
            line(type_="enqueue", to="a", env={"id": "bad"}, reqId="bad"),
            b'{"type":"enqueue","to":"a","reqId":"bad","env":{"id":"e","id":"f","ts":"%b","type":"t","payload":1}}\n'
            % TS.encode(),
            b'{"type":"enqueue","to":"a","reqId":"bad","env":{"id":"e","ts":"%b","type":"t","payload":1e999}}\n'
            % TS.encode(),
            b'{"type":"ping","x":[1\n2],"reqId":1}\n',  # one line each is no JSON, both with a comma between them are
            line(type_="ping", reqId="other"),
        ],
    )
    @pytest.mark.parametrize("places", [(0,), (63,), (64,), (5, 6, 70, 140)])
    def test_a_long_run_with_bad_lines_equals_lines_sent_one_by_one(self, bad: bytes, places: tuple[int, ...]) -> None:
        def answers(chunks: list[bytes]) -> tuple[bytes, dict[str, Any]]:
            broker = Broker()
            peer = broker.control()
            peer.say(type_="enqueue", to="a", env=envelope("first"))
            for chunk in chunks:
                peer.send(chunk)
            broker.run()
            return peer.raw(), broker.counts("a")

        lines = [line(type_="enqueue", to="a", env=envelope(f"e-{n}"), reqId=n) for n in range(150)]
        for place in places:
            lines[place] = bad
        assert answers([b"".join(lines)]) == answers(lines)

    def test_refused_envelopes_of_a_run_count_for_several_lines(self) -> None:
        broker = Broker()
        peer = broker.control()
        bad = line(type_="enqueue", to="a", env={"id": "bad"})
        peer.send(bad * WEIGHT_MAX)
        assert peer.session.answers.is_full, "the rest waits for another turn"
        assert len(peer.session.out) <= 2 * (WEIGHT_MAX // FRAME_WEIGHT + RUN_MAX), "of the chunk, and of what waited"
        broker.run()
        assert len(peer.heard()) == WEIGHT_MAX

    def test_a_run_of_acks_equals_acks_sent_one_by_one(self) -> None:
        def answers(joined: bool) -> tuple[bytes, dict[str, Any]]:
            broker = Broker()
            filled(broker, "a", "1", "2", "3")
            peer = broker.control()
            peer.say(type_="subscribe", stream="a", credit=3)
            lines = [line(type_="ack", id=id_) for id_ in ["1", "nobody", "1", ["2", "3"], "2"]]
            for chunk in [b"".join(lines)] if joined else lines:
                peer.send(chunk)
            broker.run()
            return peer.raw(), broker.counts("a")

        assert answers(True) == answers(False)
        assert answers(True)[1]["q.ack"] == 3

    def test_a_run_of_lines_in_one_chunk_is_one_commit(self) -> None:
        journal = HandJournal()
        broker = Broker(journal=journal)
        peer = broker.control()
        peer.send(b"".join(line(type_="enqueue", to="a", env=envelope(str(n))) for n in range(100)))
        broker.run()
        assert journal.appended == [100]


@pytest.mark.promise("Foundations", "answers keep the order of the requests")
def test_answers_keep_the_order_of_requests_whatever_they_wait_for() -> None:
    journal = HandJournal()
    broker = Broker(journal=journal)
    peer = broker.control()
    peer.send(line(type_="enqueue", to="a", env=envelope("1"), reqId=1))
    broker.run()
    peer.send(line(type_="ping", reqId=2) + line(type_="fly", reqId=3))
    peer.send(line(type_="enqueue", to="a", env=envelope("2"), reqId=4) + line(type_="ping", reqId=5))
    broker.run()
    assert peer.heard() == []
    journal.commit()
    broker.run()
    assert [frame["reqId"] for frame in peer.heard()] == [1, 2, 3]
    journal.commit()
    broker.run()
    assert [frame["reqId"] for frame in peer.heard()] == [4, 5]


FIELD_VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 5), st.floats(), st.text(max_size=5), st.lists(st.text(max_size=2)),
    st.just("a"), st.just(envelope()), st.just([envelope()]),
)  # fmt: skip
FIELD_NAMES = st.sampled_from(
    ["to", "env", "stream", "id", "n", "view", "op", "subId", "leaseId", "delayMs", "credit", "max", "waitMs",
     "kind", "payload", "token", "version", "reqId", "state", "ms", "requeue", "auto", "batch", "leaseMs"]
)  # fmt: skip


@pytest.mark.promise("Invariants", "10: bad input changes nothing")
@settings(max_examples=300)
@example([b'{"type":"hello","token":""}'])
@given(
    st.lists(
        st.binary(max_size=40)
        | st.builds(
            lambda kind, fields: msgspec.json.encode({"type": kind, **fields}),
            st.sampled_from([*FRAME_NAMES, "fly"]),
            st.dictionaries(FIELD_NAMES, FIELD_VALUES, max_size=5),
        ),
        max_size=6,
    )
)
def test_no_line_breaks_a_session_and_no_error_changes_anything(lines: list[bytes]) -> None:
    broker = Broker()
    peer = broker.control()
    peer.say(type_="subscribe", stream="a", credit=1)
    for data in lines:
        before = broker.picture()
        peer.send(data.replace(b"\n", b" ") + b"\n")
        broker.run()
        heard = peer.heard()
        if peer.wire.closed is not None:  # and with it the subscription
            break
        if heard and all(frame["type"] == "error" for frame in heard):
            assert broker.picture() == before


def test_acks_before_a_close_all_count() -> None:
    broker = Broker()
    peer = broker.control()
    ids = [f"e{number}" for number in range(4_000)]
    broker.machine.enqueue(broker.now, "q", [Record(id_, "t", b"{}") for id_ in ids])
    broker.runtime.schedule_turn()
    broker.run()
    peer.say(type_="subscribe", stream="q", credit=len(ids))
    broker.run()
    assert broker.machine.channels["q"].leased == len(ids)
    peer.send(line(type_="ack", id=ids))
    peer.gone()
    broker.run()
    assert not broker.machine.channels["q"].live


def test_a_purge_that_waits_is_carried_out_although_the_peer_has_gone() -> None:
    journal = HandJournal()
    broker = Broker(journal=journal)
    peer = broker.control(OPERATOR)
    peer.send(line(type_="enqueue", to="a", env=envelope("z")) + line(type_="purge", stream="a"))
    peer.gone()
    broker.run()
    while journal.waiting:
        journal.commit()
        broker.run()
    assert not broker.machine.channels["a"].live and broker.machine.channels["a"].counters.purged == 1
