"""One ZeroMQ socket on an event loop, drained in bursts. Nothing here knows a message.

ZeroMQ's own asyncio sockets make a future for each message, which costs more than the message. Here the loop watches the socket's file
descriptor, which says only that something happened; what arrived is then taken in one go and handed over as a list. A descriptor
that was read too early stays silent, so a burst that was cut short, and a send where something may arrive, is followed by another look.
"""

from __future__ import annotations

import asyncio
import atexit
import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import msgspec
import zmq
from zmq.utils.monitor import recv_monitor_message

from penstock.core.errors import PenstockError, Refusal

BURST = 256
"""Messages taken in one turn of the loop."""
RECEIVE_HWM = 10_000
"""Messages that wait here unread; then the relay's side drops, and the chain shows it."""
SEND_HWM = 1_000
"""Messages on their way to the relay: no more than a publisher keeps to send them again."""
MESSAGE_MAX = 2 * 1024 * 1024
"""Bytes of a message that we take from a relay: twice what a relay takes from a publisher."""
LINGER_MS = 1_000
"""How long what was sent may take to leave, once its socket is closed."""
RECONNECT_MS, RECONNECT_LONGEST_MS = 50, 2_000
HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS = 5_000, 15_000
"""How a link that is dead without having been closed is found out."""

Parts = Sequence[bytes]


class Curve(msgspec.Struct, frozen=True):
    """Keys of an encrypted link, each as 40 characters of Z85: the relay's public one, and a pair of one's own."""

    server: str
    public: str
    secret: str

    def __repr__(self) -> str:
        return f"Curve(server={self.server!r}, public={self.public!r})"


class ZmqSocket:
    """A connected socket."""

    def __init__(
        self,
        kind: int,
        endpoint: str,
        curve: Curve | None,
        *,
        arrived: Callable[[list[list[bytes]]], None] | None = None,
        moved: Callable[[], None] | None = None,
        linked: Callable[[bool], None] | None = None,
    ) -> None:
        """`arrived` gets what came, `moved` is called when sending may go on, `linked` when the link is there, or lost."""
        self._loop = asyncio.get_running_loop()
        self._arrived = arrived
        self._moved = moved
        self._linked = linked
        self._look: asyncio.Handle | None = None
        self._is_paused = False
        self.is_closed = False
        self._socket = _open(kind, curve)
        self._monitor = self._socket.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
        )
        try:
            self._socket.connect(endpoint)
        except zmq.ZMQError as error:
            self._stop(0)
            refusal = Refusal("InvalidRequest", f"cannot connect to `{endpoint}`: {error.strerror}")
            raise PenstockError(refusal) from error
        self._descriptors = (int(self._socket.get(zmq.FD)), int(self._monitor.get(zmq.FD)))
        self._loop.add_reader(self._descriptors[0], self.look)
        self._loop.add_reader(self._descriptors[1], self._watch)
        self._loop.call_soon(self._watch)

    def send(self, parts: Parts) -> bool:
        """Send now; false when that is not possible."""
        try:
            self._socket.send_multipart(parts, zmq.NOBLOCK)
        except zmq.Again:
            return False
        finally:
            if self._arrived is not None:
                self._look_soon()
        return True

    def pause(self) -> None:
        """Leave what arrives where it is."""
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        self._look_soon()

    def look(self) -> None:
        """Take what arrived, and say when sending may go on."""
        self._look = None
        if self.is_closed:
            return
        # Asking makes the socket do its work, and the descriptor quiet.
        events = _events(self._socket)
        if self._arrived is not None and events & zmq.POLLIN and not self._is_paused:
            self._drain()
        if self._moved is not None and not self.is_closed and events & zmq.POLLOUT:
            self._moved()

    def _drain(self) -> None:
        receive, nowait = self._socket.recv_multipart, zmq.NOBLOCK
        burst: list[list[bytes]] = []
        try:
            while len(burst) < BURST:
                burst.append(receive(nowait))
        except zmq.Again:
            pass
        else:
            self._look_soon()
        if burst and self._arrived is not None:
            self._arrived(burst)

    def _look_soon(self) -> None:
        if self._look is None and not self.is_closed:
            self._look = self._loop.call_soon(self.look)

    def _watch(self) -> None:
        """What the socket tells of its link."""
        while not self.is_closed and _events(self._monitor) & zmq.POLLIN:
            event = recv_monitor_message(self._monitor, zmq.NOBLOCK)["event"]
            if self._linked is not None and event != zmq.EVENT_MONITOR_STOPPED:
                self._linked(event == zmq.EVENT_HANDSHAKE_SUCCEEDED)

    def close(self, linger_ms: int = 0) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        if self._look is not None:
            self._look.cancel()
        if not self._loop.is_closed():
            for descriptor in self._descriptors:
                self._loop.remove_reader(descriptor)
        self._stop(linger_ms)

    def _stop(self, linger_ms: int) -> None:
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(linger_ms)


def _events(socket: zmq.Socket[bytes]) -> int:
    return int(socket.get(zmq.EVENTS))


def _open(kind: int, curve: Curve | None) -> zmq.Socket[bytes]:
    socket: zmq.Socket[bytes] = _context(os.getpid()).socket(kind)
    socket.set(zmq.RCVHWM, RECEIVE_HWM)
    socket.set(zmq.SNDHWM, SEND_HWM)
    socket.set(zmq.MAXMSGSIZE, MESSAGE_MAX)
    socket.set(zmq.RECONNECT_IVL, RECONNECT_MS)
    socket.set(zmq.RECONNECT_IVL_MAX, RECONNECT_LONGEST_MS)
    socket.set(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    socket.set(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
    if kind == zmq.PUSH:
        socket.set(zmq.IMMEDIATE, 1)  # what cannot be sent stays with us, in order
    if curve is not None:
        socket.curve_serverkey = curve.server.encode()
        socket.curve_publickey = curve.public.encode()
        socket.curve_secretkey = curve.secret.encode()
    return socket


@cache
def _context(_pid: int) -> zmq.Context[Any]:
    """One for each process. At its end, what was sent gets a moment to leave."""
    context: zmq.Context[Any] = zmq.Context()
    atexit.register(context.destroy, LINGER_MS)
    return context
