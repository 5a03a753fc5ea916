"""The link between a front and one process of cells: numbered frames of messages over a Unix socket.

The messages of a turn travel in one frame. Frames are numbered; a gap, a frame that cannot be read or a lost socket ends the link, and
both sides treat that as the loss of every connection that used it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import msgspec

from penstock.transports.transport import ByteStreamTransport

M = TypeVar("M")
HEAD_BYTES = 4
BATCH_BYTES = 256 * 1024
"""Bytes of messages after which a frame is written in the middle of a turn."""
FRAME_MAX = 256 * 1024 * 1024
"""Bytes of a frame: a batch and the largest message."""
_encode = msgspec.msgpack.Encoder().encode


class CellLink(asyncio.Protocol, Generic[M]):
    """One end of a link."""

    def __init__(self, kinds: Any) -> None:
        """`kinds` are the types of the messages that the other end sends."""
        self._decode = msgspec.msgpack.Decoder(tuple[int, list[kinds]]).decode
        self.received: Callable[[Any], None] = lambda message: None
        self.lost: Callable[[], None] = lambda: None
        self.congested: Callable[[bool], None] = lambda on: None
        self._transport: ByteStreamTransport | None = None
        self._out: list[Any] = []
        self._size = 0
        self._sent = self._seen = 0
        self._buffer = bytearray()
        self.is_over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = ByteStreamTransport(cast(asyncio.Transport, transport))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.is_over:
            self.is_over = True
            self.lost()

    def pause_writing(self) -> None:
        self.congested(True)

    def resume_writing(self) -> None:
        self.congested(False)

    def post(self, message: Any, size: int = 0) -> None:
        """Send a message of about `size` bytes, in one frame with others of this turn."""
        if self.is_over:
            return
        if not self._out:
            asyncio.get_running_loop().call_soon(self.flush)
        self._out.append(message)
        self._size += size
        if self._size > BATCH_BYTES:
            self.flush()

    def flush(self) -> None:
        if not self._out or self._transport is None or self.is_over:
            return
        self._sent += 1
        data = _encode((self._sent, self._out))
        self._out, self._size = [], 0
        self._transport.send([len(data).to_bytes(HEAD_BYTES, "big"), data])

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) - start >= HEAD_BYTES and not self.is_over:
            size = int.from_bytes(buffer[start : start + HEAD_BYTES], "big")
            end = start + HEAD_BYTES + size
            if size > FRAME_MAX:
                self.close()
                return
            if len(buffer) < end:
                break
            frame = bytes(memoryview(buffer)[start + HEAD_BYTES : end])
            start = end
            self._frame(frame)
        del buffer[:start]

    def _frame(self, frame: bytes) -> None:
        try:
            number, messages = self._decode(frame)
        except msgspec.DecodeError:
            self.close()
            return
        self._seen += 1
        if number != self._seen:
            self.close()
            return
        for message in messages:
            self.received(message)

    def close(self) -> None:
        """End the link, after what was posted."""
        self.flush()
        if self._transport is not None:
            self._transport.close(1000, "")
        if not self.is_over:
            self.is_over = True
            self.lost()
