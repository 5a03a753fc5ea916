"""Participants of a space on plain sockets: they join, open streams and read, many in one process and none of them waiting for another."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Sequence

import msgspec

from penstock.bench.fanout_frames import PONG, TEXT, Tally, message

BUFFER_BYTES = 4 * 1024 * 1024
AT_ONCE = 50
"""Participants that join, or ask for streams, side by side: the others read meanwhile what they are told of it."""
PATIENCE_S = 60.0
"""How long a group of them may take."""
LOOK_S = 0.05
_UPGRADE = (
    b"GET /ws HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
)
_END = b"\r\n\r\n"


def name(number: int) -> str:
    return f"p{number}"


def token(number: int) -> str:
    return f"t-p{number}"


class Peer:
    """One participant: its connection and what came over it."""

    def __init__(self, number: int, host: str, port: int, block: int) -> None:
        self.name = name(number)
        self.is_in = False
        self.stream_id: str | None = None
        self.tally = Tally(block)
        self.sock = socket.create_connection((host, port), PATIENCE_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.sendall(_UPGRADE % port)
        self._token = token(number)
        self._request = f"open-{self.name}-{time.monotonic_ns()}"
        self._rest = self._answer()
        self.sock.setblocking(False)

    def _answer(self) -> bytes:
        """Read the answer to the upgrade; what came behind it belongs to the WebSocket."""
        got = b""
        while _END not in got:
            more = self.sock.recv(4096)
            if not more:
                raise ConnectionError(f"the server closed the connection after {got[:200]!r}")
            got += more
        if not got.startswith(b"HTTP/1.1 101"):
            raise ConnectionError(f"no WebSocket: {got[:200]!r}")
        return got.partition(_END)[2]

    def join(self, space: str) -> None:
        self._say({"type": "join", "space": space, "token": self._token, "participantId": self.name})

    def ask(self, target: Sequence[str]) -> None:
        """Ask for a stream; nobody named means everybody."""
        payload = {"direction": "upload", "content_type": "application/octet-stream"}
        more = {"target": list(target)} if target else {}
        self._say({"id": self._request, "kind": "stream/request", "payload": {**payload, **more}})

    def close_stream(self) -> None:
        self._say({"kind": "stream/close", "payload": {"stream_id": self.stream_id}})

    def _say(self, fields: dict[str, object]) -> None:
        fields = fields if "type" in fields else {"protocol": "mew/v0.4", **fields}
        self.sock.sendall(message(TEXT, msgspec.json.encode(fields)))

    def read(self, buffer: bytearray) -> bool:
        """Read once what is there; whether that was anything. An error that the space tells is an error here."""
        kept = len(self._rest)
        buffer[:kept] = self._rest
        try:
            got = self.sock.recv_into(memoryview(buffer)[kept:])
        except BlockingIOError:
            return False
        if not got:
            raise ConnectionError(f"the server closed the connection of {self.name}")
        end = kept + got
        at = self.tally.take(buffer, end)
        self._rest = bytes(buffer[at:end])
        if self.tally.texts or self.tally.pings or self.tally.closed is not None:
            self._hear()
        return True

    def _hear(self) -> None:
        for text in self.tally.texts:
            if b'"system/error"' in text:
                raise ValueError(f"{self.name} was told {text[:400].decode(errors='replace')}")
            if not self.is_in and b'"system/welcome"' in text:
                self.is_in = True
            if self.stream_id is None and b'"stream/open"' in text and self._request.encode() in text:
                self.stream_id = msgspec.json.decode(text)["payload"]["stream_id"]
        self.tally.texts.clear()
        for ping in self.tally.pings:
            self.sock.sendall(message(PONG, ping))
        self.tally.pings.clear()
        if self.tally.closed is not None:
            raise ConnectionError(
                f"{self.name} was closed: {self.tally.closed[:200].decode(errors='replace')}"
            )


class Crowd:
    """Participants that one process plays. Numbers are their names: `p7`."""

    def __init__(self, host: str, port: int, space: str, block: int = 0) -> None:
        self.peers: list[Peer] = []
        self.buffer = bytearray(BUFFER_BYTES)
        self._host, self._port, self._space = host, port, space
        self._block = block
        self._poll = select.epoll()
        self._by_fd: dict[int, Peer] = {}

    def join(self, numbers: Sequence[int]) -> None:
        for first in range(0, len(numbers), AT_ONCE):
            made = [Peer(number, self._host, self._port, self._block) for number in numbers[first:][:AT_ONCE]]
            for peer in made:
                self._by_fd[peer.sock.fileno()] = peer
                self._poll.register(peer.sock, select.EPOLLIN)
                peer.join(self._space)
            self.peers += made
            self._until(made, lambda peer: peer.is_in, "a welcome")

    def open(self, targets: Sequence[Sequence[str]]) -> None:
        """A stream of each participant, in order, to those whom its entry names."""
        for first in range(0, len(self.peers), AT_ONCE):
            asking = self.peers[first:][:AT_ONCE]
            for peer, target in zip(asking, targets[first:][:AT_ONCE], strict=True):
                peer.ask(target)
            self._until(asking, lambda peer: peer.stream_id is not None, "a `stream/open`")

    def read(self, wait_s: float) -> bool:
        """Read once from everybody who has something; whether anybody had."""
        ready = self._poll.poll(wait_s, max(len(self.peers), 1))
        for number, _ in ready:
            self._by_fd[number].read(self.buffer)
        return bool(ready)

    def _until(self, peers: Sequence[Peer], is_done: Callable[[Peer], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not all(is_done(peer) for peer in peers):
            if time.monotonic() > deadline:
                raise ValueError(f"{what} did not come within {PATIENCE_S:.0f} s")
            self.read(LOOK_S)
