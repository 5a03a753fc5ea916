"""The simulated network between clients and the server: delays, fragments, slow readers, and cuts at any moment.

A `SimConnection` is one connection, both ends of it. To the runtime it is a wire, like those of `transports.transport`; to a client it
is something to write to and to be called back by. A byte stream is cut into pieces anywhere; a pipe of messages
(a WebSocket) keeps each one whole. Bytes keep their order, and a cut loses what is under way in both directions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Protocol

from penstock.testing.clock import Clock
from penstock.transports.transport import ConnectionPort, PongListener

HIGH_WATER = 1_024
"""Unread bytes at which the runtime is notified of congestion."""
LOW_WATER = 256
"""Unread bytes at which the congestion ends."""


class TrafficObserver(Protocol):
    """Sees all traffic; a world is one."""

    def arriving(self, pipe: SimConnection, data: bytes) -> Callable[[], None] | None:
        """Bytes reach the server; the returned function is called when the server has processed them."""

    def sent(self, pipe: SimConnection, messages: list[bytes]) -> None:
        """The server wrote messages."""


class SimConnection:
    """One simulated connection, with both of its ends."""

    def __init__(
        self, no: int, clock: Clock, dice: Random, watcher: TrafficObserver, *, framed: bool, latency_us: int
    ) -> None:
        self.no = no
        self.framed = framed
        self.endpoint: ConnectionPort | None = None
        """The server's side; None before it accepts and after it crashes."""
        self.on_data: Callable[[bytes], None] = lambda data: None
        self.on_close: Callable[[int, str], None] = lambda code, reason: None
        self.pace = 64 * 1024
        """The most bytes that the client reads at a time."""
        self.reading = True
        """Whether the client reads at all."""
        self.broken = False
        self.latency_us = latency_us
        self._clock = clock
        self._dice = dice
        self._watcher = watcher
        self._arrives_us = 0
        self._held = False
        self._inbox: deque[bytes] = deque()
        self._is_read_soon = False
        """Whether a read is scheduled."""
        self._outbox: deque[bytes] = deque()
        self.buffered = 0
        self.is_congested = False
        """Whether the runtime was notified of congestion."""
        self._pumping = False
        self._closing: tuple[int, str] | None = None

    # The client's side

    def write(self, data: bytes) -> None:
        """Send to the server: a message, or bytes that arrive in fragments."""
        if self.broken:
            return
        for piece in [data] if self.framed else self._pieces(data):
            self._arrives_us = max(self._arrives_us, self._clock.us + self._latency())
            self._clock.at(self._arrives_us, lambda piece=piece: self._arrive(piece))  # type: ignore[misc]

    def cut(self) -> None:
        """Break the connection: the client knows at once, the server after a delay."""
        if self.broken:
            return
        self._break(1006, "cut")
        self._clock.after(self._latency() * 5, self._lose)

    def pause(self) -> None:
        """Stop reading."""
        self.reading = False

    def resume(self) -> None:
        self.reading = True
        self._pump_soon()

    def pong(self) -> None:
        """Answer a ping of the server."""
        self._clock.after(self._latency(), self._pong_received)

    # The server's side: a wire

    def send(self, messages: list[bytes]) -> None:
        self._watcher.sent(self, messages)
        if self.broken or self._closing is not None:
            return
        self._outbox.extend(messages if self.framed else [b"".join(messages)])
        self.buffered += sum(map(len, messages))
        if self.buffered > HIGH_WATER and not self.is_congested and self.endpoint is not None:
            self.is_congested = True
            self.endpoint.congested(True)
        self._pump_soon()

    def hold(self, on: bool) -> None:
        self._held = on
        if not on:
            self._read_soon()

    def close(self, code: int, reason: str) -> None:
        """Close once everything written has been read."""
        if self._closing is None:
            self._closing = (code, reason)
        self._pump_soon()

    def abort(self) -> None:
        if not self.broken:
            self._break(1006, "aborted")
        self._clock.after(0, self._lose)

    def crash(self) -> None:
        """The server crashed: its side of the connection is gone."""
        self.endpoint = None
        if not self.broken:
            self._break(1006, "the server is gone")

    # Delivery

    def _latency(self) -> int:
        return self._dice.randint(self.latency_us // 10, self.latency_us)

    def _pieces(self, data: bytes) -> list[bytes]:
        pieces = []
        while data:
            size = self._dice.choice((7, 64, 512, 4096, 4096, 4096, 4096, 4096))
            cut = self._dice.randint(1, size)
            pieces.append(data[:cut])
            data = data[cut:]
        return pieces

    def _arrive(self, piece: bytes) -> None:
        if self.broken or self.endpoint is None or self._closing is not None:
            return
        self._inbox.append(piece)
        self._read_soon()

    def _pong_received(self) -> None:
        if not self.broken and isinstance(self.endpoint, PongListener):
            self.endpoint.pong_received()

    @property
    def is_over(self) -> bool:
        """Whether either side has ended the connection."""
        return self.broken or self._closing is not None

    def _read_soon(self) -> None:
        if self._inbox and not self._is_read_soon and not self._held:
            self._is_read_soon = True
            self._clock.after(0, self._read)

    def _read(self) -> None:
        """Pass on one piece: an event loop reads a connection once per turn, and other events happen in between."""
        self._is_read_soon = False
        if self._held or self.broken or self.endpoint is None or not self._inbox:
            return
        piece = self._inbox.popleft()
        done = self._watcher.arriving(self, piece)
        self.endpoint.received(piece)
        if done is not None:
            done()
        self._read_soon()

    def _pump_soon(self) -> None:
        if not self._pumping and not self.broken and self.reading:
            self._pumping = True
            self._clock.after(self._latency(), self._pump)

    def _pump(self) -> None:
        """Let the client read."""
        self._pumping = False
        if self.broken or not self.reading:
            return
        taken = self._take()
        if taken:
            if self.is_congested and self.buffered <= LOW_WATER:
                self.is_congested = False
                if self.endpoint is not None:
                    self.endpoint.congested(False)
            for data in taken:
                self.on_data(data)
        if self._outbox:
            self._pump_soon()
        elif self._closing is not None and not self.broken:
            self._break(*self._closing)
            self._clock.after(0, self._lose)

    def _take(self) -> list[bytes]:
        room = self.pace if self.framed else self._dice.randint(1, self.pace)
        taken = []
        while self._outbox and room > 0:
            data = self._outbox.popleft()
            if len(data) > room and not self.framed:
                self._outbox.appendleft(data[room:])
                data = data[:room]
            room -= len(data)
            self.buffered -= len(data)
            taken.append(data)
        return taken

    def _break(self, code: int, reason: str) -> None:
        self.broken = True
        self._outbox.clear()
        self._inbox.clear()
        self.buffered = 0
        self.on_close(code, reason)

    def _lose(self) -> None:
        endpoint = self.endpoint
        if endpoint is not None:
            self.endpoint = None
            endpoint.lost()
