"""MAC chains: each MAC covers the one before it, so that a missing, added or moved message is detected.

Owns the state of a chain, which is the last MAC. The first MAC covers the 64 characters of the topic instead.

- Chunks: `mac_n = MAC(key, mac_{n-1} || data_n)`, 32 bytes. `prevHmac` is the MAC before, and empty at first.
- Blocks: the same over the whole framed message with its segment table, truncated to 16 bytes; the truncated MAC is chained. `prevMac` is
  the MAC before, and at first the first 16 characters of the topic.

The state advances only when a MAC is accepted, or when a publisher says that its message was sent: a failed send does not break a chain.
MACs are compared in constant time and as a whole: a MAC of another size is wrong, never a reason to skip the check.
"""

from __future__ import annotations

import hmac

from penstock.core.errors import PenstockError, Refusal
from penstock.dialects.streamservice.keys import MAC_SIZE, Suite, mac_function
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
