"""The control channel of a stream: a reader sends the publisher `cancel` or `ping`, authenticated and protected against replay.

The channel is Penstock's own: both ends derive a topic and a MAC key for it along with those of the stream. A message has the three parts
of a block: the control topic, a framed struct with a word and a number, and a MAC of 16 bytes over both. The number must be greater than
any before, so a replayed message is rejected. Readers use their clock as the number, so that a restarted reader is accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from hmac import compare_digest
from typing import Final, Literal, TypeAlias

from penstock.core.errors import PenstockError, Refusal
from penstock.dialects.streamservice.capnp_segments import Message, WireError
from penstock.dialects.streamservice.encode import Body, framed
from penstock.dialects.streamservice.keys import StreamKeys, mac_function
from penstock.dialects.streamservice.wire import BLOCK_MAC_SIZE

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
