"""The parser of a WebSocket whose peer is not known yet: it passes on few bytes, and then the socket is not read.

aiohttp collects a message until it is complete, up to a bound for the whole life of the socket. A peer that has not shown who it is
must not make it collect that much. When the peer is known, the rest is passed on and aiohttp's parser takes over. Otherwise
the rest is dropped after a moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

PATIENCE_S = 0.25
"""How long the messages that were passed on may take to make the peer known."""
HEADS = 1_024
"""Bytes above the bound for the heads of frames."""


class FrameParser(Protocol):
    """What aiohttp's protocol needs of a parser."""

    def feed_data(self, data: bytes) -> tuple[bool, bytes]: ...

    def feed_eof(self) -> None: ...


COUNTED = 64 * 1024
"""Bytes of a message from which on it is counted while it arrives."""


class CountingParser:
    """Counts what arrived since the last message was taken: aiohttp keeps it until the message is complete."""

    def __init__(self, parser: FrameParser, collecting: Callable[[int], None]) -> None:
        self._parser = parser
        self._collecting = collecting
        self.size = 0

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        self.size += len(data)
        if self.size > COUNTED:
            self._collecting(self.size)
        return self._parser.feed_data(data)

    def feed_eof(self) -> None:
        self._parser.feed_eof()

    def taken(self) -> None:
        """A message was taken: what comes belongs to the next."""
        is_counted, self.size = self.size > COUNTED, 0
        if is_counted:
            self._collecting(0)


class NarrowParser:
    """Passes on `bound` bytes and keeps what arrived with them."""

    def __init__(
        self, parser: FrameParser, transport: asyncio.Transport, bound: int, too_large: Callable[[], None]
    ) -> None:
        self._parser = parser
        self._transport = transport
        self._room = bound + HEADS
        self._too_large = too_large
        self._rest: list[bytes] = []
        self._is_dropping = False
        self._patience: asyncio.TimerHandle | None = None

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        if self._is_dropping:
            return False, b""
        room, self._room = self._room, max(self._room - len(data), 0)
        if len(data) > room:
            self._rest.append(data[room:])
            self._transport.pause_reading()
            if self._patience is None:
                self._patience = asyncio.get_running_loop().call_later(PATIENCE_S, self._give_up)
        return self._parser.feed_data(data[:room]) if room else (False, b"")

    def feed_eof(self) -> None:
        self.end()
        self._parser.feed_eof()

    def _give_up(self) -> None:
        """The peer is still unknown: tell it so, and read what it sends only to drop it."""
        self._is_dropping = True
        self._rest.clear()
        self._too_large()
        self._transport.resume_reading()

    def widen(self) -> FrameParser:
        """The peer is known: pass on the rest, and return the parser for what comes."""
        self.end()
        rest, self._rest = self._rest, []
        if rest:
            self._parser.feed_data(b"".join(rest))
            self._transport.resume_reading()
        return self._parser

    def end(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
