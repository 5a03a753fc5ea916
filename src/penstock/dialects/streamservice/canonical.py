"""The canonical encoding of a struct of a received message: what signatures are made over.

Owns one rule: equal structs have equal bytes, whatever their layout. One segment without a table; the targets of pointers follow in the order of
the pointers, depth first; zero words at the end of a struct's data and null pointers at its end are dropped; the structs of a list have the
size of the largest one; bits beyond the end of a list are zero. A struct that cannot be encoded raises, so nothing is signed over empty bytes.
Cost: about 2 us a pointer, bounded by the size of the message.
"""

from __future__ import annotations

from struct import Struct as Layout

from penstock.dialects.streamservice.capnp_segments import (
    LIST_BIT,
    LIST_POINTER,
    LIST_STRUCT,
    WORD,
    Message,
    Struct,
    WireError,
)
from penstock.dialects.streamservice.encode import EMPTY_STRUCT
from penstock.dialects.streamservice.wire import FrameFault

DEPTH_MAX = 64
"""Nested pointers, the usual limit of Cap'n Proto readers; an envelope has five."""

_pointer = Layout("<II").pack_into
_word = Layout("<Q").pack
_ELEMENT_BITS = (0, 1, 8, 16, 32, 64)


def canonical(struct: Struct) -> bytes:
    """The canonical bytes of a struct; raises `WireError` if it has none."""
    out = bytearray(WORD)
    _struct(out, 0, struct, DEPTH_MAX)
    return bytes(out)


def canonical_message(frame: bytes) -> bytes | FrameFault:
    """The canonical bytes of a whole message's root."""
    try:
        return canonical(Message(frame).root())
    except WireError as error:
        return FrameFault(error.reason)


def _trimmed(struct: Struct) -> tuple[int, int]:
    """The data words and pointers of a struct up to the last that is not zero."""
    frame = struct.message.frame
    middle = struct.pointer(0)
    data = frame[struct.at : middle].rstrip(b"\0")
    pointers = frame[middle : struct.pointer(struct.pointers)].rstrip(b"\0")
    return (len(data) + WORD - 1) // WORD, (len(pointers) + WORD - 1) // WORD


def _struct(out: bytearray, at: int, struct: Struct, depth: int) -> None:
    data_words, pointers = _trimmed(struct)
    if not data_words and not pointers:
        _pointer(out, at, EMPTY_STRUCT, 0)
        return
    here = len(out)
    _pointer(out, at, (here - at - WORD) >> 1, pointers << 16 | data_words)
    out += struct.message.frame[struct.at : struct.at + data_words * WORD]
    out += bytes(pointers * WORD)
    _targets(out, here + data_words * WORD, struct, pointers, depth)


def _targets(out: bytearray, at: int, struct: Struct, pointers: int, depth: int) -> None:
    for index in range(pointers):
        _target(out, at + index * WORD, struct.message, struct.segment, struct.pointer(index), depth - 1)


def _target(out: bytearray, at: int, message: Message, segment: int, source: int, depth: int) -> None:
    """Write what the pointer at `source` leads to, and a pointer to it at `at`."""
    if depth < 0:
        raise WireError("depth")
    found = message.resolve(segment, source)
    if found is None:
        return
    word, segment, place = found
    if not word & 3:
        data_words, pointers = word >> 32 & 0xFFFF, word >> 48
        message.extent(segment, place, (data_words + pointers) * WORD)
        _struct(out, at, Struct(message, segment, place, data_words, pointers), depth)
        return
    kind, count = word >> 32 & 7, word >> 35
    here = len(out)
    distance = (here - at - WORD) >> 1 | 1
    if kind == LIST_STRUCT:
        _structs(out, at, message, found, depth)
    elif kind == LIST_POINTER:
        message.extent(segment, place, count * WORD)
        _pointer(out, at, distance, word >> 32)
        out += bytes(count * WORD)
        for index in range(count):
            _target(out, here + index * WORD, message, segment, place + index * WORD, depth - 1)
    else:
        size = (count * _ELEMENT_BITS[kind] + 7) // 8
        message.extent(segment, place, size)
        _pointer(out, at, distance, word >> 32)
        out += message.frame[place : place + size]
        if kind == LIST_BIT and count % 8:
            out[-1] &= (1 << count % 8) - 1
        out += bytes(-size % WORD)


def _structs(out: bytearray, at: int, message: Message, found: tuple[int, int, int], depth: int) -> None:
    word, segment, place = found
    count, data_words, pointers = message.composite(word, segment, place)
    step = (data_words + pointers) * WORD
    structs = [Struct(message, segment, place + WORD + index * step, data_words, pointers) for index in range(count)]
    sizes = [_trimmed(struct) for struct in structs]
    data_words = max((size[0] for size in sizes), default=0)
    pointers = max((size[1] for size in sizes), default=0)
    here = len(out)
    _pointer(out, at, (here - at - WORD) >> 1 | 1, (count * (data_words + pointers)) << 3 | LIST_STRUCT)
    out += _word(pointers << 48 | data_words << 32 | count << 2)
    blank = bytes(pointers * WORD)
    for struct in structs:
        out += message.frame[struct.at : struct.at + data_words * WORD]
        out += blank
    place = here + WORD + data_words * WORD
    for struct in structs:
        _targets(out, place, struct, pointers, depth)
        place += (data_words + pointers) * WORD
