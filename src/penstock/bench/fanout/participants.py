"""Participants of a space on plain sockets: they join, open streams and count frames, many in one process."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from penstock.bench.fanout.frames import PONG, TEXT, FrameTally, message
from penstock.bench.harness.drive import LoadSocket, SocketGroup

SPACE = "bench"
TOGETHER = 50  # participants that join or open streams at the same time; the others read meanwhile
_UPGRADE = (
    b"GET /ws HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
)


def name(number: int) -> str:
    return f"p{number}"


def token(number: int) -> str:
    return f"t-p{number}"


class ParticipantSocket(LoadSocket):
    """One participant: its connection and what it has received."""

    def __init__(self, number: int, port: int, block: int) -> None:
        super().__init__(port)
        self.name = name(number)
        self.is_joined = self._is_upgraded = False
        self.stream_id = ""
        self.tally = FrameTally(block)
        self._request = f"open-{self.name}-{time.monotonic_ns()}"
        self._rest = b""
        self._join = {"type": "join", "space": SPACE, "token": token(number), "participantId": self.name}
        self.send(_UPGRADE % port)

    def request_stream(self, target: Sequence[str]) -> None:
        """Open a stream; an empty target is every participant."""
        payload: dict[str, object] = {"direction": "upload", "content_type": "application/octet-stream"}
        payload |= {"target": list(target)} if target else {}
        self._send_envelope({"id": self._request, "kind": "stream/request", "payload": payload})

    def close_stream(self) -> None:
        self._send_envelope({"kind": "stream/close", "payload": {"stream_id": self.stream_id}})

    def _send_envelope(self, fields: dict[str, object]) -> None:
        self.send(message(TEXT, msgspec.json.encode({"protocol": "mew/v0.4", **fields})))

    def received(self, data: bytes) -> None:
        """Count frames. An error that the space sends is raised here."""
        data = self._rest + data
        if not self._is_upgraded:
            head, end, rest = data.partition(b"\r\n\r\n")
            if not end:
                self._rest = data
                return
            if not head.startswith(b"HTTP/1.1 101"):
                raise ConnectionError(f"no WebSocket: {data[:400]!r}")
            self._is_upgraded, data = True, rest
            self.send(message(TEXT, msgspec.json.encode(self._join)))
        tally = self.tally
        self._rest = data[tally.take(data) :]
        for text in tally.texts:
            if b'"system/error"' in text:
                raise ValueError(f"{self.name} received {text[:400].decode(errors='replace')}")
            self.is_joined = self.is_joined or b'"system/welcome"' in text
            if not self.stream_id and b'"stream/open"' in text and self._request.encode() in text:
                self.stream_id = msgspec.json.decode(text)["payload"]["stream_id"]
        tally.texts.clear()
        for ping in tally.pings:
            self.send(message(PONG, ping))
        tally.pings.clear()
        if tally.closed is not None:
            raise ConnectionError(f"{self.name} was closed: {tally.closed[:200].decode(errors='replace')}")


class ParticipantGroup(SocketGroup[ParticipantSocket]):
    """The participants that one process plays, by their numbers."""

    def __init__(self, port: int, numbers: Sequence[int], block: int = 0) -> None:
        super().__init__()
        for index, number in enumerate(numbers, 1):
            self.add(ParticipantSocket(number, port, block))
            if index % TOGETHER == 0 or index == len(numbers):
                self.wait(lambda member: member.is_joined, "a welcome")

    def open_streams(self, targets: Sequence[Sequence[str]]) -> None:
        """Open a stream of each participant, in order, to the targets of its entry."""
        for index, (member, target) in enumerate(zip(self.members, targets, strict=True), 1):
            member.request_stream(target)
            if index % TOGETHER == 0 or index == len(targets):
                opened = self.members[:index]
                self.wait(lambda member: bool(member.stream_id) or member not in opened, "a `stream/open`")  # noqa: B023 - called at once

    @property
    def received_count(self) -> int:
        return sum(member.tally.count for member in self.members)
