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
    """Counts what aiohttp keeps: messages that were not taken, and the parts that have arrived of another one.

    It counts payloads without the heads of their frames, so that each message takes off what its frames added, however they were cut.
    """

    def __init__(self, parser: FrameParser) -> None:
        self._parser = parser
        self.collecting: Callable[[int], None] | None = None
        """Called with the size when it is large, and with 0 when it is not any more."""
        self.size = 0
        self._head = b""
        """How a frame begins of which more is to come."""
        self._left = 0
        """Payload that is to come of the last frame."""
        self._noted = 0

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        self.size += self._payload(self._head + data if self._head else data)
        if self.size > COUNTED:
            self._note(self.size)
        return self._parser.feed_data(data)

    def _payload(self, data: bytes) -> int:
        """How many of these bytes are payload."""
        at, end, left, heads = 0, len(data), self._left, 0
        self._head = b""
        while left < end - at:
            at += left
            left, second = 0, data[at + 1] if end - at > 1 else 0
            size = second & 127
            width = (2 if size < 126 else 4 if size == 126 else 10) + (4 if second & 128 else 0)
            if end - at < width:
                self._head = data[at:]
                heads += end - at
                at = end
            else:
                left = size if size < 126 else int.from_bytes(data[at + 2 : at + (4 if size == 126 else 10)], "big")
                heads += width
                at += width
        self._left = left - (end - at)
        return end - heads

    def feed_eof(self) -> None:
        self._parser.feed_eof()

    def taken(self, size: int) -> None:
        """A message or a control frame with so many bytes was taken."""
        self.size -= size
        if self._noted and (self.size <= COUNTED or self._noted - self.size >= COUNTED):
            self._note(self.size if self.size > COUNTED else 0)

    def _note(self, size: int) -> None:
        self._noted = size
        if self.collecting is not None:
            self.collecting(size)


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
