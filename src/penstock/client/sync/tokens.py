"""Both ends of a token stream without `async`: the same methods, run on a background thread.

Nothing is implemented twice; a test compares both surfaces name by name.
"""

from __future__ import annotations

import asyncio
import weakref
from types import TracebackType
from typing import Self

from penstock.client.sync.queue import Closing, IteratedTwin, LoopThread, Twin, blocking, mirrored
from penstock.client.tokens.publisher import DROP_S, TokenPublisher
from penstock.client.tokens.reader import TokenStream
from penstock.client.tokens.zmq_socket import Curve
from penstock.dialects.streamservice.block_sizes import Batching
from penstock.dialects.streamservice.compose_stream import RetentionOptions
from penstock.dialects.streamservice.keys import StreamKeys
from penstock.dialects.streamservice.messages import Complete
from penstock.dialects.streamservice.signatures import SigningKey
from penstock.dialects.streamservice.verify_stream import Format, RetryOptions, VerifierCounts

__all__ = ["SyncTokenPublisher", "SyncTokenStream"]


class SyncTokenStream(Closing, IteratedTwin[TokenStream, str]):
    """The tokens of one stream, each of them proved; `for token in stream`, best inside `with`.

    Example:
        with penstock.SyncTokenStream(agreement.endpoint, agreement.keys) as stream:
            print("".join(stream))
    """

    next_batch = blocking(TokenStream.next_batch)
    cancel = blocking(TokenStream.cancel)

    endpoint = mirrored[TokenStream, str](lambda stream: stream.endpoint)
    stats = mirrored[TokenStream, Complete | None](lambda stream: stream.stats)
    counts = mirrored[TokenStream, VerifierCounts](lambda stream: stream.counts)
    is_over = mirrored[TokenStream, bool](lambda stream: stream.is_over)

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
        """`endpoint` is where a relay publishes; `push`, where it takes messages, is needed only to cancel. `expires` is a Unix time."""
        source = TokenStream(
            endpoint, keys, format=format, push=push, curve=curve, expires=expires, patience=patience
        )
        super().__init__(source, LoopThread())
        self._end = weakref.finalize(self, _end, source, self._thread)

    def open(self) -> Self:
        """Subscribe. Iterating does this by itself."""
        self._thread.wait(self._source.open())
        return self

    def cancellation(self) -> bytes:
        """A message that stops the publisher, for any way that leads to it: see `TokenPublisher.take_control`. Each works once."""
        return self._thread.call(self._source.cancellation)

    def close(self) -> None:
        """Read no more, and end the thread. What was not taken is dropped."""
        self._end()

    def __enter__(self) -> Self:
        return self.open()


class SyncTokenPublisher(Twin[TokenPublisher]):
    """A stream of tokens to one reader, through a relay that cannot change them; best inside `with`.

    Example:
        with penstock.SyncTokenPublisher(relay.push, answer.agreement.keys, signer=relay.signer) as publisher:
            for token in ("Once ", "upon ", "a ", "time"):
                publisher.send(token)
    """

    send = blocking(TokenPublisher.send)
    heartbeat = blocking(TokenPublisher.heartbeat)
    flush = blocking(TokenPublisher.flush)
    complete = blocking(TokenPublisher.complete)
    error = blocking(TokenPublisher.error)

    push = mirrored[TokenPublisher, str](lambda publisher: publisher.push)
    is_cancelled = mirrored[TokenPublisher, bool](lambda publisher: publisher.is_cancelled)
    is_over = mirrored[TokenPublisher, bool](lambda publisher: publisher.is_over)
    unsent = mirrored[TokenPublisher, int](lambda publisher: publisher.unsent)

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
        """`push` is where a relay takes messages; `pub`, where it publishes, is needed to hear a reader cancel. `lifetime` is that of
        a registration, which is renewed. `timeout` is how long `send` waits for a relay that takes nothing."""
        source = TokenPublisher(
            push,
            keys,
            signer=signer,
            sub=sub,
            stream_id=stream_id,
            format=format,
            pub=pub,
            curve=curve,
            lifetime=lifetime,
            timeout=timeout,
            connect_timeout=connect_timeout,
            batching=batching,
            keeping=keeping,
        )
        super().__init__(source, LoopThread())
        self._end = weakref.finalize(self, _end, source, self._thread)

    def open(self) -> Self:
        """Connect and register; raises when no relay is there in time."""
        try:
            self._thread.wait(self._source.open())
        except BaseException:
            self._end()
            raise
        return self

    def take_control(self, message: bytes) -> bool:
        """Take what a reader's `cancellation()` made and brought by another way; false when it does not count."""
        return self._thread.call(self._source.take_control, message)

    def close(self) -> None:
        """Be gone, after what waits was sent, and end the thread. A stream without an end is ended with an error."""
        if self._end.alive:
            self._thread.wait(self._source.close())
        self._end()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._end.alive:
            self._thread.wait(self._source.__aexit__(kind, error, trace))
        self._end()


def _end(source: TokenStream | TokenPublisher, thread: LoopThread) -> None:
    """Close what nobody holds any more, and its thread."""

    async def close() -> None:
        async with asyncio.timeout(DROP_S):
            await source.close()

    try:
        thread.wait(close())
    except TimeoutError:
        pass
    thread.close()
