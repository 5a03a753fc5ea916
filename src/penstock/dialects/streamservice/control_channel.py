"""A reader's words to the publisher: stop, or are you there? Nobody else can say them, and nobody can say them twice.

Owns the control channel, which is Penstock's own: a topic and a MAC key that both ends derive beside those of the stream. A message has the
three parts of a block: the control topic, a framed struct with what is said and a number, and a MAC of 16 bytes over both. The
number must be greater than any before, so a copy of a message is worth nothing. Readers take their clock for the number, so
that a reader that was started anew is still heard.
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
        """Messages that did not count."""
        self._mac = function
        self._number = 0

    def seal(self, word: Word, number: int) -> tuple[bytes, bytes, bytes]:
        """A message. The number is a clock's, or one more than the last if that is greater."""
        self._number = max(number, self._number + 1)
        arm = _WORDS.index(word)
        frame = framed(Body(arm.to_bytes(8, "little") + self._number.to_bytes(8, "little")))
        return self.topic, frame, self._mac(self.topic, frame)[:BLOCK_MAC_SIZE]

    def open(self, parts: Sequence[bytes]) -> Word | None:
        """What a message says, if the other end made it and it is new."""
        if len(parts) != 3 or parts[0] != self.topic:
            self.refused += 1
            return None
        _, frame, mac = parts
        if not compare_digest(self._mac(self.topic, frame)[:BLOCK_MAC_SIZE], mac):
            self.refused += 1
            return None
        try:
            root = Message(frame).root()
        except WireError:
            self.refused += 1
            return None
        arm, number = root.u16(0), root.u64(8)
        if number <= self._number or arm >= len(_WORDS):
            self.refused += 1
            return None
        self._number = number
        return _WORDS[arm]
