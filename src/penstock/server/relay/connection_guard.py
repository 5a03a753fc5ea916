"""Bounds the connections of the relay's sockets, so that the process never runs out of descriptors.

libzmq accepts every connection, and ends the process when a Unix socket accepts one and no descriptor is left. It reports
each connection on a monitor socket. Above the bound the guard shuts the newest one down, and libzmq closes it. A connection that
never finishes its handshake is closed by libzmq after 30 s; others stay for as long as their peer.
"""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress
from typing import Any

import zmq

from penstock.server.engine.admission import connections_of, descriptor_limit

EVENTS = zmq.Event.ACCEPTED | zmq.Event.DISCONNECTED | zmq.Event.CLOSED
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
        monitor = self._monitors[watched] = watched.get_monitor_socket(EVENTS)
        self._poller.register(monitor, zmq.POLLIN)

    def unwatch(self, watched: zmq.Socket[Any]) -> None:
        """Forget a socket that closes next."""
        monitor = self._monitors.pop(watched, None)
        if monitor is not None:
            self._poller.unregister(monitor)
            watched.disable_monitor()

    def check(self, ready: dict[Any, int]) -> None:
        """Take what the monitors report."""
        for monitor in [each for each in self._monitors.values() if each in ready]:
            with suppress(zmq.Again):
                while True:
                    event, descriptor = _EVENT.unpack(monitor.recv_multipart(zmq.NOBLOCK)[0])
                    self._take(event, descriptor)

    def _take(self, event: int, descriptor: int) -> None:
        self._open.pop(descriptor, None)
        if event != zmq.Event.ACCEPTED:
            return
        self._open[descriptor] = None
        if len(self._open) > min(self._max, connections_of(descriptor_limit())):
            self.cut += 1
            with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
                connection.shutdown(socket.SHUT_RDWR)
