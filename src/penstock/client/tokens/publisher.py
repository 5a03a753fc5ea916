"""The publisher of a token stream: `await publisher.send(token)`.

It guarantees that a stream ends with a terminal message: `complete`, `error`, or an error of its own. Leaving an `async with` block
completes the stream, an exception ends it with an error, and so does garbage collection of a publisher that was not closed.
"""

from __future__ import annotations

import asyncio
import weakref
from functools import partial
from typing import Self

from penstock.client.tokens.errors import StreamCancelled
from penstock.client.tokens.stream_sender import DROPPED, StreamSender
from penstock.client.tokens.zmq_socket import Curve, monotonic_us
from penstock.core.errors import PenstockError, Refusal
from penstock.dialects.streamservice.compose_stream import TEXT_MAX, Batching, Composer, RetentionOptions
from penstock.dialects.streamservice.keys import StreamKeys
from penstock.dialects.streamservice.messages import Complete, Heartbeat, StreamFailure, Token
from penstock.dialects.streamservice.signatures import SigningKey
from penstock.dialects.streamservice.verify_stream import Format

TURN_SENDS = 256
"""Tokens after which `send` yields to other tasks of the loop."""
DROP_S = 1.0
"""How long the end of a garbage-collected publisher may take."""


class TokenPublisher:
    """Publishes a stream of tokens to one reader, through a relay that cannot change them. Use it inside `async with`.

    Example:
        async with penstock.TokenPublisher(relay.push, answer.agreement.keys, signer=relay.signer) as publisher:
            for token in ("Once ", "upon ", "a ", "time"):
                await publisher.send(token)
    """

    def __init__(
        self,
        push: str,
        keys: StreamKeys,
        *,
        signer: SigningKey,
        sub: str = "publisher",
        stream_id: str = "",
        format: Format = "block",  # noqa: A002 - the word of the protocol
        pub: str | None = None,
        curve: Curve | None = None,
        lifetime: float = 300.0,
        timeout: float = 30.0,
        connect_timeout: float = 10.0,
        batching: Batching | None = None,
        keeping: RetentionOptions | None = None,
    ) -> None:
        """Prepare a stream; `open` connects.

        Args:
            push: The relay's endpoint for publishers.
            keys: The keys of the agreement with the reader.
            signer: Signs the registration; the relay must trust it.
            pub: The relay's endpoint for readers. Needed to receive a reader's cancellation, and to learn that the relay refused
                the stream: `send` then raises the refusal.
            curve: Keys for an encrypted connection.
            lifetime: Seconds that a registration is valid; it is renewed.
            timeout: Seconds that `send` waits for a relay that accepts nothing.
            batching: How tokens are combined into messages.
            keeping: How many sent messages are kept to send them again.
        """
        self.push = push
        self._timeout_s = timeout
        self._connect_timeout_s = connect_timeout
        self._composer = Composer(
            monotonic_us(), keys, stream_id=stream_id, format=format, batching=batching, keeping=keeping
        )
        self._make_sender = partial(
            StreamSender, self._composer, keys, signer, push=push, pub=pub, curve=curve, sub=sub, lifetime_s=lifetime
        )
        self._began_us = monotonic_us()
        self._sends = 0
        self._sender: StreamSender | None = None
        self._finalizer: weakref.finalize[[StreamSender], TokenPublisher] | None = None

    @property
    def is_cancelled(self) -> bool:
        """Whether the reader cancelled the stream."""
        return self._sender is not None and self._sender.cancelled.is_set()

    @property
    def is_over(self) -> bool:
        """Whether the stream has its terminal message."""
        return self._composer.is_over

    @property
    def unsent(self) -> int:
        """Messages that the relay has not accepted yet."""
        return self._composer.unsent

    async def open(self) -> Self:
        """Connect and register the stream. Raises `Unreachable` when the relay does not answer in time."""
        if self._sender is None:
            sender = self._sender = self._make_sender()
            self._finalizer = weakref.finalize(self, _forget, sender)
            try:
                await sender.linked(self._connect_timeout_s)
            except BaseException:
                sender.close()
                raise
            self._began_us = monotonic_us()
        return self

    async def send(self, token: str) -> None:
        """Send a token; waits while the send buffer is full. Raises `StreamCancelled` after the reader cancelled the stream."""
        sender = self._open_sender()
        _check(token)
        sender.add(Token(token, self._composer.stream_id))
        self._composer.tokens += 1
        self._sends += 1
        if self._composer.is_full:
            if not await sender.room(None, self._timeout_s):
                raise _stuck(sender.refusal)
            if sender.cancelled.is_set():
                raise StreamCancelled
        elif self._sends % TURN_SENDS == 0:
            await asyncio.sleep(0)

    async def heartbeat(self) -> None:
        """Send a heartbeat. The publisher does this by itself when it has nothing to send."""
        self._open_sender().add(Heartbeat(self._composer.stream_id))

    async def flush(self) -> None:
        """Send the current batch, and wait until the relay has accepted everything."""
        sender = self._open_sender()
        self._composer.flush(monotonic_us())
        sender.pump()
        if not await sender.room(0, self._timeout_s):
            raise _stuck(sender.refusal)

    async def complete(self, finish_reason: str = "stop", *, perplexity: float = 0.0, entropy: float = 0.0) -> Complete:
        """End the stream normally; returns the statistics that the reader gets."""
        sender = self._open_sender()
        took_us = max(monotonic_us() - self._began_us, 1)
        stats = Complete(
            tokens=self._composer.tokens,
            finish_reason=_clipped(finish_reason),
            generation_ms=took_us // 1000,
            tokens_per_second=self._composer.tokens * 1_000_000 / took_us,
            perplexity=perplexity,
            entropy=entropy,
            stream_id=self._composer.stream_id,
        )
        sender.add(stats)
        return stats

    async def error(self, message: str, code: str = "internal", details: str = "") -> None:
        """End the stream with an error, which the reader gets as `StreamFailed`."""
        texts = (_clipped(message), _clipped(code), _clipped(details))
        self._open_sender().add(StreamFailure(*texts, self._composer.stream_id))

    def take_control(self, message: bytes) -> bool:
        """Process a reader's `cancellation()` that arrived on another channel; false when it is not valid."""
        sender = self._sender
        return sender is not None and sender.take_control(sender.control_parts(message))

    async def close(self) -> None:
        """Send what waits, then disconnect. A stream that has not ended is ended with an error."""
        sender = self._sender
        if sender is None or sender.is_closed:
            return
        if not self.is_over:
            sender.add(StreamFailure(DROPPED, "internal", "", self._composer.stream_id))
        try:
            await sender.room(0, self._timeout_s)
        finally:
            sender.close()
            if self._finalizer is not None:
                self._finalizer.detach()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *exception: object) -> None:
        error = exception[1]
        if not self.is_over and self._sender is not None and not self._sender.is_closed:
            if error is None and self._sender.refusal is None:
                await self.complete()
            elif self._sender.refusal is not None:  # no reader hears an end
                self._sender.drop()
                if error is None:
                    raise PenstockError(self._sender.refusal)
            elif isinstance(error, asyncio.CancelledError):
                await self.error("the publisher was stopped", "cancelled")
            else:
                # The reader gets only the exception's type: its text may contain private data.
                await self.error("the publisher failed", "internal", type(error).__name__)
        await self.close()

    def _open_sender(self) -> StreamSender:
        sender = self._sender
        if sender is None or sender.is_closed:
            raise _invalid("the publisher is not open", "use it inside `async with`")
        if sender.refusal is not None:
            raise PenstockError(sender.refusal)
        if sender.cancelled.is_set():
            raise StreamCancelled
        if self._composer.is_over:
            raise _invalid("the stream has ended", "a stream ends once; make another publisher")
        return sender


def _forget(sender: StreamSender) -> None:
    """End the stream of a garbage-collected publisher, on whichever thread the collector runs."""
    loop = sender.loop
    try:
        here = asyncio.get_running_loop()
    except RuntimeError:
        here = None
    if here is loop or not loop.is_running():
        sender.drop()
        return

    async def drop() -> None:
        sender.drop()

    try:
        asyncio.run_coroutine_threadsafe(drop(), loop).result(DROP_S if here is None else 0)
    except TimeoutError:
        pass


def _check(token: str) -> None:
    try:
        size = len(token.encode())
    except UnicodeEncodeError:
        raise PenstockError(Refusal("InvalidRequest", "a token must be text that UTF-8 can encode")) from None
    if size > TEXT_MAX:
        raise PenstockError(
            Refusal("TooLarge", f"a token has at most {TEXT_MAX} bytes", hint="split it into several tokens")
        )


def _invalid(message: str, hint: str) -> PenstockError:
    return PenstockError(Refusal("InvalidRequest", message, hint=hint))


def _clipped(text: str) -> str:
    """The text, cut to the maximum size."""
    return text.encode(errors="replace")[:TEXT_MAX].decode(errors="ignore")


def _stuck(refusal: Refusal | None) -> PenstockError:
    if refusal is not None:
        return PenstockError(refusal)
    hint = "messages keep their order and are sent when the relay is back"
    return PenstockError(Refusal("Unreachable", "the relay accepts no messages", hint=hint))
