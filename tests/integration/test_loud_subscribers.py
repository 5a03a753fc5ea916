"""What subscribers can do to others at the relay's sockets: nothing, however loud they are."""

from __future__ import annotations

import os
import threading
from typing import Any

import zmq

from penstock.server.relay_service import BURST, REQUESTS
from tests.integration import token_peers as peers
from tests.integration.test_stream_service import PATIENCE_S, Running, Start, start

__all__ = ["start"]


def raw(run: Running) -> zmq.Socket[Any]:
    socket = run.context.socket(zmq.XSUB)
    socket.linger = 0
    socket.connect(run.pub)
    return socket


class Turns:
    """Holds the service's loop, and then notes at each of its turns how many requests it has looked at."""

    def __init__(self, run: Running) -> None:
        self.resumes: list[int] = []
        self._run = run
        self._held, self._released = threading.Event(), threading.Event()
        self._reader, self._writer = os.pipe()
        os.write(self._writer, b"x")
        run.service.watch(self._reader, self._turn)
        run.wait(self._held.is_set)

    def _turn(self) -> None:
        self._held.set()
        self._released.wait(PATIENCE_S)
        self.resumes.append(self._run.relay.totals.resumes)

    def release(self) -> None:
        self._released.set()

    def close(self) -> None:
        self._run.stop()
        os.close(self._reader)
        os.close(self._writer)


def test_requests_without_end_leave_publishers_their_turn(start: Start) -> None:
    run = start()
    publisher = run.publisher()
    subscriber = run.subscriber(publisher.topic)
    run.subscribed(publisher.topic)
    loud = raw(run)
    loud.send(b"\x01" + peers.make_topic())
    run.wait(lambda: run.relay.early)
    turns = Turns(run)
    request = peers.resume(publisher.topic, b"?" * 32)
    for _ in range(BURST):
        loud.send(b"\x01\x02" + request)
        loud.send(b"\x00\x02" + request)
    turns.release()
    run.wait(lambda: run.relay.totals.resumes == BURST)
    steps = [after - before for before, after in zip(turns.resumes, turns.resumes[1:], strict=False)]
    assert max(steps) <= REQUESTS
    frame = publisher.chunk(b"still heard")
    while (parts := subscriber.receive()) != [publisher.topic + frame]:
        assert parts is not None, "the publisher was not heard"
        assert parts[1][:1] == b"\x03"  # the answer to the others' requests
    turns.close()
