"""How many payloads go into one block: few at a low rate, for latency, and many at a high rate, for throughput.

Owns the payloads of the batch that is being filled. The rate is a moving average of the latest intervals, and the batch size grows with its
logarithm between two rates. A batch also ends at a number of bytes, and when its oldest payload has waited `max_delay_ms`: a generator that pauses
never holds back a token.
"""

from __future__ import annotations

from math import floor, log

import msgspec

from penstock.dialects.streamservice.messages import Payload, StreamFailure, Token

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
