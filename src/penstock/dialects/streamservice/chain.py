"""MAC chains: each MAC covers the one before it, so that a missing, added or moved message is detected.

Owns the state of a chain, which is the last MAC. The first MAC covers the 64 characters of the topic instead.

- Chunks: `mac_n = MAC(key, mac_{n-1} || data_n)`, 32 bytes. `prevHmac` is the MAC before, and empty at first.
- Blocks: the same over the whole framed message with its segment table, truncated to 16 bytes; the truncated MAC is chained. `prevMac` is
  the MAC before, and at first the first 16 characters of the topic.

The state advances only when a MAC is accepted, or when a publisher says that its message was sent: a failed send does not break a chain.
MACs are compared in constant time and as a whole: a MAC of another size is wrong, never a reason to skip the check.

The control channel, on which a reader sends the publisher `cancel` or `ping`, is Penstock's own: both ends derive a topic and a MAC key for
it along with those of the stream. A message has the three parts of a block: the control topic, a framed struct with a word and a number,
and a MAC of 16 bytes over both. The number must be greater than any before, so a replayed message is rejected. Readers use their clock as
the number, so that a restarted reader is accepted.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from hmac import compare_digest
from typing import Final, Literal, TypeAlias

from penstock.core.errors import PenstockError, Refusal
from penstock.dialects.streamservice.capnp_segments import Message, WireError
from penstock.dialects.streamservice.encode import Body, framed
from penstock.dialects.streamservice.keys import MAC_SIZE, StreamKeys, Suite, mac_function
from penstock.dialects.streamservice.wire import BLOCK_MAC_SIZE, CHUNK_MAC_SIZE, is_topic


class ChainedStreamHmac:
    """The chain of a stream of chunks; named as in the protocol's description."""

    SIZE = CHUNK_MAC_SIZE
    FIRST_PREV = 0
    """Characters of the topic that replace the MAC before the first."""

    __slots__ = ("_first", "_mac", "_state", "topic")

    def __init__(self, mac_key: bytes, topic: str, suite: Suite = "sha256", *, state: bytes | None = None) -> None:
        """`state` is the last MAC of a chain that is resumed."""
        if len(mac_key) != MAC_SIZE or not any(mac_key):
            raise ValueError(f"a MAC key has {MAC_SIZE} bytes, and is not zero")
        self.topic = topic.encode()
        if not is_topic(self.topic):
            raise ValueError("a topic has 64 lowercase hexadecimal digits")
        if state is not None and len(state) != self.SIZE:
            raise ValueError(f"a MAC of this chain has {self.SIZE} bytes")
        function = mac_function(mac_key, suite)
        if isinstance(function, Refusal):
            raise PenstockError(function)
        self._mac = function
        self._first = self.topic
        self._state = state

    @property
    def state(self) -> bytes | None:
        """The last MAC, or None at the start."""
        return self._state

    @property
    def prev(self) -> bytes:
        """The previous MAC as the next message states it."""
        return self.topic[: self.FIRST_PREV] if self._state is None else self._state

    def next_mac(self, data: bytes) -> bytes:
        """The MAC that this data would have as the next message; the chain does not advance."""
        return self._mac(self._state or self._first, data)[: self.SIZE]

    def advance(self, mac: bytes) -> None:
        """Advance to a MAC of `next_mac`, when its message was sent or accepted."""
        if len(mac) != self.SIZE:
            raise ValueError(f"a MAC of this chain has {self.SIZE} bytes")
        self._state = mac

    def compute_next(self, data: bytes) -> bytes:
        """The MAC of the next message; the chain advances."""
        self._state = mac = self.next_mac(data)
        return mac

    def is_next(self, data: bytes, mac: bytes) -> bool:
        """Whether this data and MAC are the next message; the chain does not advance."""
        return hmac.compare_digest(self.next_mac(data), mac)

    def verify_next(self, data: bytes, mac: bytes) -> bool:
        """Whether this is the next message; the chain advances only if it is."""
        if not self.is_next(data, mac):
            return False
        self._state = mac
        return True


class BlockChain(ChainedStreamHmac):
    """The chain of a stream of blocks; the data is the whole framed message."""

    SIZE = BLOCK_MAC_SIZE
    FIRST_PREV = BLOCK_MAC_SIZE
    __slots__ = ()


Word: TypeAlias = Literal["cancel", "ping"]
_WORDS: Final[tuple[Word, ...]] = ("cancel", "ping")


class ControlChannel:
    """One end of a stream's control channel."""

    def __init__(self, keys: StreamKeys) -> None:
        function = mac_function(keys.ctrl_mac_key, keys.suite)
        if isinstance(function, Refusal):
            raise PenstockError(function)
        self.topic = keys.ctrl_topic.encode()
        self.refused = 0
        """Messages that were rejected."""
        self._mac = function
        self._number = 0

    def seal(self, word: Word, number: int) -> tuple[bytes, bytes, bytes]:
        """Encode a message. The number is a clock value, or one more than the last if that is greater."""
        self._number = max(number, self._number + 1)
        arm = _WORDS.index(word)
        frame = framed(Body(arm.to_bytes(8, "little") + self._number.to_bytes(8, "little")))
        return self.topic, frame, self._mac(self.topic, frame)[:BLOCK_MAC_SIZE]

    def open(self, parts: Sequence[bytes]) -> Word | None:
        """The word of a message, if the other end made it and it is not a replay."""
        word = self._open(*parts[1:]) if len(parts) == 3 and parts[0] == self.topic else None
        self.refused += word is None
        return word

    def _open(self, frame: bytes, mac: bytes) -> Word | None:
        if not compare_digest(self._mac(self.topic, frame)[:BLOCK_MAC_SIZE], mac):
            return None
        try:
            root = Message(frame).root()
        except WireError:
            return None
        arm, number = root.u16(0), root.u64(8)
        if number <= self._number or arm >= len(_WORDS):
            return None
        self._number = number
        return _WORDS[arm]
