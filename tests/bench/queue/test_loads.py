"""The clients of the queue's loads: they count what arrives in pieces, and fail on what is refused or out of order."""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack

import pytest

from penstock.bench.harness.load import import_role
from penstock.bench.queue.loads import ControlReceiver, ControlSender, HttpConnection, QueueJob

pytestmark = pytest.mark.usefixtures("opened")


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


@pytest.fixture
def port(listener):
    return listener.getsockname()[1]


@pytest.fixture
def opened(monkeypatch):
    """Closes the sockets that a test has opened."""
    with ExitStack() as stack:
        connect = socket.create_connection
        monkeypatch.setattr(socket, "create_connection", lambda *given: stack.enter_context(connect(*given)))
        yield


def test_a_sender_counts_confirmations_and_fails_on_an_error_that_is_cut(port):
    sender = ControlSender(port)
    sender.received(b'{"type":"ok","reqId":1}\n{"type":"o')
    sender.received(b'k","reqId":2}\n')
    assert sender.confirmed == 2
    sender.received(b'{"type":"err')
    with pytest.raises(ConnectionError, match="the server refused"):
        sender.received(b'or","code":"StreamFull"}\n')


def deliver(*seqs):
    """A line with a batch of envelopes."""
    env = [{"id": f"e{seq}", "payload": {"t": "1"}} for seq in seqs]
    return json.dumps({"type": "deliver", "env": env, "seq": list(seqs)}).encode() + b"\n"


def test_a_receiver_acks_all_of_one_read_together(listener, port):
    receiver = ControlReceiver(QueueJob(port=port, stream="s", batch=2))
    peer, _ = listener.accept()
    with peer, peer.makefile("rb") as lines:
        assert json.loads(lines.readline())["stream"] == "s"
        receiver.received(deliver(1, 2) + deliver(3, 4) + b'{"type":')
        assert receiver.acked == 4 and json.loads(lines.readline())["id"] == ["e1", "e2", "e3", "e4"]


@pytest.mark.parametrize("seqs", [(1, 1), (2, 3), (1, 3)])
def test_deliveries_that_come_twice_or_out_of_order_fail(port, seqs):
    with pytest.raises(ValueError, match="out of order"):
        ControlReceiver(QueueJob(port=port, batch=2)).received(deliver(*seqs))


def test_an_http_answer_may_come_in_pieces_and_must_be_200(port):
    connection = HttpConnection(port)
    connection.sent_ns = 1
    connection.received(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab")
    assert connection.sent_ns == 1 and connection.latencies == []
    connection.received(b"cd")
    assert connection.sent_ns == 0 and len(connection.latencies) == 1
    with pytest.raises(ValueError, match="the server answered 429"):
        connection.received(b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n")


def test_the_peers_commands_say_their_length():
    assert import_role("redis_streams").Adds("s", 300, "t").make(0, 2, 1).count(b"$300\r\n") == 2
    assert import_role("no_such_peer") is None
