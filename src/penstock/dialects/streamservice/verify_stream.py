"""The reader's side of a token stream: verify that each message is the next one, and recover missing messages.

Owns the reader's position in the chain. It must never know a socket or a clock: `take` gets messages as they arrive, and `step` gets the
time and returns what to request from the relay. Invariants:

- Only messages whose MAC proves them to be next are returned, so the returned payloads are always a prefix of what was sent.
- Duplicates are dropped: the relay repeats to all readers what one reader requests.
- A message that is not next only changes counters. If it names a known MAC as the previous one, it is forged. If it names an unknown one,
  messages are missing, or it is forged. In both cases the reader requests what followed its last MAC, with increasing delays, and gives
  up after a number of attempts.
- A stream ends with a terminal payload. Any other end is an error: `Gap`, `Tampered`, `Truncated` or `Unreadable`.

A valid message resets all doubts. So an attacker that can only add messages would have to suppress every valid one during all attempts,
which take longer than the time between two heartbeats. Cost of `take`: one MAC, and about 3 us for each token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

from penstock.dialects.streamservice.chain import BlockChain, ChainedStreamHmac
from penstock.dialects.streamservice.decode import read_block, read_chunk, read_payload
from penstock.dialects.streamservice.keys import StreamKeys
from penstock.dialects.streamservice.messages import Complete, Payload, StreamFailure
from penstock.dialects.streamservice.wire import BLOCK_MAC_SIZE, TOPIC_SIZE, FrameFault, peek_block

Format: TypeAlias = Literal["chunk", "block"]
GONE_MARK = 3
"""The first byte of the relay's answer that it does not know a MAC; the MAC follows."""


class RetryOptions(msgspec.Struct, frozen=True):
    """How long a reader waits, and how often it asks."""

    resume_first_ms: int = 50
    """Time between the first two requests for what is missing; it doubles from one to the next."""
    resume_longest_ms: int = 5_000
    """Longest time between two of them."""
    resume_tries_max: int = 8
    """Requests without the next message after which a gap is for good: 11 seconds, more than two heartbeats."""
    probe_ms: int = 2_000
    """Silence after which we ask whether the last messages were lost; it doubles too."""
    idle_ms: int | None = 30_000
    """Silence after which a stream counts as cut off; none is for publishers without heartbeats."""
    tampered_max: int = 1_000
    """Forged messages in a row after which the reader gives up at once."""
    remembered_max: int = 4_096
    """Accepted MACs that are remembered: more than a relay keeps or a publisher sends again."""


class Gap(msgspec.Struct, frozen=True):
    """Messages are missing, and the relay did not send them again."""

    is_gone: bool
    """The relay answered that it no longer has them."""


class Tampered(msgspec.Struct, frozen=True):
    """Forged messages arrive instead of the next one."""

    count: int


class Truncated(msgspec.Struct, frozen=True):
    """The stream stopped without a terminal payload."""

    reason: Literal["idle", "expired"]


class Unreadable(msgspec.Struct, frozen=True):
    """The publisher sent a message that cannot be decoded."""

    reason: str


Ending: TypeAlias = Complete | StreamFailure | Gap | Tampered | Truncated | Unreadable


class ResumeRequest(msgspec.Struct, frozen=True):
    """Request what followed a MAC; without one, subscribe again, which brings all that the relay has."""

    mark: bytes | None


class VerifierCounts(msgspec.Struct):
    """Counters of arrived messages."""

    accepted: int = 0
    duplicates: int = 0
    ahead: int = 0
    """Messages whose predecessor is unknown."""
    tampered: int = 0
    foreign: int = 0
    """Messages of another stream or format."""
    asked: int = 0
    gone: int = 0
    """Answers of the relay that it no longer knows the reader's position."""


class StreamVerifier:
    """One reader of one stream."""

    def __init__(
        self,
        now_us: int,
        keys: StreamKeys,
        patience: RetryOptions | None = None,
        *,
        format: Format | None = None,  # noqa: A002
        ends_us: int | None = None,
        jitter: float = 0.5,
    ) -> None:
        """Without `format`, the first valid message decides. `jitter`, from 0 to 1, spreads the requests of many readers."""
        self.counts = VerifierCounts()
        self.ending: Ending | None = None
        self.format = format
        self._patience = patience or RetryOptions()
        self._topic = keys.topic.encode()
        self._chunks = ChainedStreamHmac(keys.mac_key, keys.topic, keys.suite)
        self._blocks = BlockChain(keys.mac_key, keys.topic, keys.suite)
        self._seen: dict[bytes, None] = {}
        self._ends_us = ends_us
        self._spread = 0.75 + jitter / 2
        self._good_us = now_us
        """When the last valid message arrived, or the wait for it began."""
        self._asked_us = now_us - 10**9
        self._tries = 0
        self._next_us = now_us
        """When to send the next request."""
        self._is_in_doubt = False
        self._is_gone = False
        self._tampered = 0
        self._rest(now_us)

    @property
    def mark(self) -> bytes | None:
        """The last valid MAC."""
        return self._blocks.state or self._chunks.state

    # Messages

    def take(self, now_us: int, parts: Sequence[bytes]) -> list[Payload]:
        """The payloads of a message if it is the next one; a terminal payload becomes `ending` instead."""
        if self.ending is not None:
            return []
        if len(parts) == 3:
            return self._take_block(now_us, parts)
        if len(parts) == 1 and parts[0].startswith(self._topic):
            return self._take_chunk(now_us, parts[0][TOPIC_SIZE:])
        if len(parts) == 2 and parts[0] == self._topic and parts[1][:1] == bytes((GONE_MARK,)):
            if parts[1][1:] == self.mark:
                self.counts.gone += 1
                self._is_gone = True
            return []
        self.counts.foreign += 1
        return []

    def _take_block(self, now_us: int, parts: Sequence[bytes]) -> list[Payload]:
        topic, frame, mac = parts
        if topic != self._topic or len(mac) != BLOCK_MAC_SIZE or self.format == "chunk":
            self.counts.foreign += 1
            return []
        if mac in self._seen:
            self.counts.duplicates += 1
            return []
        if not self._blocks.is_next(frame, mac):
            prev = peek_block(frame)
            self._doubt(now_us, None if isinstance(prev, FrameFault) else prev, self._blocks)
            return []
        block = read_block(frame)
        if self.format is None and (isinstance(block, FrameFault) or not block.payloads):
            # A MAC of 16 bytes can be cut from one of 32, so this may be a disguised chunk: a heartbeat decodes as an empty block.
            self._doubt(now_us, None, self._blocks)
            return []
        if isinstance(block, FrameFault):
            self.ending = Unreadable(block.message)
            return []
        self.format = "block"
        return self._accept(now_us, self._blocks, mac, block.payloads)

    def _take_chunk(self, now_us: int, frame: bytes) -> list[Payload]:
        chunk = read_chunk(frame)
        if isinstance(chunk, FrameFault) or chunk.topic != self._topic or self.format == "block":
            self.counts.foreign += 1
            return []
        if chunk.mac in self._seen:
            self.counts.duplicates += 1
            return []
        if not self._chunks.is_next(chunk.data, chunk.mac):
            self._doubt(now_us, chunk.prev, self._chunks)
            return []
        payload = read_payload(chunk.data)
        if isinstance(payload, FrameFault):
            self.ending = Unreadable(payload.message)
            return []
        self.format = "chunk"
        return self._accept(now_us, self._chunks, chunk.mac, [payload])

    def _accept(self, now_us: int, chain: ChainedStreamHmac, mac: bytes, payloads: list[Payload]) -> list[Payload]:
        chain.advance(mac)
        self.counts.accepted += 1
        seen = self._seen
        seen[mac] = None
        if len(seen) > self._patience.remembered_max:
            del seen[next(iter(seen))]
        self._rest(now_us)
        for index, payload in enumerate(payloads):
            if isinstance(payload, Complete | StreamFailure):
                self.ending = payload
                return payloads[:index]
        return payloads

    def _doubt(self, now_us: int, prev: bytes | None, chain: ChainedStreamHmac) -> None:
        """Count a message that is not the next one, and schedule a request for what may be missing."""
        first = self._topic[: chain.FIRST_PREV]
        if prev is None or prev in (chain.prev, first) or prev in self._seen:
            self.counts.tampered += 1
            self._tampered += 1
            if self._tampered >= self._patience.tampered_max:
                self.ending = Tampered(self._tampered)
                return
        else:
            self.counts.ahead += 1
        if not self._is_in_doubt:
            self._is_in_doubt = True
            self._tries = 0
            self._next_us = max(now_us, self._asked_us + self._patience.resume_first_ms * 1000)

    def _rest(self, now_us: int) -> None:
        """Reset all doubts."""
        self._good_us = now_us
        self._is_in_doubt = self._is_gone = False
        self._tries = self._tampered = 0
        self._next_us = now_us + self._wait_us(self._patience.probe_ms)

    # Time

    def due_us(self) -> int:
        """When `step` must be called next."""
        due_us = self._next_us
        if self._patience.idle_ms is not None:
            due_us = min(due_us, self._good_us + self._patience.idle_ms * 1000)
        return due_us if self._ends_us is None else min(due_us, self._ends_us)

    def step(self, now_us: int) -> ResumeRequest | None:
        """The request to send now, if any; sets `ending` when all attempts failed."""
        if self.ending is not None:
            return None
        patience = self._patience
        if self._ends_us is not None and now_us >= self._ends_us:
            self.ending = self._broken() if self._is_in_doubt else Truncated("expired")
            return None
        if patience.idle_ms is not None and now_us - self._good_us >= patience.idle_ms * 1000:
            self.ending = self._broken() if self._is_in_doubt else Truncated("idle")
            return None
        if now_us < self._next_us:
            return None
        if self._is_in_doubt and self._tries >= patience.resume_tries_max:
            self.ending = self._broken()
            return None
        self._next_us = now_us + self._wait_us(patience.resume_first_ms if self._is_in_doubt else patience.probe_ms)
        self._tries += 1
        self._asked_us = now_us
        self.counts.asked += 1
        return ResumeRequest(self.mark)

    def reconnected(self, now_us: int) -> None:
        """The connection was lost and is back: request what was missed at once."""
        if self.ending is None and not self._is_in_doubt:
            self._next_us = max(now_us, self._asked_us + self._patience.resume_first_ms * 1000)

    def rested(self, now_us: int) -> None:
        """The application paused reading, so the silence does not count against the publisher."""
        if not self._is_in_doubt:
            self._rest(now_us)
        else:
            self._good_us = now_us

    def _wait_us(self, first_ms: int) -> int:
        longest_ms = max(self._patience.resume_longest_ms, first_ms)
        return int(min(first_ms << min(self._tries, 20), longest_ms) * self._spread * 1000)

    def _broken(self) -> Ending:
        return Tampered(self._tampered) if self._tampered else Gap(self._is_gone)
