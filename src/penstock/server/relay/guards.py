"""Bounds of the relay's process: the connections of its sockets, so that it never runs out of descriptors, and its resident memory.

libzmq accepts every connection, and ends the process when a Unix socket accepts one and no descriptor is left. It reports
each connection on a monitor socket, and accepts no more while `UNREAD` reports of a socket wait: so many descriptors stay free. Above the
bound the guard shuts the newest connection down, and libzmq closes it. libzmq also closes one whose handshake takes more than 30 s.

Messages that wait inside libzmq have a bound by count, not by bytes: of publishers that send faster than the relay reads, of subscribers
that do not read. Disconnecting a peer drops them. Publishers and readers reconnect, register, send again and resume on their own. The
server restarts a relay that ends, with its registrations.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Container
from contextlib import suppress
from typing import Any, Literal, TypeAlias

import zmq

from penstock.server.engine.admission import connections_of, descriptor_limit
from penstock.server.engine.process_memory import resident_bytes, return_free_memory

EVENTS = zmq.Event.ACCEPTED | zmq.Event.DISCONNECTED | zmq.Event.CLOSED
UNREAD = 1_001
"""Reports of one socket that wait: libzmq's own bound at its end, and one at ours."""
_EVENT = struct.Struct("=Hi")
"""The first frame of an event: its number, and the descriptor of the connection."""


class ConnectionGuard:
    """The connections of all sockets that it watches."""

    def __init__(self, connections_max: int, poller: zmq.Poller) -> None:
        self._max = connections_max
        self._poller = poller
        self._monitors: dict[zmq.Socket[Any], zmq.Socket[Any]] = {}
        """The monitor of each socket."""
        self._open: dict[int, None] = {}
        """Descriptors."""
        self.cut = 0
        """Connections that were shut down."""

    def watch(self, watched: zmq.Socket[Any]) -> None:
        """Watch a socket, before it is bound."""
        address = f"inproc://connections-{id(self)}-{id(watched)}"
        watched.monitor(address, EVENTS)
        monitor = self._monitors[watched] = watched.context.socket(zmq.PAIR)
        monitor.rcvhwm = 1
        monitor.connect(address)
        self._poller.register(monitor, zmq.POLLIN)

    def unwatch(self, watched: zmq.Socket[Any]) -> None:
        """Forget a socket that closes next."""
        monitor = self._monitors.pop(watched, None)
        if monitor is not None:
            self._poller.unregister(monitor)
            self._drain(monitor)  # or libzmq may wait for us
            watched.monitor(None, 0)
            monitor.close(0)

    def check(self, ready: Container[Any] | None = None) -> None:
        """Take what the monitors that are ready report; by default all of them."""
        for monitor in self._monitors.values():
            if ready is None or monitor in ready:
                self._drain(monitor)

    def _drain(self, monitor: zmq.Socket[Any]) -> None:
        with suppress(zmq.Again):
            while True:
                event, descriptor = _EVENT.unpack(monitor.recv_multipart(zmq.NOBLOCK)[0])
                self._take(event, descriptor)

    def _take(self, event: int, descriptor: int) -> None:
        self._open.pop(descriptor, None)
        if event != zmq.Event.ACCEPTED:
            return
        self._open[descriptor] = None
        limit = connections_of(descriptor_limit())
        if len(self._open) > min(self._max, max(limit - 2 * UNREAD, limit // 8)):
            self.cut += 1
            with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
                connection.shutdown(socket.SHUT_RDWR)


CALM_US = 5_000_000
"""How long the memory must stay under the bound after a reopening; otherwise the process ends."""

FREE_MAX = 128 * 1024 * 1024
"""Resident memory above that of held messages; above it the relay returns free memory after each compaction, about 10 ms."""

Step: TypeAlias = Literal["continue", "reopen", "end"]


class MemoryGuard:
    """Keeps the resident memory under a bound: return free memory, then disconnect all peers, then end the process."""

    def __init__(self, resident_max: int = sys.maxsize) -> None:
        self._max = resident_max
        self._until_us = 0
        """A bound that is passed before this time ends the process."""
        self.resident = 0
        self.reopened = 0

    def check(self, now_us: int) -> Step:
        """What to do now. Below the bound it costs about 10 us."""
        self.resident = resident_bytes()
        if self.resident > self._max:
            return_free_memory()
            self.resident = resident_bytes()
        if self.resident <= self._max:
            return "continue"
        if now_us < self._until_us:
            return "end"
        self._until_us = now_us + CALM_US
        self.reopened += 1
        return "reopen"
