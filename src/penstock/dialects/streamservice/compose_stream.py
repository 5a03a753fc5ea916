"""A publisher's side of a token stream: payloads become messages of a chain, in order, and none is ever skipped.

Owns what was composed and not sent yet, and the latest that was sent, for a relay that comes back without its memory. It never knows a
socket or a clock. What it keeps:

- A message that was composed has its place in the chain for good. If it cannot be sent it waits, and so does all that follows.
- What is sent again is sent as it was, before anything newer; readers drop what they have.
- After a terminal payload there is nothing more.
- What waits is bounded: `is_full` tells the shell to make the application wait. What is kept after sending is bounded by letting the
  oldest go.

Cost of `add`: that of a MAC and an encoding, about 3 us a token in blocks.
"""

from __future__ import annotations

from collections import deque
from typing import TypeAlias

import msgspec

from penstock.dialects.streamservice import encode
from penstock.dialects.streamservice.block_sizes import Batcher, Batching
from penstock.dialects.streamservice.chain import BlockChain, ChainedStreamHmac
from penstock.dialects.streamservice.keys import StreamKeys
from penstock.dialects.streamservice.messages import Complete, Heartbeat, Payload, StreamFailure
from penstock.dialects.streamservice.verify_stream import Format

Parts: TypeAlias = tuple[bytes, ...]

TEXT_MAX = 65_536
"""Bytes of one token or of the text of an error: a relay drops what is larger than a message may be."""


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
        """When something was last composed."""

    # Payloads

    def add(self, now_us: int, payload: Payload) -> bool:
        """Take a payload; false after the end, when it is not taken."""
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
        """Let what waits for company go."""
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
        """Let a batch go whose time has come, or show that we live."""
        due_us = self.due_us()
        if due_us is None or now_us < due_us:
            return
        if self._batcher is not None and self._batcher.due_us is not None:
            self.flush(now_us)
        elif self._unsent:
            self._composed_us = (
                now_us  # nobody hears what waits, and what waits shows more than a heartbeat would
            )
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
        """The message that must be sent before any other."""
        return self._unsent[0] if self._unsent else None

    def sent(self) -> None:
        """The message of `next` is on its way."""
        parts = self._unsent.popleft()
        size = _size(parts)
        self._unsent_bytes -= size
        self._sent.append(parts)
        self._sent_bytes += size
        while len(self._sent) > self._keeping.sent_max or self._sent_bytes > self._keeping.sent_bytes_max:
            self._sent_bytes -= _size(self._sent.popleft())

    def again(self) -> None:
        """Put what was sent lately before what was not: nobody knows what of it got lost."""
        self._unsent.extendleft(reversed(self._sent))
        self._unsent_bytes += self._sent_bytes
        self._sent.clear()
        self._sent_bytes = 0

    def _keep_unsent(self, parts: Parts) -> None:
        self._unsent.append(parts)
        self._unsent_bytes += _size(parts)


def _size(parts: Parts) -> int:
    return sum(map(len, parts))
