"""WebSockets that follow a topic: the first message, rejections, and sockets that outlast the hub."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.core.clock import Now
from penstock.server.relay.websocket_hub import RelayHub, RelaySession

NO_RUNTIME = cast(Any, None)
TOPIC = "0" * 64


def test_a_socket_may_leave_after_the_hub_is_closed_and_none_may_join(tmp_path: Path) -> None:
    async def leave() -> tuple[int, str] | None:
        hub = RelayHub(NO_RUNTIME, f"ipc://{tmp_path}/relay.sock")
        first, second = RelaySession(hub), RelaySession(hub)
        first.topic = second.topic = b"0" * 64
        hub.join(first, None)
        hub.close()
        hub.leave(first)
        assert hub._listeners == {}
        hub.join(second, None)
        assert hub._listeners == {}
        return second.closing

    assert asyncio.run(leave()) == (1001, "Draining")


class Hub:
    """Remembers who joined."""

    def __init__(self) -> None:
        self.joined: list[bytes | None] = []

    def join(self, session: RelaySession, mark: bytes | None) -> None:
        self.joined.append(mark)


def session_after(*messages: bytes) -> tuple[RelaySession, Hub]:
    hub = Hub()
    session = RelaySession(cast(Any, hub))
    for message in messages:
        session.receive(Now(1, 1), message)
    return session, hub


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (b"no json", "InvalidJSON"),
        (b"\xff\xfe", "InvalidJSON"),
        (b"[]", "InvalidRequest"),
        (b'{"topic": 5}', "InvalidRequest"),
        (b'{"topic": "short"}', "InvalidRequest"),
        (b'{"topic": "%s", "resume": "zz"}' % TOPIC.encode(), "InvalidRequest"),
        (b'{"topic": "%s", "resume": "00"}' % TOPIC.encode(), "InvalidRequest"),
        (b'{"topic": "%s", "more": 1}' % TOPIC.encode(), "InvalidRequest"),
    ],
)
def test_a_bad_first_message_is_refused_and_joins_nothing(message: bytes, code: str) -> None:
    session, hub = session_after(message)
    assert session.closing is not None and session.closing[1] == code
    assert hub.joined == [] and session.topic is None
    session.receive(Now(2, 2), b'{"topic": "%s"}' % TOPIC.encode())
    assert hub.joined == []


@pytest.mark.parametrize("size", [16, 32])
def test_a_mark_is_a_block_or_chunk_mac(size: int) -> None:
    session, hub = session_after(b'{"topic": "%s", "resume": "%s"}' % (TOPIC.encode(), b"ab" * size))
    assert hub.joined == [b"\xab" * size] and session.topic == TOPIC.encode()


def test_a_socket_names_one_topic_only() -> None:
    first = b'{"topic": "%s"}' % TOPIC.encode()
    session, hub = session_after(first, first)
    assert hub.joined == [None]
    assert session.closing is not None and session.closing[1] == "InvalidRequest"


def test_a_socket_without_a_first_message_times_out() -> None:
    session, _ = session_after()
    session.overdue()
    assert session.closing is not None and session.closing[1] == "Timeout"
    named, _ = session_after(b'{"topic": "%s"}' % TOPIC.encode())
    named.overdue()
    assert named.closing is None
