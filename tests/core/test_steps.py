"""Many or large control lines: handled over several turns, in their order, while the connection is not read."""

from __future__ import annotations

import time

import msgspec
import pytest

from penstock.core.limits import Limits
from penstock.core.records import Record
from penstock.core.steps import CHUNK_MAX, STEP_COST
from tests.dialects.courier.talking import Broker, Peer, codes, envelope, line
from tests.hostile_json import plain, shapes

RATIO = 12


def enqueues(count: int, payload: str = "x" * 400) -> bytes:
    lines = [line(type_="enqueue", to="q", reqId=n, env=envelope(f"e{n}", payload=payload)) for n in range(count)]
    return b"".join(lines)


def large(payload: bytes, count: int, req_id: int = 1) -> bytes:
    envelopes = [msgspec.json.encode(envelope(f"a{n}", payload=msgspec.Raw(payload))) for n in range(count)]
    return b'{"type":"enqueue","to":"q","reqId":%d,"env":[%b]}\n' % (req_id, b",".join(envelopes))


def turns(peer: Peer, data: bytes) -> list[float]:
    """The CPU time of each turn that the data takes."""
    peer.send(data)
    times: list[float] = []
    while peer.broker.scheduler._soon:
        began = time.thread_time()
        peer.broker.scheduler._soon.popleft()()
        times.append(time.thread_time() - began)
    return times


def test_a_message_of_many_lines_takes_several_turns_and_keeps_its_order() -> None:
    broker = Broker()
    peer = broker.control()
    data = enqueues(1_000)
    assert len(data) > CHUNK_MAX
    peer.send(data)
    assert len(broker.machine.channels["q"].live) < 500, "one step only"
    peer.send(line(type_="enqueue", to="q", reqId="last", env=envelope("last")))
    broker.run()
    answers = peer.heard()
    assert [answer["reqId"] for answer in answers] == [*range(1_000), "last"]
    assert [answer["result"]["seq"] for answer in answers] == [*range(1, 1_002)]


def test_a_request_in_steps_holds_back_the_lines_after_it() -> None:
    broker = Broker()
    peer = broker.control()
    data = large(plain(3_000), 100)
    peer.send(data + line(type_="stats", stream="q", reqId=2) + line(type_="redrive", stream="q", reqId=3))
    broker.run()
    assert [(answer["reqId"], answer["type"]) for answer in peer.heard()] == [(1, "ok"), (2, "ok"), (3, "error")]


def test_costly_requests_of_one_read_take_several_turns() -> None:
    broker = Broker()
    peer = broker.control()
    peer.send(b"".join(line(type_="stats", stream="q", reqId=n) for n in range(200)))
    assert len(peer.heard()) < 100, "two turns at most"
    broker.run()
    assert [answer["reqId"] for answer in peer.heard()][-1] == 199


def test_a_redrive_is_finished_when_its_connection_closes() -> None:
    broker = Broker()
    peer = broker.control()
    letters = [Record(f"e{number}", "t", b'{"headers":{}}') for number in range(2 * STEP_COST + 1)]
    broker.machine.enqueue(broker.now, "dlq/q", letters)
    broker.runtime.schedule_turn()
    broker.run()
    peer.send(line(type_="redrive", stream="q", max=100_000))
    while not broker.machine.channels["dlq/q"].held:
        broker.scheduler._soon.popleft()()
    peer.gone()
    broker.run()
    assert len(broker.machine.channels["q"].ready) == len(letters) and not broker.machine.channels["dlq/q"].live


def test_what_one_read_of_a_socket_brings_is_handled_at_once() -> None:
    broker = Broker()
    peer = broker.control()
    peer.send(enqueues(450))
    assert len(broker.machine.channels["q"].live) == 450
    broker.run()
    assert not any(peer.wire.holds)


def test_while_lines_wait_the_connection_is_not_read() -> None:
    peer = Broker().control()
    peer.send(enqueues(1_000))
    peer.broker.run()
    assert peer.wire.holds == [True, False]


def test_an_array_becomes_visible_at_once_after_all_of_its_checks() -> None:
    broker = Broker()
    peer = broker.control()
    peer.send(large(plain(2_000), 300))
    peer.send(line(type_="stats", stream="q", reqId=2))
    assert "q" not in broker.machine.channels
    broker.run()
    one, two = peer.heard()
    assert len(one["result"]["ids"]) == 300
    assert two["result"]["depth"] == 300


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (large(b'{"a":1,"a":2}', 2_000), "InvalidJSON"),
        (large(b"[" * 80 + b"]" * 80, 1_000), "InvalidJSON"),
        (large(b"1", Limits().batch_max + 1), "InvalidRequest"),
        (b'{"type":"enqueue","to":"q","reqId":1,"env":[%b]}\n' % b",".join([b"1"] * 300_000), "InvalidRequest"),
        (b'{"type":"ack","reqId":1,"id":[%b]}\n' % b",".join([b'""'] * 500_000), "TooLarge"),
        (b'{"type":"enqueue","to":"q","reqId":1,"env":%b}\n' % (b"[" * 70_000 + b"]" * 70_000), "InvalidJSON"),
    ],
)
def test_a_large_line_is_refused_by_its_request_and_the_next_is_served(data: bytes, code: str) -> None:
    peer = Broker().control()
    peer.send(data + line(type_="hello", version="v1", reqId=2))
    peer.broker.run()
    frames = peer.heard()
    assert codes(frames) == [(1, code)]
    assert frames[-1]["reqId"] == 2


def test_a_peer_that_leaves_leaves_nothing_to_handle() -> None:
    broker = Broker()
    peer = broker.control()
    peer.send(enqueues(1_000))
    taken = len(broker.machine.channels["q"].live)
    peer.gone()
    assert len(broker.machine.channels["q"].live) == taken


@pytest.mark.promise("Benchmarks and robustness", "no control line holds the loop for much longer than plain lines do")
@pytest.mark.parametrize("name", ["numbers", "keys", "depth", "deep objects", "escapes", "surrogates", "long string"])
def test_no_turn_costs_much_more_than_one_of_plain_lines(name: str) -> None:
    def longest(payload: bytes) -> float:
        return min(max(turns(Broker().control(), large(payload, 200))) for _ in range(2))

    assert longest(shapes(2_000)[name]) < RATIO * longest(plain(2_000))
