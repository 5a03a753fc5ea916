"""Both ends of a token stream without `async`."""

from __future__ import annotations

import asyncio
import weakref
from typing import Any

from penstock.client.sync.twin import IteratedTwin, LoopThread, OpenedTwin, blocking, called, made_like, mirrored
from penstock.client.tokens.publisher import DROP_S, TokenPublisher
from penstock.client.tokens.reader import TokenStream
from penstock.dialects.streamservice.messages import Complete
from penstock.dialects.streamservice.verify_stream import VerifierCounts

__all__ = ["SyncTokenPublisher", "SyncTokenStream"]


class SyncTokenStream(OpenedTwin[TokenStream], IteratedTwin[TokenStream, str]):
    """The tokens of one stream, each authenticated and in order: `for token in stream`, best inside `with`.

    Example:
        with penstock.SyncTokenStream(agreement.endpoint, agreement.keys) as stream:
            print("".join(stream))
    """

    next_batch = blocking(TokenStream.next_batch)
    cancel = blocking(TokenStream.cancel)
    cancellation = called(TokenStream.cancellation)

    endpoint = mirrored[TokenStream, str](lambda stream: stream.endpoint)
    stats = mirrored[TokenStream, Complete | None](lambda stream: stream.stats)
    counts = mirrored[TokenStream, VerifierCounts](lambda stream: stream.counts)
    is_over = mirrored[TokenStream, bool](lambda stream: stream.is_over)

    @made_like(TokenStream)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(TokenStream(*args, **kwargs), LoopThread())
        self._end = weakref.finalize(self, _end, self._source, self._thread)

    def close(self) -> None:
        """Stop reading, drop unread tokens, and stop the thread."""
        self._end()


class SyncTokenPublisher(OpenedTwin[TokenPublisher]):
    """Publishes a stream of tokens to one reader, through a relay that cannot change them; best inside `with`.

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
    take_control = called(TokenPublisher.take_control)

    push = mirrored[TokenPublisher, str](lambda publisher: publisher.push)
    is_cancelled = mirrored[TokenPublisher, bool](lambda publisher: publisher.is_cancelled)
    is_over = mirrored[TokenPublisher, bool](lambda publisher: publisher.is_over)
    unsent = mirrored[TokenPublisher, int](lambda publisher: publisher.unsent)

    @made_like(TokenPublisher)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(TokenPublisher(*args, **kwargs), LoopThread())
        self._end = weakref.finalize(self, _end, self._source, self._thread)

    def _give_up(self) -> None:
        self._end()

    def close(self) -> None:
        """Send what waits, then disconnect and stop the thread. A stream that has not ended is ended with an error."""
        if self._end.alive:
            self._thread.wait(self._source.close())
        self._end()

    def __exit__(self, *exception: object) -> None:
        if self._end.alive:
            self._thread.wait(self._source.__aexit__(*exception))
        self._end()


def _end(source: TokenStream | TokenPublisher, thread: LoopThread) -> None:
    """Close the source and its thread; also runs when the twin is garbage-collected."""

    async def close() -> None:
        async with asyncio.timeout(DROP_S):
            await source.close()

    try:
        thread.wait(close())
    except TimeoutError:
        pass
    thread.close()
