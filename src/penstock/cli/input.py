"""Standard input for a command that must not block while it waits.

Owns one thread that reads, and at most `AHEAD_MAX` pieces that are not consumed; then the thread waits. The thread reads
the descriptor itself: an interpreter that exits while a thread is in a buffered reader reports an error.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator

PIECE_BYTES = 64 * 1024
AHEAD_MAX = 16
"""Pieces read ahead."""
LINE_MAX = 4 * 1024 * 1024
"""Bytes of one line; a longer one is cut into several."""


class Input:
    """Pieces of standard input as they arrive."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._pieces: asyncio.Queue[bytes] = asyncio.Queue()
        self._slots = threading.Semaphore(AHEAD_MAX)
        self._descriptor = sys.stdin.fileno()
        threading.Thread(target=self._read, name="penstock-input", daemon=True).start()

    async def piece(self) -> bytes:
        """The next bytes; empty at the end."""
        data = await self._pieces.get()
        self._slots.release()
        return data

    def _read(self) -> None:
        data = b"-"
        while data:
            self._slots.acquire()
            try:
                data = os.read(self._descriptor, PIECE_BYTES)
            except OSError:
                data = b""
            try:
                self._loop.call_soon_threadsafe(self._pieces.put_nowait, data)
            except RuntimeError:
                return  # the command is over


async def lines(source: Input) -> AsyncIterator[bytes]:
    """Lines without their ends; empty ones are left out."""
    rest = b""
    while data := await source.piece():
        *whole, rest = (rest + data).split(b"\n")
        for line in whole:
            if line := line.removesuffix(b"\r"):
                yield line
        while len(rest) >= LINE_MAX:
            yield rest[:LINE_MAX]
            rest = rest[LINE_MAX:]
    if rest:
        yield rest


async def chunks(source: Input, size: int) -> AsyncIterator[bytes]:
    """Blocks of a size; the last may be shorter."""
    rest = bytearray()
    while data := await source.piece():
        rest += data
        while len(rest) >= size:
            yield bytes(rest[:size])
            del rest[:size]
    if rest:
        yield bytes(rest)
