"""A reader's side of a token stream: which message is next, which came before, and what to do when one is missing.

Owns the reader's place in the chain. It never knows a socket or a clock: messages are given to `take` as they arrive, time to `step`, which
says when something is to be asked for again. What it keeps:

- Only what a MAC proves to be next is given out; so what was given out is always a beginning of what was sent.
- A message that was accepted before is dropped unseen: the relay sends again to everybody what one reader asked for.
- A message that is not next changes nothing but counts. If it names a MAC that we know as the one before it, somebody else made it; if it
  names one that we do not know, something is missing in between, or somebody else made it. Either way we ask for what followed our
  last MAC, less and less often, and give up when no try brought the next message.
- A stream ends with a terminal payload. Whatever else ends it is an error: `Gap`, `Tampered`, `Truncated` or `Unreadable`.

A good message forgives all doubts, so somebody who can only add messages must keep every good one away for the whole time of the tries,
which is longer than the time between two heartbeats. Cost of `take`: one MAC, and about 3 us for each token.
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
"""The first byte of the relay's answer that a MAC is not known there; the MAC follows."""


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
    """Messages that somebody else made, one after the other, after which we give up at once."""
    remembered_max: int = 4_096
    """Accepted MACs that we recognise: more than a relay keeps, and a publisher sends again."""


class Gap(msgspec.Struct, frozen=True):
    """Messages are missing, and asking for them did not help."""

    is_gone: bool
    """The relay says that it does not have them any more."""


class Tampered(msgspec.Struct, frozen=True):
    """What arrives instead of the next message was not made by the publisher."""

    count: int


class Truncated(msgspec.Struct, frozen=True):
    """The stream stopped without saying that it is over."""

    reason: Literal["idle", "expired"]


class Unreadable(msgspec.Struct, frozen=True):
    """The publisher sent what we cannot read."""

    reason: str


Ending: TypeAlias = Complete | StreamFailure | Gap | Tampered | Truncated | Unreadable


class ResumeRequest(msgspec.Struct, frozen=True):
    """Ask the relay for what followed a MAC; without one, subscribe anew, which brings all that it has."""

    mark: bytes | None


class VerifierCounts(msgspec.Struct):
    """What arrived, and what became of it."""

    accepted: int = 0
    duplicates: int = 0
    ahead: int = 0
    """Messages with an unknown one before them."""
    tampered: int = 0
    foreign: int = 0
    """Messages that are none of this stream."""
    asked: int = 0
    gone: int = 0
    """Answers of the relay that it does not know our place any more."""


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
        """The format of the first good message counts, unless one is given. `jitter`, from 0 to 1, spreads the requests of many readers."""
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
        """When the last good message came, or the wait for it began."""
        self._asked_us = now_us - 10**9
        self._tries = 0
        self._next_us = now_us
        """When to ask again; later than anything while there is no doubt."""
        self._is_in_doubt = False
        self._is_gone = False
        self._tampered = 0
        self._rest(now_us)

    @property
    def mark(self) -> bytes | None:
        """The last good MAC."""
        return self._blocks.state or self._chunks.state

    # Messages

    def take(self, now_us: int, parts: Sequence[bytes]) -> list[Payload]:
        """The payloads of a message, if it is the next one; the terminal one becomes `ending` instead."""
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
            # A MAC of 16 bytes can be cut from one of 32, so this may be a chunk in disguise; a heartbeat makes an empty block.
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

    def _accept(
        self, now_us: int, chain: ChainedStreamHmac, mac: bytes, payloads: list[Payload]
    ) -> list[Payload]:
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
        """A message is not the next one: note whether something is missing, and see to it that it is asked for."""
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
        """All is well, as far as we know."""
        self._good_us = now_us
        self._is_in_doubt = self._is_gone = False
        self._tries = self._tampered = 0
        self._next_us = now_us + self._wait_us(self._patience.probe_ms)

    # Time

    def due_us(self) -> int:
        """When `step` has something to say, at the latest."""
        due_us = self._next_us
        if self._patience.idle_ms is not None:
            due_us = min(due_us, self._good_us + self._patience.idle_ms * 1000)
        return due_us if self._ends_us is None else min(due_us, self._ends_us)

    def step(self, now_us: int) -> ResumeRequest | None:
        """What is to be asked for now; sets `ending` when patience is at its end."""
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
        self._next_us = now_us + self._wait_us(
            patience.resume_first_ms if self._is_in_doubt else patience.probe_ms
        )
        self._tries += 1
        self._asked_us = now_us
        self.counts.asked += 1
        return ResumeRequest(self.mark)

    def reconnected(self, now_us: int) -> None:
        """The link was lost and is back: ask at once for what was missed."""
        if self.ending is None and not self._is_in_doubt:
            self._next_us = max(now_us, self._asked_us + self._patience.resume_first_ms * 1000)

    def rested(self, now_us: int) -> None:
        """Nobody looked at what arrived for a while, so the silence is not the publisher's."""
        if not self._is_in_doubt:
            self._rest(now_us)
        else:
            self._good_us = now_us

    def _wait_us(self, first_ms: int) -> int:
        longest_ms = max(self._patience.resume_longest_ms, first_ms)
        return int(min(first_ms << min(self._tries, 20), longest_ms) * self._spread * 1000)

    def _broken(self) -> Ending:
        return Tampered(self._tampered) if self._tampered else Gap(self._is_gone)
