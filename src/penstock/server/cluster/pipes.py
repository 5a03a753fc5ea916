"""Pipes between two nodes: an ordered stream of bytes each way over subjects of NATS, for a `CellLink`.

    Pen1 <kind> <pipe> <number> <mac> <payload>

A node listens at one subject, `pen.<cluster>.node.<name>`. A pipe begins with `hello` and `welcome`, in which each end names a nonce; its
key comes from both and from the secret of the cluster, so nothing that was recorded is good for another pipe. Frames are numbered. What is
forged or repeated is counted and dropped; a gap, or silence for `SILENT_S`, ends the pipe, because NATS delivers at most once. What the
peer has not confirmed is bounded by `WINDOW`: beyond it a slow node holds back its peer.
"""

from __future__ import annotations

import asyncio
import hmac
import struct
from collections import deque
from collections.abc import Callable
from typing import Any

from penstock.server.cells.link import CellLink

HELLO, WELCOME, DATA, END = range(4)
_HEAD = struct.Struct(">4sB16sQ16s")
"""Magic, kind, pipe, number, mac."""
_CONFIRMED = struct.Struct(">Q")
"""What a data frame begins with: the bytes that its sender has received."""
MAGIC = b"Pen1"
PIPE_BYTES = NONCE_BYTES = MAC_BYTES = 16
CHUNK = 256 * 1024
"""Bytes of a frame: a quarter of what a NATS server takes by default."""
WINDOW = 4 * 1024 * 1024
"""Bytes that may be on their way."""
BEAT_S = 1.0
SILENT_S = 5.0
"""A peer that says nothing for so long is gone."""
HALF_OPEN_MAX = 64
"""Pipes that have begun and shown no valid frame: anyone who may publish here can repeat an old hello. The oldest gives way."""


def signature(key: bytes, *parts: bytes) -> bytes:
    """The mac of these parts, whose lengths it covers."""
    text = b"".join([len(part).to_bytes(4, "big") + part for part in parts])
    return hmac.digest(key, text, "sha256")[:MAC_BYTES]


class NodePipe:
    """One end of a pipe: the transport of a `CellLink`."""

    def __init__(self, post: Callable[[bytes], None], pipe: bytes, key: bytes, *, is_opener: bool) -> None:
        self._post = post
        self.id = pipe
        self._key = key
        self._mine, self._theirs = (b">", b"<") if is_opener else (b"<", b">")
        self.is_opener = is_opener
        self.link: CellLink[Any] | None = None
        self._sent = self._seen = 0
        """Frames."""
        self._bytes_sent = self._bytes_confirmed = 0
        self._bytes_seen = self._bytes_said = 0
        self._waiting: deque[bytes] = deque()
        self._waiting_size = 0
        self._is_congested = False
        self.is_over = False
        self.is_proven = is_opener
        """Whether the peer has shown that it knows the key."""
        self.proven: Callable[[], None] = lambda: None
        """Called when it has."""
        self.forged = self.repeated = 0
        now_s = asyncio.get_running_loop().time()
        self.seen_s = self._said_s = now_s

    # The transport of a link

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        for start in range(0, len(data), CHUNK):
            self._waiting.append(bytes(view[start : start + CHUNK]))
        self._waiting_size += len(data)
        self._flush()

    def writelines(self, parts: list[bytes]) -> None:
        self.write(b"".join(parts))

    def is_closing(self) -> bool:
        return self.is_over

    def get_write_buffer_size(self) -> int:
        return self._waiting_size

    def get_extra_info(self, name: str) -> None:
        """There is no socket."""

    def close(self) -> None:
        self.end()

    abort = close

    # Frames

    def _flush(self) -> None:
        while self._waiting and self._bytes_sent - self._bytes_confirmed < WINDOW:
            chunk = self._waiting.popleft()
            self._waiting_size -= len(chunk)
            self._bytes_sent += len(chunk)
            self._frame(DATA, chunk)
        is_congested = bool(self._waiting)
        if is_congested != self._is_congested and self.link is not None:
            self._is_congested = is_congested
            (self.link.pause_writing if is_congested else self.link.resume_writing)()

    def _frame(self, kind: int, chunk: bytes = b"") -> None:
        if self.is_over:
            return
        self._sent += 1
        payload = _CONFIRMED.pack(self._bytes_seen) + chunk
        self._bytes_said = self._bytes_seen
        self._said_s = asyncio.get_running_loop().time()
        mac = signature(self._key, self._mine, bytes([kind]), self._sent.to_bytes(8, "big"), payload)
        self._post(_HEAD.pack(MAGIC, kind, self.id, self._sent, mac) + payload)

    def received(self, kind: int, number: int, mac: bytes, payload: bytes) -> None:
        """A frame for this end."""
        expected = signature(self._key, self._theirs, bytes([kind]), number.to_bytes(8, "big"), payload)
        if not hmac.compare_digest(mac, expected):
            self.forged += 1
            return
        if number <= self._seen:
            self.repeated += 1
            return
        if number != self._seen + 1 or kind != DATA or len(payload) < _CONFIRMED.size:
            self.end(tells=kind != END)
            return
        self._seen = number
        if not self.is_proven:
            self.is_proven = True
            self.proven()
        self.seen_s = asyncio.get_running_loop().time()
        self._bytes_confirmed = max(self._bytes_confirmed, min(_CONFIRMED.unpack_from(payload)[0], self._bytes_sent))
        chunk = payload[_CONFIRMED.size :]
        self._bytes_seen += len(chunk)
        if chunk and self.link is not None:
            self.link.data_received(chunk)
        if self._bytes_seen - self._bytes_said >= WINDOW // 4:
            self._frame(DATA)
        self._flush()

    def beat(self, now_s: float) -> None:
        """Called now and then: say that this end is there, and notice that the other is not."""
        if now_s - self.seen_s >= SILENT_S:
            self.end()
        elif now_s - self._said_s >= BEAT_S:
            self._frame(DATA)

    def end(self, *, tells: bool = True) -> None:
        """End the pipe, with all that uses it."""
        if self.is_over:
            return
        if tells:
            self._frame(END)
        self.is_over = True
        self._waiting.clear()
        self._waiting_size = 0
        if self.link is not None:
            self.link.connection_lost(None)


class Pipes:
    """The pipes of one node."""

    def __init__(
        self,
        cluster: str,
        node: str,
        secret: bytes,
        publish: Callable[[str, bytes], None],
        *,
        entropy: Callable[[int], bytes],
        opened: Callable[[str, NodePipe], None],
        accepted: Callable[[str, NodePipe], None],
    ) -> None:
        """`opened` and `accepted` get a pipe that is ready, with the name of its peer."""
        self._cluster = cluster
        self._node = node
        self._secret = secret
        self._publish = publish
        self._entropy = entropy
        self._opened = opened
        self._accepted = accepted
        self._pipes: dict[bytes, tuple[str, NodePipe]] = {}
        self._asked: dict[str, tuple[bytes, bytes, float]] = {}
        """Nodes that were said hello to: pipe, nonce, when."""
        self.dropped = 0
        """Frames of no pipe, and those that could not be read."""
        self.forged = 0
        self.repeated = 0

    def subject(self, node: str) -> str:
        return f"pen.{self._cluster}.node.{node}"

    def open(self, node: str) -> None:
        """Begin a pipe to a node, unless one is beginning."""
        now_s = asyncio.get_running_loop().time()
        asked = self._asked.get(node)
        if asked is not None and now_s - asked[2] < BEAT_S:
            return
        pipe, nonce = self._entropy(PIPE_BYTES), self._entropy(NONCE_BYTES)
        self._asked[node] = (pipe, nonce, now_s)
        self._say(node, HELLO, pipe, self._node.encode() + b" " + nonce.hex().encode())

    def _say(self, node: str, kind: int, pipe: bytes, payload: bytes) -> None:
        mac = self._sign(kind, pipe, self._node, node, payload)
        self._publish(self.subject(node), _HEAD.pack(MAGIC, kind, pipe, 0, mac) + payload)

    def _sign(self, kind: int, pipe: bytes, sender: str, receiver: str, payload: bytes) -> bytes:
        names = (self._cluster.encode(), sender.encode(), receiver.encode())
        return signature(self._secret, b"begin", bytes([kind]), pipe, *names, payload)

    def _key(self, opener: str, other: str, pipe: bytes, nonces: bytes) -> bytes:
        names = (self._cluster.encode(), opener.encode(), other.encode())
        return hmac.digest(self._secret, b"key" + signature(self._secret, *names, pipe, nonces), "sha256")

    def received(self, data: bytes) -> None:
        """A message at the subject of this node."""
        if len(data) < _HEAD.size:
            self.dropped += 1
            return
        magic, kind, pipe, number, mac = _HEAD.unpack_from(data)
        payload = data[_HEAD.size :]
        if magic != MAGIC:
            self.dropped += 1
        elif kind in (DATA, END):
            self._pass_on(kind, pipe, number, mac, payload)
        else:
            self._begin(kind, pipe, mac, payload)

    def _pass_on(self, kind: int, pipe: bytes, number: int, mac: bytes, payload: bytes) -> None:
        found = self._pipes.get(pipe)
        if found is None or len(payload) > _CONFIRMED.size + CHUNK:  # no node sends it: it is not worth a mac
            self.dropped += 1
            return
        _, end = found
        forged, repeated = end.forged, end.repeated
        end.received(kind, number, mac, payload)
        self.forged += end.forged - forged
        self.repeated += end.repeated - repeated
        if end.is_over:
            self._pipes.pop(pipe, None)

    def _begin(self, kind: int, pipe: bytes, mac: bytes, payload: bytes) -> None:
        name, _, said = payload.partition(b" ")
        peer = name.decode("ascii", errors="replace")
        if not hmac.compare_digest(mac, self._sign(kind, pipe, peer, self._node, payload)):
            self.forged += 1
            return
        if kind == HELLO:
            self._welcome(peer, pipe, said)
            return
        asked = self._asked.get(peer)
        mine, _, theirs = said.partition(b" ")
        if kind != WELCOME or asked is None or asked[0] != pipe or mine != asked[1].hex().encode():
            self.repeated += 1
            return
        del self._asked[peer]
        end = self._add(peer, pipe, self._key(self._node, peer, pipe, mine + b" " + theirs), is_opener=True)
        end.beat(end.seen_s + BEAT_S)  # the first frame proves to the peer that this hello was no repetition
        self._opened(peer, end)

    def _welcome(self, peer: str, pipe: bytes, nonce: bytes) -> None:
        """Answer a hello. It may be an old one: the key needs the new nonce, which is said to the peer alone."""
        if pipe in self._pipes:
            self.repeated += 1
            return
        half_open = [end for _, end in self._pipes.values() if not end.is_proven]
        if len(half_open) >= HALF_OPEN_MAX:
            self.repeated += 1  # a node would have shown a frame by now
            half_open[0].end()
            del self._pipes[half_open[0].id]
        nonces = nonce + b" " + self._entropy(NONCE_BYTES).hex().encode()
        end = self._add(peer, pipe, self._key(peer, self._node, pipe, nonces), is_opener=False)
        end.proven = lambda: self._accept(peer, end)
        self._say(peer, WELCOME, pipe, self._node.encode() + b" " + nonces)

    def _accept(self, peer: str, end: NodePipe) -> None:
        """A hello was no repetition: what this peer began before, it has given up."""
        for name, other in list(self._pipes.values()):
            if name == peer and other is not end and not other.is_opener:
                other.end()
        self._accepted(peer, end)

    def _add(self, peer: str, pipe: bytes, key: bytes, *, is_opener: bool) -> NodePipe:
        subject = self.subject(peer)
        end = NodePipe(lambda data: self._publish(subject, data), pipe, key, is_opener=is_opener)
        self._pipes[pipe] = (peer, end)
        return end

    def beat(self) -> None:
        """Called now and then."""
        now_s = asyncio.get_running_loop().time()
        for pipe, (_, end) in list(self._pipes.items()):
            end.beat(now_s)
            if end.is_over:
                self._pipes.pop(pipe, None)

    def close(self) -> None:
        for _, end in list(self._pipes.values()):
            end.end()
        self._pipes.clear()
