"""A publisher and a subscriber of token streams, written only from the protocol's description.

They import nothing of Penstock: messages are built and MACs are checked by hand.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
import time
from typing import Any

import zmq
from nacl.signing import SigningKey

Node = Any
"""None, bytes, a text, a list of structs, or a struct: its data and its pointers."""


class Body:
    """A struct."""

    def __init__(self, data: bytes, *pointers: Node) -> None:
        self.data = data
        self.pointers = list(pointers)


def words(root: Body, *, canonical: bool = False) -> bytes:
    """One segment: the root pointer, then everything in the order it is pointed to."""
    out = bytearray(8)

    def cut(body: Body) -> tuple[bytes, list[Node]]:
        data, pointers = body.data, list(body.pointers)
        if canonical:
            while data[-8:] == bytes(8) and data:
                data = data[:-8]
            while pointers and pointers[-1] is None:
                pointers.pop()
        return data, pointers

    def fill(start: int, data: bytes, pointers: list[Node]) -> None:
        out[start : start + len(data)] = data
        for index, node in enumerate(pointers):
            place(start + len(data) + 8 * index, node)

    def place(at: int, node: Node) -> None:
        if node is None:
            return
        start = len(out)
        offset = (start - at - 8) // 8
        if isinstance(node, Body):
            data, pointers = cut(node)
            out.extend(bytes(len(data) + 8 * len(pointers)))
            struct.pack_into("<iHH", out, at, offset << 2, len(data) // 8, len(pointers))
            fill(start, data, pointers)
        elif isinstance(node, list):
            cuts = [cut(each) for each in node]
            data_size = max((len(data) for data, _ in cuts), default=0)
            count = max((len(pointers) for _, pointers in cuts), default=0)
            size = data_size + 8 * count
            out.extend(bytes(8 + size * len(node)))
            struct.pack_into("<II", out, at, offset << 2 | 1, (size * len(node) // 8) << 3 | 7)
            struct.pack_into("<iHH", out, start, len(node) << 2, data_size // 8, count)
            for index, (data, pointers) in enumerate(cuts):
                fill(start + 8 + size * index, data.ljust(data_size, b"\0"), pointers)
        else:
            data = node if isinstance(node, bytes) else node.encode() + b"\0"
            out.extend(data.ljust((len(data) + 7) // 8 * 8, b"\0"))
            struct.pack_into("<II", out, at, offset << 2 | 1, len(data) << 3 | 2)

    place(0, root)
    return bytes(out)


def framed(root: Body) -> bytes:
    segment = words(root)
    return struct.pack("<II", 0, len(segment) // 8) + segment


def token(text: str) -> bytes:
    """A framed StreamPayload."""
    return framed(Body(bytes(8), "s", text))


def chunk(topic: bytes, data: bytes, mac: bytes, prev: bytes) -> bytes:
    return framed(Body(b"", topic + b"\0", data, mac, prev or None))


def block(prev: bytes, texts: list[str]) -> bytes:
    return framed(Body(b"", prev, [Body(bytes(8), "s", text) for text in texts]))


def resume(topic: bytes, mac: bytes) -> bytes:
    return framed(Body(b"", topic + b"\0", mac))


def registration(
    topic: bytes, key: SigningKey, *, seconds: int = 300, nonce: bytes | None = None, claims: bool = True
) -> bytes:
    """A framed SignedEnvelope around a StreamRegister."""
    exp = int(time.time()) + seconds
    payload = framed(Body(struct.pack("<q", exp), topic + b"\0"))
    identity = Body(bytes(8), Body(b"", "system"))
    scopes = [Body(b"", "publish", "stream", topic + b"\0")]
    granted = Body(struct.pack("<qqq", exp, int(time.time()), 0), "svc", scopes) if claims else None
    times = struct.pack("<Qq", 0, time.time_ns() // 1_000_000)
    envelope = Body(times, identity, payload, None, nonce or secrets.token_bytes(16), granted)
    signature = key.sign(words(envelope, canonical=True)).signature
    return framed(Body(b"", envelope, signature, key.verify_key.encode()))


def make_topic() -> bytes:
    return secrets.token_hex(32).encode()


class Sockets(zmq.Context[Any]):
    """A context that keeps its sockets until it is destroyed."""

    kept: list[zmq.Socket[Any]]

    def __init__(self) -> None:
        super().__init__()
        self.__dict__["kept"] = []

    def socket(self, *words: Any, **more: Any) -> zmq.Socket[Any]:
        socket = super().socket(*words, **more)
        self.kept.append(socket)
        return socket


class Publisher:
    """Pushes chunks or blocks, each chained to the one before."""

    def __init__(self, context: zmq.Context[Any], endpoint: str, topic: bytes, key: bytes) -> None:
        self.socket = context.socket(zmq.PUSH)
        self.socket.linger = 0
        self.socket.set(zmq.RECONNECT_IVL, 20)
        self.socket.connect(endpoint)
        self.topic = topic
        self.key = key
        self.mac = b""

    def register(self, signer: SigningKey, **more: Any) -> None:
        self.socket.send(registration(self.topic, signer, **more))

    def chunk(self, data: bytes) -> bytes:
        mac = hmac.digest(self.key, (self.mac or self.topic) + data, hashlib.sha256)
        frame = chunk(self.topic, data, mac, self.mac)
        self.mac = mac
        self.socket.send(frame)
        return frame

    def block(self, texts: list[str]) -> list[bytes]:
        frame = block(self.mac or self.topic[:16], texts)
        self.mac = hmac.digest(self.key, (self.mac or self.topic) + frame, hashlib.sha256)[:16]
        frames = [self.topic, frame, self.mac]
        self.socket.send_multipart(frames)
        return frames


class Subscriber:
    """Listens to one topic and follows its chain of chunks."""

    def __init__(self, context: zmq.Context[Any], endpoint: str, topic: bytes, key: bytes = b"") -> None:
        self.socket = context.socket(zmq.SUB)
        self.socket.linger = 0
        self.socket.set(zmq.RECONNECT_IVL, 20)
        self.socket.connect(endpoint)
        self.socket.subscribe(topic)
        self.topic = topic
        self.key = key
        self.mac = b""
        self.gone: list[bytes] = []

    def receive(self, seconds: float = 10.0) -> list[bytes] | None:
        """One message, or None when none came in time."""
        return self.socket.recv_multipart() if self.socket.poll(seconds * 1000) else None

    def follow(self, data_at: slice, seconds: float = 10.0) -> bytes | None:
        """The data of the next chunk that continues the chain; others are passed over."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            frames = self.receive(left)
            if frames is None:
                return None
            if len(frames) == 2:
                self.gone.append(frames[1])
                continue
            data = frames[0][64:][data_at]
            mac = hmac.digest(self.key, (self.mac or self.topic) + data, hashlib.sha256)
            if mac in frames[0]:
                self.mac = mac
                return data
        return None

    def ask_again(self, mark: bytes) -> None:
        """Ask for what followed a mark, on the subscriber's own socket."""
        request = b"\x02" + resume(self.topic, mark)
        self.socket.subscribe(request)
        self.socket.unsubscribe(request)
