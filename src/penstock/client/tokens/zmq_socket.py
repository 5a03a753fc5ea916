"""One ZeroMQ socket on an event loop, read in bursts. It interprets no message.

ZeroMQ's own asyncio sockets make a future per message, which costs more than the message. Here the loop watches the socket's file
descriptor, which is edge-triggered: it only signals that something happened. All messages are then received in one burst and passed on as
a list. Because an edge can be consumed too early, a burst that reached its limit, and every send, is followed by another check.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import msgspec
import zmq
from zmq.utils.monitor import recv_monitor_message

from penstock.core.errors import PenstockError, Refusal

BURST = 256
"""The most messages received in one turn of the loop."""
RECEIVE_HWM = 10_000
"""The most unread messages; beyond it the relay's socket drops, and the MAC chain shows the gap."""
SEND_HWM = 1_000
"""The most messages in flight to the relay: no more than a publisher keeps for sending again."""
MESSAGE_MAX = 2 * 1024 * 1024
"""The most bytes of a message from a relay: twice what a relay accepts from a publisher."""
LINGER_MS = 1_000
"""How long sent messages may take to leave after their socket is closed."""
RECONNECT_MS, RECONNECT_LONGEST_MS = 50, 2_000
HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS = 5_000, 15_000
"""Detect a connection that died without being closed."""

Parts = Sequence[bytes]


class Curve(msgspec.Struct, frozen=True):
    """CURVE keys of an encrypted connection, each 40 characters of Z85: the relay's public key and your own pair."""

    server: str
    public: str
    secret: str

    def __repr__(self) -> str:
        return f"Curve(server={self.server!r}, public={self.public!r})"


class ZmqSocket:
    """A connected ZeroMQ socket."""

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
        """`arrived` gets each burst; `moved` is called when sending may continue, `linked` when the connection is up or lost."""
        self._loop = asyncio.get_running_loop()
        self._arrived = arrived
        self._moved = moved
        self._linked = linked
        self._look: asyncio.Handle | None = None
        self._is_paused = False
        self.is_closed = False
        self._socket = _open(kind, curve)
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
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
        """Send without waiting; false when the socket accepts nothing."""
        try:
            self._socket.send_multipart(parts, zmq.NOBLOCK)
        except zmq.Again:
            return False
        finally:
            if self._arrived is not None:
                self._look_soon()
        return True

    def pause(self) -> None:
        """Stop receiving."""
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        self._look_soon()

    def look(self) -> None:
        """Receive what arrived, and report when sending may continue."""
        self._look = None
        if self.is_closed:
            return
        # Reading the events lets ZeroMQ process its commands and resets the descriptor.
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
        """Read the monitor: the connection is up or lost."""
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


def monotonic_us() -> int:
    """The clock of composers and verifiers."""
    return time.monotonic_ns() // 1000


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
        socket.set(zmq.IMMEDIATE, 1)  # queue nothing for a relay that is not connected: messages stay here, in order
    if curve is not None:
        socket.curve_serverkey = curve.server.encode()
        socket.curve_publickey = curve.public.encode()
        socket.curve_secretkey = curve.secret.encode()
    return socket


@cache
def _context(_pid: int) -> zmq.Context[Any]:
    """One context per process. At exit, sent messages get a moment to leave."""
    context: zmq.Context[Any] = zmq.Context()
    atexit.register(context.destroy, LINGER_MS)
    return context
