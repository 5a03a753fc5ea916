"""A bridge between kernel pipes and the control port of a server: frames on one side, Control v1 lines on the other.

Each pipe has its own connection to the server, so a pipe is one Control v1 session with its own credits, leases and answers. Chunks are
copied one at a time, at the speed of the slower side, with no queue in between. Invariants: a pipe holds less than `HELD_MAX` bytes; a
payload for the peer consists of whole lines; a tap forwards nothing from its peer.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

import msgspec

from penstock.client.address import Address
from penstock.client.control.frames import head
from penstock.client.control.raw_connection import HELD_MAX as UPLINK_MAX
from penstock.client.control.raw_connection import READ_HIGH, RawConnection
from penstock.core.errors import PenstockError, Refusal
from penstock.core.limits import Limits
from penstock.dialects.courier.sessions.control.runs import error_line
from penstock.dialects.courier.wire.kernel_frames import FRAME_MAX, FrameDecoder, FrameEncoder, PipeFrame, WholeLines
from penstock.transports.pipe_transports import CHUNK, CLOSE_S, PipeTransport

PIPES_MAX = 256
"""Open pipes: each may hold `HELD_MAX` bytes."""
FLUSH_S = 5.0
"""How long the bridge waits for answers after the peer closed its side: a pull of a minute must not hold the pipe open."""
HELD_MAX = UPLINK_MAX + 2 * FRAME_MAX + CHUNK + READ_HIGH
"""Bytes that one pipe may hold in both directions: a partial frame in, a partial line, one frame out, and the uplink's."""


class BridgeCounts(msgspec.Struct):
    """Counters of a bridge."""

    opened: int = 0
    refused: int = 0
    """Pipes that were rejected, or closed because they sent no valid frames."""
    frames_in: int = 0
    frames_out: int = 0
    ignored: int = 0
    """Ignored frames: unknown types, pings over TCP, and data written to a tap."""
    held_most: int = 0
    """Most bytes held by one pipe."""


class Bridge:
    """Pipes to one server, all with the same token and the same tap."""

    def __init__(
        self, server: Address, token: str | None = None, tap: str | None = None, *, pipes_max: int = PIPES_MAX
    ) -> None:
        self.counts = BridgeCounts()
        self.pipes: dict[BridgedPipe, None] = {}
        self.lost: asyncio.Future[PenstockError] = asyncio.get_running_loop().create_future()
        """Done when the server is unreachable."""
        self._server = server
        self._token = token
        self._tap = tap
        self._pipes_max = pipes_max

    async def uplink(self) -> RawConnection:
        """Open a connection to the server for a pipe; raises PenstockError."""
        uplink = await RawConnection.open(self._server, self._token)
        if self._tap is not None:
            try:
                await uplink.ask(head("tap", stream=self._tap))
            except BaseException:
                await uplink.close()
                raise
        return uplink

    async def check(self) -> None:
        """Check that the server accepts a pipe; raises PenstockError."""
        await (await self.uplink()).close()

    async def serve(self, channel: PipeTransport) -> bool:
        """Serve one pipe until either side ends; returns whether the peer ended it."""
        pipe = BridgedPipe(channel, self.counts, is_tap=self._tap is not None)
        if len(self.pipes) >= self._pipes_max:
            self.counts.refused += 1
            message = f"{self._pipes_max} pipes are open"
            await pipe.end(Refusal("QuotaExceeded", message, retry_after_ms=1_000))
            return False
        self.counts.opened += 1
        self.pipes[pipe] = None
        try:
            return await self._carry(pipe)
        finally:
            self.pipes.pop(pipe, None)
            pipe.over.set()

    async def _carry(self, pipe: BridgedPipe) -> bool:
        try:
            uplink = await self.uplink()
        except PenstockError as error:
            self._note_loss(error)
            await pipe.end(error.refusal)
            return False
        try:
            is_peer = await pipe.run(uplink)
        finally:
            await uplink.close()
        if not is_peer:
            try:
                await self.check()  # the server may have closed only this connection
            except PenstockError as error:
                self._note_loss(error)
        return is_peer

    def _note_loss(self, error: PenstockError) -> None:
        if error.code == "Unreachable" and not self.lost.done():
            self.lost.set_result(error)

    async def close(self) -> None:
        """Close every pipe, and wait until all are closed."""
        pipes = list(self.pipes)
        await asyncio.gather(*(pipe.end() for pipe in pipes))
        await asyncio.gather(*(pipe.over.wait() for pipe in pipes))


class BridgedPipe:
    """One peer: frames in, frames out."""

    def __init__(self, channel: PipeTransport, counts: BridgeCounts, *, is_tap: bool) -> None:
        self.uplink: RawConnection | None = None
        self.over = asyncio.Event()
        """Set when the pipe is closed."""
        self._channel = channel
        self._counts = counts
        self._is_tap = is_tap
        self._decoder = FrameDecoder()
        self._encoder = FrameEncoder()
        # One more byte than the server accepts in a line, so that the server refuses it and the bridge holds no more.
        self._up_lines = WholeLines(Limits().frame_max + 1)
        self._down_lines = WholeLines()
        self._is_ended = False

    @property
    def held(self) -> int:
        """Bytes that this pipe holds."""
        inside = self._decoder.held + self._up_lines.held + self._down_lines.held + self._channel.buffered
        return inside if self.uplink is None else inside + self.uplink.held

    async def run(self, uplink: RawConnection) -> bool:
        """Copy in both directions until one side ends; returns whether it was the peer."""
        self.uplink = uplink
        up = asyncio.ensure_future(self._up(uplink))
        down = asyncio.ensure_future(self._down(uplink))
        try:
            await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
            is_peer = up.done() and up.exception() is None
            if is_peer and not self._is_ended and not self._is_tap:
                with contextlib.suppress(PenstockError):
                    await uplink.finish()
                await asyncio.wait((down,), timeout=FLUSH_S)
        finally:
            for task in (up, down):
                task.cancel()
            results = await asyncio.gather(up, down, return_exceptions=True)
            await self.end(self._decoder.failure)
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, PenstockError | ConnectionError):
                raise result
        return is_peer or any(isinstance(result, ConnectionError) for result in results)

    async def end(self, refusal: Refusal | None = None) -> None:
        """Send the reason and a close frame, then close; only once."""
        if self._is_ended:
            return
        self._is_ended = True
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                if refusal is not None:
                    await self._channel.write(self._encoder.data(_now_ms(), error_line(None, refusal)))
                await self._channel.write(self._encoder.control(_now_ms(), "close"))
        await self._channel.close()

    # From the peer to the server

    async def _up(self, uplink: RawConnection) -> None:
        while chunk := await self._channel.read():
            for frame in self._decoder.feed(chunk):
                if not await self._on_frame(uplink, frame):
                    return
            self._note()
            if self._decoder.failure is not None:
                self._counts.refused += 1
                return

    async def _on_frame(self, uplink: RawConnection, frame: PipeFrame) -> bool:
        """Handle a frame; False when the peer ends."""
        self._counts.frames_in += 1
        if frame.kind == "close" and self._channel.heeds_control:
            return False
        if frame.kind == "data" and not self._is_tap:
            for lines in self._up_lines.feed(frame.payload):
                await uplink.write(lines)
        elif frame.kind == "ping" and self._channel.heeds_control:
            await self._channel.write(self._encoder.control(_now_ms(), "pong"))
        elif frame.kind != "pong":
            self._counts.ignored += 1
        return True

    # From the server to the peer

    async def _down(self, uplink: RawConnection) -> None:
        while data := await uplink.read():
            for lines in self._down_lines.feed(data):
                self._note()
                self._counts.frames_out += 1
                await self._channel.write(self._encoder.data(_now_ms(), lines))

    def _note(self) -> None:
        self._counts.held_most = max(self._counts.held_most, self.held)
        self._counts.ignored += self._decoder.ignored
        self._decoder.ignored = 0


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
