"""The subscribers of many inboxes: they ack what they read, and fail on what is refused or out of order."""

from __future__ import annotations

import json
import socket
from contextlib import closing

import pytest

from penstock.bench.growth.loads import InboxReceiver
from penstock.bench.queue.loads import QueueJob


@pytest.fixture
def peer():
    """A receiver of two inboxes, and the server's end of its connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        receiver = InboxReceiver(QueueJob(port=listener.getsockname()[1], rate=1), range(2))
        with closing(receiver.sock), listener.accept()[0] as server:
            yield receiver, server.makefile("rb")


def deliver(inbox: int, seq: int) -> bytes:
    line = {"type": "deliver", "subId": str(inbox), "seq": seq}
    return json.dumps(line | {"env": {"id": f"e{inbox}-{seq}", "payload": {"t": "1"}}}).encode() + b"\n"


def test_a_receiver_is_ready_when_each_subscription_is_answered(peer):
    receiver, server = peer
    asked = [json.loads(server.readline()) for _ in range(2)]
    assert [line["stream"] for line in asked] == ["agents/bench-0/inbox", "agents/bench-1/inbox"]
    receiver.received(b'{"type":"ok","reqId":0}\n')
    assert not receiver.is_ready
    receiver.received(b'{"type":"ok","reqId":1}\n')
    assert receiver.is_ready


def test_a_receiver_acks_what_one_read_brought_of_each_subscription(peer):
    receiver, server = peer
    receiver.received(deliver(0, 7) + deliver(1, 1)[:20])
    receiver.received(deliver(1, 1)[20:] + deliver(0, 8))
    receiver.received(deliver(1, 2) + deliver(1, 3))
    acks = [json.loads(server.readline()) for _ in range(6)][2:]
    acked = [(line["subId"], line["id"]) for line in acks]
    assert acked == [("0", ["e0-7"]), ("1", ["e1-1"]), ("0", ["e0-8"]), ("1", ["e1-2", "e1-3"])]
    assert receiver.acked == len(receiver.latencies) == 5


def test_a_receiver_fails_on_a_gap_and_on_a_refusal(peer):
    receiver, _ = peer
    receiver.received(deliver(0, 1))
    with pytest.raises(ValueError, match="out of order: 3 after 1"):
        receiver.received(deliver(0, 3))
    with pytest.raises(ValueError, match="the server sent `error`: no"):
        receiver.received(b'{"type":"error","detail":"no"}\n')
