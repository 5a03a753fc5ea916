"""The reader of a token stream: `async for token in stream`.

Owns the socket, the timers and the unread tokens; the verifier decides what is valid. Invariants: every token is authenticated as the next
one before the application gets it; the iteration ends only where the publisher ended the stream, and raises otherwise. At most
`WAITING_MAX` tokens are buffered; then the socket is not read until the application takes some, and that time is not counted as silence.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from typing import Self

import zmq

from penstock.client.tokens.errors import error_of
from penstock.client.tokens.zmq_socket import LINGER_MS, Curve, ZmqSocket, monotonic_us
from penstock.core.errors import PenstockError, Refusal
from penstock.dialects.streamservice import encode
from penstock.dialects.streamservice.chain import ControlChannel
from penstock.dialects.streamservice.keys import StreamKeys
from penstock.dialects.streamservice.messages import Complete, Token
from penstock.dialects.streamservice.verify_stream import Format, RetryOptions, StreamVerifier, VerifierCounts

WAITING_MAX = 10_000
"""The most unread tokens; then the socket is not read until the application takes some."""
LOOK_S = 0.5
"""How often to poll the socket, in case a notification was missed."""
RESUME = b"\x02"
"""First byte of a resume request; it is sent as a subscription and withdrawn at once."""


class TokenStream:
    """The tokens of one stream, each authenticated and in order. Use it inside `async with`.

    The iteration ends when the publisher completes the stream. It raises `GapError` when messages are missing for good, `TamperedStream`
    when a message was changed, `TruncatedStream` when the publisher falls silent, and `StreamFailed` when the publisher reports an error.

    Example:
        async with penstock.TokenStream(agreement.endpoint, agreement.keys) as stream:
            async for token in stream:
                print(token, end="")
        print(stream.stats)
    """

    def __init__(
        self,
        endpoint: str,
        keys: StreamKeys,
        *,
        format: Format | None = None,  # noqa: A002 - the word of the protocol
        push: str | None = None,
        curve: Curve | None = None,
        expires: float | None = None,
        patience: RetryOptions | None = None,
    ) -> None:
        """Prepare to read; `open` subscribes.

        Args:
            endpoint: The relay's endpoint for readers.
            keys: The keys of the agreement with the publisher.
            push: The relay's endpoint for publishers. Needed only to cancel.
            curve: Keys for an encrypted connection.
            expires: The Unix time at which the stream ends at the latest.
            patience: When to ask again for missing messages, and when to give up.
        """
        self.endpoint = endpoint
        self._keys = keys
        self._push = push
        self._curve = curve
        self._patience = patience or RetryOptions()
        now_us = monotonic_us()
        ends_us = None if expires is None else now_us + int((expires - time.time()) * 1_000_000)
        self._follower = StreamVerifier(
            now_us, keys, self._patience, format=format, ends_us=ends_us, jitter=random.random()
        )
        self._control = ControlChannel(keys)
        self._topic = keys.topic.encode()
        self._tokens: deque[str] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._socket: ZmqSocket | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_paused = False
        self._was_linked = False
        self._is_closed = False

    # State

    @property
    def stats(self) -> Complete | None:
        """The publisher's statistics at the end; None before."""
        ending = self._follower.ending
        return ending if isinstance(ending, Complete) else None

    @property
    def counts(self) -> VerifierCounts:
        """Counters of the messages that arrived, by outcome."""
        return self._follower.counts

    @property
    def is_over(self) -> bool:
        """Whether the stream has ended; tokens may still be unread."""
        return self._follower.ending is not None

    # Reading

    async def open(self) -> Self:
        """Subscribe. Iterating does this by itself."""
        if self._is_closed:
            raise _closed()
        if self._socket is None:
            self._follower.rested(monotonic_us())
            self._socket = ZmqSocket(zmq.XSUB, self.endpoint, self._curve, arrived=self._arrived, linked=self._linked)
            self._socket.send((b"\x01" + self._topic,))
            self._tick()
        return self

    async def next_batch(self, count_max: int = 4096) -> list[str]:
        """The unread tokens, up to `count_max`; waits for the first one. Empty at the normal end; raises at any other end."""
        await self.open()
        while not self._tokens:
            ending = self._follower.ending
            if ending is not None:
                error = error_of(ending)
                if error is not None:
                    raise error
                return []
            self._go_on()
            if self._is_closed:
                raise _closed()  # the stream has not ended
            if self._waiter is not None:
                raise PenstockError(Refusal("InvalidRequest", "the stream is being read by another task"))
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        tokens = self._tokens
        if len(tokens) <= count_max:
            batch = list(tokens)
            tokens.clear()
        else:
            batch = [tokens.popleft() for _ in range(count_max)]
        self._go_on()
        return batch

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        if self._tokens and not self._is_paused:
            return self._tokens.popleft()
        batch = await self.next_batch(1)
        if not batch:
            raise StopAsyncIteration
        return batch[0]

    async def close(self) -> None:
        """Stop reading, and drop the unread tokens."""
        self._is_closed = True
        self._hang_up()
        self._tokens.clear()
        self._wake()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    # Cancelling

    def cancellation(self) -> bytes:
        """A message that stops the publisher, to carry over any channel: see `TokenPublisher.take_control`. Each works once."""
        _, frame, mac = self._control.seal("cancel", time.time_ns() // 1000)
        return frame + mac

    async def cancel(self, timeout: float = 5.0) -> None:
        """Ask the publisher, through the relay, to stop. It ends the stream with the error `cancelled`."""
        if self._push is None:
            hint = "open the stream with `push=…`, or send `cancellation()` to the publisher yourself"
            raise PenstockError(
                Refusal("InvalidRequest", "the stream has no endpoint to send a cancellation to", hint=hint)
            )
        parts = self._control.seal("cancel", time.time_ns() // 1000)
        done = asyncio.get_running_loop().create_future()

        def push() -> None:
            if not done.done() and socket.send(parts):
                done.set_result(None)

        socket = ZmqSocket(
            zmq.PUSH, self._push, self._curve, moved=push, linked=lambda is_up: push() if is_up else None
        )
        try:
            async with asyncio.timeout(timeout):
                await done
        except TimeoutError:
            refusal = Refusal("Unreachable", f"no relay accepts messages at `{self._push}`")
            raise PenstockError(refusal) from None
        finally:
            socket.close(LINGER_MS)

    # The socket and the clock

    def _arrived(self, burst: list[list[bytes]]) -> None:
        now_us = monotonic_us()
        take, tokens = self._follower.take, self._tokens
        for parts in burst:
            for payload in take(now_us, parts):
                if isinstance(payload, Token):
                    tokens.append(payload.text)
        if len(tokens) >= WAITING_MAX and self._socket is not None:
            self._is_paused = True
            self._socket.pause()
        self._step(now_us)
        if tokens or self._follower.ending is not None:
            self._wake()

    def _linked(self, is_up: bool) -> None:
        if is_up and self._was_linked:
            self._follower.reconnected(monotonic_us())
            self._step(monotonic_us())
        self._was_linked = self._was_linked or is_up

    def _go_on(self) -> None:
        """Resume reading once the application has taken tokens."""
        if self._is_paused and len(self._tokens) < WAITING_MAX and self._socket is not None:
            self._is_paused = False
            self._follower.rested(monotonic_us())
            self._socket.resume()

    def _step(self, now_us: int) -> None:
        if self._is_paused or self._socket is None:
            return
        ask = self._follower.step(now_us)
        if ask is not None:
            if ask.mark is None:
                self._socket.send((b"\x00" + self._topic,))
                self._socket.send((b"\x01" + self._topic,))
            else:
                asked = RESUME + encode.resume(self._topic, ask.mark)
                self._socket.send((b"\x01" + asked,))
                self._socket.send((b"\x00" + asked,))
        if self._follower.ending is not None:
            self._hang_up()
            self._wake()
        else:
            self._arm(now_us)

    def _arm(self, now_us: int) -> None:
        loop = asyncio.get_running_loop()
        wait_s = min(max(self._follower.due_us() - now_us, 0) / 1_000_000, LOOK_S)
        when = loop.time() + wait_s
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = loop.call_at(when, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self._socket is None:
            return
        self._socket.look()
        if self._socket is not None and not self._is_paused:
            self._step(monotonic_us())
        if self._socket is not None and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._tick)

    def _hang_up(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _closed() -> PenstockError:
    return PenstockError(Refusal("InvalidRequest", "the stream is closed", hint="open another one"))
