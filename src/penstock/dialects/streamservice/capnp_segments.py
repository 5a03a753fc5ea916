"""Framed Cap'n Proto messages from untrusted peers: segments, pointers and structs, read within bounds.

Owns the layout of a message: the segment table, struct and list pointers, far and double far pointers. It must never know what a message
means; `wire.py` and `decode.py` do.

Invariants:

- Nothing outside the frame is read, and no memory is allocated by a length that a message declares: every extent is compared with its
  segment before it is sliced.
- The effort is bounded. Pointers may share their target, so a small message can describe a huge one; every visit is charged to
  `Message.left`, which is a small multiple of the size of the message.
- An error is a `WireError` with one of the reasons in `REASONS`. Public functions of other modules turn it into a `FrameFault`.

Cost: about 2 us to open a message of one segment, and 1 us a field.
"""

from __future__ import annotations

from struct import Struct as Layout
from struct import unpack_from
from typing import Final

WORD = 8
SEGMENTS_MAX = 512
"""Segments of one message, the usual limit of Cap'n Proto readers; builders reach a gigabyte with fewer than 30."""
VISITS = 4
"""How often a message may be read in full: it is read once, after one or two checks."""
VISITS_FREE = 64
"""Additional words, for messages of a few words."""

REASONS: Final = {
    "short": "the message ends before it is whole",
    "long": "there are bytes after the message",
    "segments": "the message has too many segments",
    "bounds": "a pointer leads out of its segment",
    "far": "a far pointer does not lead to a landing pad",
    "kind": "a pointer is of another kind than its field",
    "capability": "the message holds a capability",
    "text": "a text does not end in a zero byte, or is not UTF-8",
    "effort": "reading the message takes more effort than its size allows",
    "depth": "the message is nested too deep",
    "unknown": "the message is of no known kind",
    "topic": "the topic does not have 64 bytes",
    "size": "a key, a MAC, a signature or a nonce has the wrong size",
    "field": "the message holds an unknown field",
}
"""Every reason to reject a message: few, so that each can be a counter."""

LIST_VOID, LIST_BIT, LIST_BYTE, LIST_TWO, LIST_FOUR, LIST_EIGHT, LIST_POINTER, LIST_STRUCT = range(8)

_word = Layout("<Q").unpack_from
_signed = Layout("<q").unpack_from
_half = Layout("<I").unpack_from
_quarter = Layout("<H").unpack_from
_float = Layout("<f").unpack_from


class WireError(Exception):
    """An invalid message; `reason` is a key of `REASONS`."""

    def __init__(self, reason: str) -> None:
        super().__init__(REASONS[reason])
        self.reason = reason


class Message:
    """A frame, the bounds of its segments, and the words that may still be visited."""

    __slots__ = ("bounds", "frame", "left", "words")

    def __init__(self, frame: bytes) -> None:
        size = len(frame)
        if size < 2 * WORD:
            raise WireError("short")
        count = _half(frame)[0] + 1
        if count > SEGMENTS_MAX:
            raise WireError("segments")
        start = (4 + 4 * count + WORD - 1) // WORD * WORD
        if start > size:
            raise WireError("short")
        bounds = []
        for words in unpack_from(f"<{count}I", frame, 4):
            bounds.append((start, start + WORD * words))
            start += WORD * words
        if start != size:
            raise WireError("short" if start > size else "long")
        self.frame = frame
        self.bounds = bounds
        self.words = size // WORD
        self.left = VISITS * self.words + VISITS_FREE

    def spend(self, words: int) -> None:
        """Charge a visit of so many words. A visit costs at least one, because a list may have many empty items."""
        self.left -= words or 1
        if self.left < 0:
            raise WireError("effort")

    def root(self) -> Struct:
        """The root struct of the message."""
        start, end = self.bounds[0]
        if end - start < WORD:
            raise WireError("short")
        found = self.struct(0, start)
        if found is None:
            raise WireError("unknown")
        return found

    def resolve(self, segment: int, at: int) -> tuple[int, int, int] | None:
        """Follow a pointer: returns its final word, the segment and the position of its target, or None for a null pointer."""
        word = _word(self.frame, at)[0]
        if not word:
            return None
        kind = word & 3
        if kind == 2:
            return self._far(word)
        if kind == 3:
            raise WireError("capability")
        return word, segment, at + WORD + _offset(word)

    def _far(self, word: int) -> tuple[int, int, int]:
        segment, at = self._landing(word, 2 * WORD if word & 4 else WORD)
        pad = _word(self.frame, at)[0]
        if not word & 4:
            if not pad or pad & 3 > 1:
                raise WireError("far")
            return pad, segment, at + WORD + _offset(pad)
        tag = _word(self.frame, at + WORD)[0]
        if pad & 7 != 2 or not tag or tag & 3 > 1 or _offset(tag):
            raise WireError("far")
        segment, at = self._landing(pad, 0)
        return tag, segment, at

    def _landing(self, word: int, size: int) -> tuple[int, int]:
        """The landing pad of a far pointer, with room for so many bytes."""
        segment = word >> 32
        if segment >= len(self.bounds):
            raise WireError("far")
        start, end = self.bounds[segment]
        at = start + ((word & 0xFFFFFFF8) >> 3) * WORD
        if at + size > end:
            raise WireError("far")
        return segment, at

    def extent(self, segment: int, at: int, size: int) -> None:
        """Check that so many bytes lie in the segment, and charge them."""
        start, end = self.bounds[segment]
        if at < start or at + size > end:
            raise WireError("bounds")
        self.spend((size + WORD - 1) // WORD)

    def struct(self, segment: int, at: int) -> Struct | None:
        """The struct that a pointer leads to."""
        found = self.resolve(segment, at)
        if found is None:
            return None
        word, segment, at = found
        if word & 3:
            raise WireError("kind")
        data, pointers = word >> 32 & 0xFFFF, word >> 48
        self.extent(segment, at, (data + pointers) * WORD)
        return Struct(self, segment, at, data, pointers)

    def data(self, segment: int, at: int) -> bytes | None:
        """The bytes that a pointer leads to. Most reads go through here, so `resolve` and `extent` are inlined."""
        frame = self.frame
        word = _word(frame, at)[0]
        if word & 3 == 1:
            distance = word & 0xFFFFFFFC
            at += WORD + 2 * (distance if distance < 0x80000000 else distance - 0x100000000)
        else:
            found = self.resolve(segment, at)
            if found is None:
                return None
            word, segment, at = found
        if word >> 32 & 7 != LIST_BYTE or word & 3 != 1:
            raise WireError("kind")
        size = word >> 35
        start, end = self.bounds[segment]
        if at < start or at + size > end:
            raise WireError("bounds")
        self.left -= (size + WORD) >> 3
        if self.left < 0:
            raise WireError("effort")
        return frame[at : at + size]

    def structs(self, segment: int, at: int) -> list[Struct]:
        """The structs of the list that a pointer leads to."""
        found = self.resolve(segment, at)
        if found is None:
            return []
        word, segment, at = found
        if word & 3 != 1 or word >> 32 & 7 != LIST_STRUCT:
            raise WireError("kind")
        count, data, pointers = self.composite(word, segment, at)
        step = (data + pointers) * WORD
        self.spend(count)
        at += WORD
        return [Struct(self, segment, at + index * step, data, pointers) for index in range(count)]

    def composite(self, word: int, segment: int, at: int) -> tuple[int, int, int]:
        """The number of structs in a list, and the data words and pointers of each."""
        size = word >> 35
        self.extent(segment, at, WORD + size * WORD)
        tag = _word(self.frame, at)[0]
        if tag & 3:
            raise WireError("kind")
        count, data, pointers = (tag & 0xFFFFFFFF) >> 2, tag >> 32 & 0xFFFF, tag >> 48
        if count * (data + pointers) > size:
            raise WireError("bounds")
        if not data + pointers:
            self.spend(count)
        return count, data, pointers


class Struct:
    """One struct of a message. A field beyond its end has its default, as in messages of older writers."""

    __slots__ = ("at", "data_words", "message", "pointers", "segment")

    def __init__(self, message: Message, segment: int, at: int, data_words: int, pointers: int) -> None:
        self.message = message
        self.segment = segment
        self.at = at
        self.data_words = data_words
        self.pointers = pointers

    def u16(self, byte: int) -> int:
        return _quarter(self.message.frame, self.at + byte)[0] if byte < self.data_words * WORD else 0

    def u32(self, byte: int) -> int:
        return _half(self.message.frame, self.at + byte)[0] if byte < self.data_words * WORD else 0

    def u64(self, byte: int) -> int:
        return _word(self.message.frame, self.at + byte)[0] if byte < self.data_words * WORD else 0

    def i64(self, byte: int) -> int:
        return _signed(self.message.frame, self.at + byte)[0] if byte < self.data_words * WORD else 0

    def f32(self, byte: int) -> float:
        return _float(self.message.frame, self.at + byte)[0] if byte < self.data_words * WORD else 0.0

    def pointer(self, index: int) -> int:
        """The position of a pointer."""
        return self.at + (self.data_words + index) * WORD

    def data(self, index: int) -> bytes | None:
        """The bytes of a field, or None if it was never set."""
        if index >= self.pointers:
            return None
        return self.message.data(self.segment, self.at + (self.data_words + index) * WORD)

    def text(self, index: int) -> str:
        """The text of a field; one that was never set is empty."""
        if index >= self.pointers:
            return ""
        data = self.message.data(self.segment, self.at + (self.data_words + index) * WORD)
        if data is None:
            return ""
        if not data or data[-1]:
            raise WireError("text")
        try:
            return data[:-1].decode()
        except UnicodeDecodeError:
            raise WireError("text") from None

    def struct(self, index: int) -> Struct | None:
        return self.message.struct(self.segment, self.pointer(index)) if index < self.pointers else None

    def structs(self, index: int) -> list[Struct]:
        return self.message.structs(self.segment, self.pointer(index)) if index < self.pointers else []

    def check_known(self, data_words: int, pointers: int) -> None:
        """Reject unknown fields: what is signed must be understood completely."""
        frame = self.message.frame
        beyond = frame[self.at + data_words * WORD : self.pointer(0)] if data_words < self.data_words else b""
        if pointers < self.pointers:
            beyond += frame[self.pointer(pointers) : self.pointer(self.pointers)]
        if any(beyond):
            raise WireError("field")


def _offset(word: int) -> int:
    """The distance of a struct or list pointer in bytes; it may be negative."""
    offset = (word & 0xFFFFFFFC) >> 2
    return (offset - 0x40000000 if offset & 0x20000000 else offset) * WORD
