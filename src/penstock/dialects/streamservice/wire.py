"""Classify a frame on the publishers' socket: a registration, a chunk, a request to resume, or invalid.

Owns the detection. Roots of Cap'n Proto have no type, and field sizes are ambiguous: a chunk with 64 bytes of data looks like a
signature, and one with 32 bytes like a request to resume. The shape of the root decides. Pointer 0 of an envelope leads to a struct, that
of the others to a text; a chunk has three pointers or more and a MAC of 32 bytes, a request to resume has two and a MAC of 16 or 32.

The relay is blind: it reads only the topic and the MACs, and the reader checks the data of a chunk. A topic is returned as it is: an
unregistered one has no effect, and `is_topic` is called where topics are created.

Cost: about 1 us for a chunk of one segment, which is what builders write; 5 us otherwise.
"""

from __future__ import annotations

import re
from struct import Struct as Layout

import msgspec

from penstock.core.relay.topic import Message as Published
from penstock.dialects.streamservice.capnp_segments import REASONS, Message, Struct, WireError

TOPIC_SIZE = 64
CHUNK_MAC_SIZE = 32
BLOCK_MAC_SIZE = 16
SIGNATURE_SIZE = 64
KEY_SIZE = 32

HEAD = 48
"""Bytes before the topic of a chunk: the segment table, the root and its four pointers, which say where everything is."""
TOPIC_END = HEAD + 64
HEADS_MAX = 4_096
"""Heads that are remembered, about 150 bytes each; then the memory starts over."""

_TOPIC = re.compile(rb"[0-9a-f]{64}")
_head = Layout("<IIQQQIIII").unpack_from
_ROOT = 4 << 48
"""A struct without data and with four pointers, which follow immediately."""
_TOPIC_FIRST = ((TOPIC_SIZE + 1) << 3 | 2) << 32 | 3 << 2 | 1
"""A text of 64 bytes and its zero, which follows those pointers immediately, from byte 48 on."""
_MAC = CHUNK_MAC_SIZE << 3 | 2
"""The upper half of a pointer to 32 bytes."""


class Register(msgspec.Struct, frozen=True, gc=False):
    """A signed envelope, not verified."""

    frame: bytes
    signature: bytes
    signer: bytes


class Resume(msgspec.Struct, frozen=True, gc=False):
    """A request to send again what followed a MAC."""

    topic: bytes
    mac: bytes


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """One payload of a topic; `prev` is empty for the first."""

    topic: bytes
    mac: bytes
    prev: bytes


class FrameFault(msgspec.Struct, frozen=True, gc=False):
    """An invalid frame; `reason` is a key of `capnp_segments.REASONS`."""

    reason: str

    @property
    def message(self) -> str:
        return REASONS[self.reason]


def is_topic(topic: bytes) -> bool:
    """Whether a topic has 64 lowercase hexadecimal digits."""
    return _TOPIC.fullmatch(topic) is not None


def peek(frame: bytes) -> Register | Resume | Chunk | FrameFault:
    """Classify a frame. Never raises."""
    places = _places(frame)
    if places is None or frame[TOPIC_END]:
        return _look(frame)
    mac, prev = places
    return Chunk(frame[HEAD:TOPIC_END], frame[mac : mac + 32], frame[prev : prev + 32] if prev else b"")


def _places(frame: bytes) -> tuple[int, int] | None:
    """Where the MACs of a chunk in the usual layout begin, 0 for no previous one; None for any other message. The head decides."""
    size = len(frame)
    if size < 120:
        return None
    segments, words, root, topic, _, mac_at, mac, prev_at, prev = _head(frame)
    # The lower half of a list pointer is four times its distance in words, plus one; a negative distance is a huge number here.
    if segments or root != _ROOT or topic != _TOPIC_FIRST or mac != _MAC or mac_at & 3 != 1 or 8 + 8 * words != size:
        return None
    mac_place, prev_place = 38 + 2 * mac_at, 46 + 2 * prev_at if prev or prev_at else 0
    if prev_place and (prev != _MAC or prev_at & 3 != 1):
        return None
    return None if max(mac_place, prev_place) + 32 > size else (mac_place, prev_place)


def peek_block(frame: bytes) -> bytes | FrameFault:
    """The `prevMac` of a block, the only part of it that the relay reads."""
    try:
        prev = Message(frame).root().data(0)
    except WireError as error:
        return FrameFault(error.reason)
    return FrameFault("size") if prev is None or len(prev) != BLOCK_MAC_SIZE else prev


def _look(frame: bytes) -> Register | Resume | Chunk | FrameFault:
    """The general case: any valid layout of a message."""
    try:
        return _detect(frame, Message(frame).root())
    except WireError as error:
        return FrameFault(error.reason)


def _detect(frame: bytes, root: Struct) -> Register | Resume | Chunk | FrameFault:
    first = root.message.resolve(root.segment, root.pointer(0)) if root.pointers >= 2 else None
    if first is None:
        return FrameFault("unknown")
    if not first[0] & 3:
        return _register(frame, root)
    topic = root.data(0) or b""
    if len(topic) != TOPIC_SIZE + 1:
        return FrameFault("topic")
    if topic[TOPIC_SIZE]:
        return FrameFault("text")
    topic = topic[:TOPIC_SIZE]
    if root.pointers == 2:
        mac = root.data(1) or b""
        return Resume(topic, mac) if len(mac) in (BLOCK_MAC_SIZE, CHUNK_MAC_SIZE) else FrameFault("size")
    mac, prev = root.data(2) or b"", root.data(3) or b""
    if len(mac) != CHUNK_MAC_SIZE or len(prev) not in (0, CHUNK_MAC_SIZE):
        return FrameFault("size")
    return Chunk(topic, mac, prev)


def _register(frame: bytes, root: Struct) -> Register | FrameFault:
    if root.struct(0) is None or root.pointers < 3:
        return FrameFault("unknown")
    signature, signer = root.data(1) or b"", root.data(2) or b""
    if len(signature) != SIGNATURE_SIZE or len(signer) != KEY_SIZE:
        return FrameFault("size")
    return Register(frame, signature, signer)


class Heads:
    """Known heads of chunks: the fastest way to a topic, about 0.2 us. Publishers use few lengths and so few heads.

    A frame with a known head and the same length has the same layout. Other frames go to `peek`.
    """

    __slots__ = ("sizes",)

    def __init__(self) -> None:
        self.sizes: dict[bytes, int] = {}

    def topic(self, frame: bytes) -> bytes | None:
        """The topic of a chunk whose head is known. The loop of the relay repeats these lines to save the call."""
        if self.sizes.get(frame[:HEAD]) == len(frame) and not frame[TOPIC_END]:
            return frame[HEAD:TOPIC_END]
        return None

    def learn(self, frame: bytes) -> None:
        """Remember the head of a frame that `peek` found to be a chunk, if the head alone proves it."""
        if _places(frame) is not None:
            if len(self.sizes) >= HEADS_MAX:
                self.sizes.clear()
            self.sizes[frame[:HEAD]] = len(frame)


def link_of(message: Published) -> tuple[bytes, bytes]:
    """The mark of the preceding message and the own mark, of a message in the form that subscribers receive."""
    if isinstance(message, tuple):
        prev = peek_block(message[1])
        return b"" if isinstance(prev, FrameFault) else prev, message[2]
    found = peek(message[TOPIC_SIZE:])
    return (found.prev, found.mac) if isinstance(found, Chunk) else (b"", b"")


def mark_of(message: Published) -> bytes | None:
    """The MAC of a message in the form that subscribers receive."""
    return link_of(message)[1] or None
