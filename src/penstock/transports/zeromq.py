"""ZeroMQ sockets: endpoints, file modes, CURVE keys and who may connect. Nothing here knows a message.

A socket in the file system is its owner's alone from the first moment, and one on TCP beyond this machine needs CURVE.
"""

from __future__ import annotations

import os
import tempfile
import threading
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import zmq
from zmq.utils import z85

from penstock.transports.zeromq_endpoints import endpoint_problem

IPC_MAX = 100
"""Bytes of a path that every system takes for a socket."""
SHORT_NAME = 22
"""Bytes of the name of a socket whose own path is too long, with the slash before it."""
LINGER_MS = 1_000
"""How long a socket that is closed may take to send what it has."""
HANDSHAKE_BACKLOG = 1_000
"""Peers whose keys wait to be looked up."""
ANYBODY = "*"
"""Among the allowed keys: any client that knows the server's public key."""
DOMAIN = b"penstock"
ZAP = "inproc://zeromq.zap.01"


class CurveKeys(msgspec.Struct, frozen=True):
    """A server's own keys, as 40 characters of Z85, and the public keys of those who may connect."""

    public: str
    secret: str
    allowed: tuple[str, ...] = ()


class EndpointError(Exception):
    """An endpoint that cannot be served; the message says what to do."""


def check(endpoint: str, curve: CurveKeys | None) -> None:
    """Reject an endpoint that other machines could reach without a key."""
    problem = endpoint_problem(endpoint, has_curve=curve is not None)
    if problem is not None:
        raise EndpointError(problem)


def short_ipc(path: Path) -> Path:
    """The path itself, or a short one elsewhere when it is too long for a socket: always the same for the same path."""
    if len(os.fsencode(path)) <= IPC_MAX:
        return path
    name = f"penstock-{os.getuid()}"
    place = Path(tempfile.gettempdir()) / name
    if len(os.fsencode(place)) > IPC_MAX - SHORT_NAME:
        place = Path("/tmp") / name
    place.mkdir(mode=0o700, exist_ok=True)
    if place.is_symlink() or place.stat().st_uid != os.getuid():
        raise EndpointError(f"`{place}` belongs to another user")
    place.chmod(0o700)
    return place / f"{sha256(os.fsencode(path)).hexdigest()[:16]}.sock"


def bind(socket: zmq.Socket[Any], endpoint: str, curve: CurveKeys | None) -> str:
    """Bind a socket; returns where it really is. Keys count for TCP, and for what is bound after them."""
    check(endpoint, curve)
    scheme, _, rest = endpoint.partition("://")
    if curve is not None and scheme == "tcp":
        socket.set(zmq.CURVE_SERVER, 1)
        socket.set(zmq.CURVE_SECRETKEY, curve.secret.encode())
        socket.set(zmq.ZAP_DOMAIN, DOMAIN)
    try:
        if scheme == "ipc":
            return _bind_path(socket, short_ipc(Path(rest)))
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        is_taken = error.errno == zmq.EADDRINUSE
        why = "another process serves it; stop it, or name another endpoint" if is_taken else error.strerror
        raise EndpointError(f"cannot serve `{endpoint}`: {why}") from error
    return socket.get_string(zmq.LAST_ENDPOINT).rstrip("\0")


def _bind_path(socket: zmq.Socket[Any], path: Path) -> str:
    """Bind a socket file that only its owner can open, from the start."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.exists() and not path.is_socket():  # libzmq removes what has the name, whatever it is
        raise EndpointError(f"`{path}` is there already and is no socket; name another path")
    before = os.umask(0o177)
    try:
        socket.bind(f"ipc://{path}")
    finally:
        os.umask(before)
    return f"ipc://{path}"


def reached(endpoint: str) -> str:
    """Where a client finds what was bound by this name: a long path has a short one."""
    scheme, _, rest = endpoint.partition("://")
    return f"ipc://{short_ipc(Path(rest))}" if scheme == "ipc" else endpoint


def end_context(context: zmq.Context[Any]) -> None:
    """End a context whose sockets are closed, once they have sent what they had.

    libzmq 4.3.5 never ends one whose peer disconnected in the middle of a message while its socket closed, so the wait is bounded.
    """
    ending = threading.Thread(target=context.term, name="zmq-term", daemon=True)
    ending.start()
    ending.join(2 * LINGER_MS / 1000)


class KeyGate:
    """Checks the keys of connecting peers, as a ZAP handler of libzmq; polled together with the sockets."""

    def __init__(self, context: zmq.Context[Any], curve: CurveKeys) -> None:
        self.socket: zmq.Socket[Any] = context.socket(zmq.ROUTER)
        self.socket.linger = 0
        self.socket.rcvhwm = HANDSHAKE_BACKLOG
        self.socket.bind(ZAP)
        self._anybody = ANYBODY in curve.allowed
        self._allowed = frozenset(key.encode() for key in curve.allowed)
        self.refused = 0

    def answer(self) -> None:
        """Answer all pending requests."""
        while True:
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._answer(frames)

    def _answer(self, frames: list[bytes]) -> None:
        at = frames.index(b"") + 1
        head, question = frames[:at], frames[at:]
        version, request = question[:2]
        key = b""
        if question[2] == DOMAIN and question[5] == b"CURVE" and len(question) == 7:
            key = z85.encode(question[6])
        if key and (self._anybody or key in self._allowed):
            answer = [b"200", b"OK", key, b""]
        else:
            self.refused += 1
            answer = [b"400", b"the key is not allowed", b"", b""]
        self.socket.send_multipart([*head, version, request, *answer])

    def close(self) -> None:
        self.socket.close()
