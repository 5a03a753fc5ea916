"""The publisher's side of a token stream: payloads become messages of a chain, in order, without gaps.

Owns the messages that are not sent yet, and the latest sent ones, for a relay that restarts without its memory. It must never know a
socket or a clock. Invariants:

- A composed message keeps its place in the chain. If it cannot be sent it waits, and so do all later ones.
- Messages that are sent again are unchanged and come before newer ones; readers drop duplicates.
- Nothing follows a terminal payload.
- Both lists are bounded: when `is_full`, the application must wait; of the sent messages the oldest are dropped.

Cost of `add`: a MAC and an encoding, about 3 us a token in blocks.

A block has few payloads at a low rate, for latency, and many at a high rate, for throughput. The rate is a moving average of the latest
intervals, and the batch size grows with its logarithm between two rates. A batch also ends at a number of bytes, and when its oldest
payload has waited `max_delay_ms`: a generator that pauses never holds back a token.
"""

from __future__ import annotations

from collections import deque
from math import floor, log
from typing import TypeAlias

import msgspec

from penstock.dialects.streamservice import encode
from penstock.dialects.streamservice.chain import BlockChain, ChainedStreamHmac
from penstock.dialects.streamservice.keys import StreamKeys
from penstock.dialects.streamservice.messages import Complete, Heartbeat, Payload, StreamFailure, Token
from penstock.dialects.streamservice.verify_stream import Format

PAYLOAD_COST = 8
"""Bytes that a payload counts besides its text."""


class Batching(msgspec.Struct, frozen=True):
    """The bounds of a batch."""

    min_batch: int = 1
    max_batch: int = 16
    max_block_bytes: int = 65_536
    min_rate: float = 1.0
    """Payloads a second up to which a batch has `min_batch`."""
    max_rate: float = 100.0
    """Payloads a second from which on it has `max_batch`."""
    max_delay_ms: int = 30
    """How long a payload waits for the batch to fill."""
    alpha: float = 0.3
    """Weight of the latest interval in the rate."""

    def __post_init__(self) -> None:
        if not 1 <= self.min_batch <= self.max_batch:
            raise ValueError("a batch has at least one payload, and `max_batch` is not below `min_batch`")
        if self.max_block_bytes < 1 or self.max_delay_ms < 0 or not 0 < self.alpha <= 1:
            raise ValueError("`max_block_bytes`, `max_delay_ms` and `alpha` must be positive, and `alpha` at most 1")


def batch_size(rate: float, batching: Batching) -> int:
    """The payloads of a batch at a rate."""
    low, high = log(max(batching.min_rate, 1.0)), log(max(batching.max_rate, 1.0))
    here = log(max(rate, 1.0))
    if high <= low:  # equal rates: a step instead of a slope
        part = 1.0 if here >= high else 0.0
    else:
        part = min(max((here - low) / (high - low), 0.0), 1.0)
    return floor(batching.min_batch + part * (batching.max_batch - batching.min_batch) + 0.5)


def cost(payload: Payload) -> int:
    """The bytes that a payload counts in its batch."""
    if isinstance(payload, Token):
        return len(payload.text.encode()) + PAYLOAD_COST
    if isinstance(payload, StreamFailure):
        return len(payload.message) + len(payload.details) + PAYLOAD_COST
    return PAYLOAD_COST


class Batcher:
    """The batch that is being filled."""

    def __init__(self, batching: Batching | None = None) -> None:
        self.batching = batching or Batching()
        self.rate = 0.0
        """Payloads a second."""
        self.due_us: int | None = None
        """When the batch must be sent; None while it is empty."""
        self._last_us: int | None = None
        self._waiting: list[Payload] = []
        self._bytes = 0

    def add(self, now_us: int, payload: Payload) -> bool:
        """Add a payload; True if the batch must be sent now."""
        self._measure(now_us)
        if not self._waiting:
            self.due_us = now_us + self.batching.max_delay_ms * 1000
        self._waiting.append(payload)
        self._bytes += cost(payload)
        return (
            len(self._waiting) >= batch_size(self.rate, self.batching) or self._bytes >= self.batching.max_block_bytes
        )

    def take(self) -> list[Payload]:
        """The payloads of the batch, which is empty afterwards."""
        waiting, self._waiting = self._waiting, []
        self._bytes = 0
        self.due_us = None
        return waiting

    def _measure(self, now_us: int) -> None:
        if self._last_us is not None:
            rate = 1_000_000 / max(now_us - self._last_us, 1)
            alpha = self.batching.alpha
            self.rate = rate if not self.rate else alpha * rate + (1 - alpha) * self.rate
        self._last_us = now_us


Parts: TypeAlias = tuple[bytes, ...]

TEXT_MAX = 65_536
"""Bytes of one token or of the text of an error: a relay drops messages that are too large."""


class RetentionOptions(msgspec.Struct, frozen=True):
    """How much a publisher keeps, and when it shows that it lives."""

    unsent_max: int = 1_000
    """Messages that wait to be sent; then the application waits."""
    unsent_bytes_max: int = 4 * 1024 * 1024
    """Bytes of those."""
    sent_max: int = 1_000
    """Sent messages that are kept, to be sent again after the link was lost: as many as a relay keeps."""
    sent_bytes_max: int = 8 * 1024 * 1024
    """Bytes of those."""
    heartbeat_ms: int = 5_000
    """Silence after which a heartbeat goes out; 0 is never."""


class Composer:
    """The messages of one stream."""

    def __init__(
        self,
        now_us: int,
        keys: StreamKeys,
        *,
        stream_id: str = "",
        format: Format = "block",  # noqa: A002
        batching: Batching | None = None,
        keeping: RetentionOptions | None = None,
    ) -> None:
        self.stream_id = stream_id
        self.is_over = False
        """A terminal payload was composed."""
        self.tokens = 0
        self._keeping = keeping or RetentionOptions()
        self._topic = keys.topic.encode()
        self._batcher = Batcher(batching) if format == "block" else None
        kind = BlockChain if format == "block" else ChainedStreamHmac
        self._chain = kind(keys.mac_key, keys.topic, keys.suite)
        self._unsent: deque[Parts] = deque()
        self._unsent_bytes = 0
        self._sent: deque[Parts] = deque()
        self._sent_bytes = 0
        self._composed_us = now_us
        """When a message was last composed."""

    # Payloads

    def add(self, now_us: int, payload: Payload) -> bool:
        """Add a payload; False after the end of the stream."""
        if self.is_over:
            return False
        is_last = isinstance(payload, Complete | StreamFailure)
        self.is_over = is_last
        if self._batcher is None:
            self._compose(now_us, [payload])
        elif self._batcher.add(now_us, payload) or is_last or isinstance(payload, Heartbeat):
            self._compose(now_us, self._batcher.take())
        return True

    def flush(self, now_us: int) -> None:
        """Send the incomplete batch."""
        if self._batcher is not None and self._batcher.due_us is not None:
            self._compose(now_us, self._batcher.take())

    def due_us(self) -> int | None:
        """When `step` has something to do."""
        if self._batcher is not None and self._batcher.due_us is not None:
            return self._batcher.due_us
        if self.is_over or not self._keeping.heartbeat_ms:
            return None
        return self._composed_us + self._keeping.heartbeat_ms * 1000

    def step(self, now_us: int) -> None:
        """Send a batch that is due, or a heartbeat."""
        due_us = self.due_us()
        if due_us is None or now_us < due_us:
            return
        if self._batcher is not None and self._batcher.due_us is not None:
            self.flush(now_us)
        elif self._unsent:
            self._composed_us = now_us  # a heartbeat behind unsent messages would say nothing new
        else:
            self.add(now_us, Heartbeat(self.stream_id))

    def _compose(self, now_us: int, payloads: list[Payload]) -> None:
        chain = self._chain
        if self._batcher is None:
            data = encode.payload(payloads[0])
            prev = chain.prev
            mac = chain.compute_next(data)
            self._keep_unsent((encode.chunk(self._topic, data, mac, prev),))
        else:
            frame = encode.block(chain.prev, payloads)
            self._keep_unsent((self._topic, frame, chain.compute_next(frame)))
        self._composed_us = now_us

    # Messages

    @property
    def is_full(self) -> bool:
        keeping = self._keeping
        return len(self._unsent) >= keeping.unsent_max or self._unsent_bytes >= keeping.unsent_bytes_max

    @property
    def unsent(self) -> int:
        return len(self._unsent)

    def next(self) -> Parts | None:
        """The message that must be sent next."""
        return self._unsent[0] if self._unsent else None

    def sent(self) -> None:
        """The message of `next` was sent."""
        parts = self._unsent.popleft()
        size = _size(parts)
        self._unsent_bytes -= size
        self._sent.append(parts)
        self._sent_bytes += size
        while len(self._sent) > self._keeping.sent_max or self._sent_bytes > self._keeping.sent_bytes_max:
            self._sent_bytes -= _size(self._sent.popleft())

    def again(self) -> None:
        """Send the latest messages again, before the unsent ones: which of them were lost is unknown."""
        self._unsent.extendleft(reversed(self._sent))
        self._unsent_bytes += self._sent_bytes
        self._sent.clear()
        self._sent_bytes = 0

    def _keep_unsent(self, parts: Parts) -> None:
        self._unsent.append(parts)
        self._unsent_bytes += _size(parts)


def _size(parts: Parts) -> int:
    return sum(map(len, parts))
