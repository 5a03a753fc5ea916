"""ZeroMQ sockets: endpoints, file modes, CURVE keys and who may connect. Nothing here knows a message.

A socket in the file system is its owner's alone from the first moment, and one on TCP beyond this machine needs CURVE.
"""

from __future__ import annotations

import os
import tempfile
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import msgspec
import zmq
from zmq.auth.thread import ThreadAuthenticator

IPC_MAX = 100
"""Bytes of a path that every system takes for a socket."""
LINGER_MS = 1_000
"""How long a socket that is closed may take to send what it has."""


class CurveKeys(msgspec.Struct, frozen=True):
    """A server's own keys, as 40 characters of Z85, and the public keys of those who may connect."""

    public: str
    secret: str
    allowed: tuple[str, ...] = ()
    """Nobody named means everybody who knows the server's public key."""


class EndpointError(Exception):
    """An endpoint that cannot be served; the message says what to do."""


def is_local(endpoint: str) -> bool:
    """Whether only this machine reaches an endpoint."""
    scheme, _, rest = endpoint.partition("://")
    if scheme in ("ipc", "inproc"):
        return True
    host = rest.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def check(endpoint: str, curve: CurveKeys | None) -> None:
    """Refuse what would let anybody in from elsewhere."""
    scheme, slashes, rest = endpoint.partition("://")
    if not slashes or scheme not in ("tcp", "ipc", "inproc") or not rest:
        raise EndpointError(f"`{endpoint}` is no endpoint; write tcp://HOST:PORT or ipc://PATH")
    if scheme == "tcp" and not rest.rpartition(":")[2].replace("*", "0").isdecimal():
        raise EndpointError(f"`{endpoint}` has no port; write tcp://HOST:PORT")
    if not is_local(endpoint) and curve is None:
        raise EndpointError(
            f"`{endpoint}` would serve other machines without encryption; make keys with "
            "`penstock token curve-keygen` and name them under `relay.curve`, or bind 127.0.0.1"
        )


def short_ipc(path: Path) -> Path:
    """The path itself, or a short one elsewhere when it is too long for a socket: always the same for the same path."""
    if len(os.fsencode(path)) <= IPC_MAX:
        return path
    place = Path(tempfile.gettempdir()) / f"penstock-{os.getuid()}"
    place.mkdir(mode=0o700, exist_ok=True)
    if place.stat().st_uid != os.getuid():
        raise EndpointError(f"`{place}` belongs to somebody else")
    place.chmod(0o700)
    return place / f"{sha256(os.fsencode(path)).hexdigest()[:16]}.sock"


def bind(socket: zmq.Socket[Any], endpoint: str, curve: CurveKeys | None) -> str:
    """Bind a socket; returns where it really is."""
    check(endpoint, curve)
    scheme, _, rest = endpoint.partition("://")
    if curve is not None and scheme == "tcp":
        socket.curve_server = True
        socket.curve_publickey = curve.public.encode()
        socket.curve_secretkey = curve.secret.encode()
        socket.zap_domain = b"penstock"
    try:
        if scheme == "ipc":
            path = short_ipc(Path(rest))
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            before = os.umask(0o177)
            try:
                socket.bind(f"ipc://{path}")
            finally:
                os.umask(before)
            return f"ipc://{path}"
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        hint = "; another process serves it" if error.errno == zmq.EADDRINUSE else ""
        raise EndpointError(f"cannot serve `{endpoint}`: {error.strerror}{hint}") from error
    bound: bytes = socket.get(zmq.LAST_ENDPOINT)
    return bound.rstrip(b"\0").decode()


def guard(context: zmq.Context[Any], curve: CurveKeys | None) -> ThreadAuthenticator | None:
    """Somebody at the gate who knows whose keys are allowed; stop it at the end."""
    if curve is None:
        return None
    keeper = ThreadAuthenticator(context)
    keeper.start()
    keeper.configure_curve_callback(domain="penstock", credentials_provider=_Allowed(curve.allowed))
    return keeper


class _Allowed:
    """Whose public keys may connect."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        self._keys = frozenset(key.encode() for key in keys)

    def callback(self, domain: str, key: bytes) -> bool:
        return not self._keys or zmq.utils.z85.encode(key) in self._keys
