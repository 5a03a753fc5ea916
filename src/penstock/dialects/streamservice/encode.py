"""Encode messages of token streams as framed Cap'n Proto, each in one segment.

Owns the layout: byte for byte what the usual builders write when the fields are set in order, up to their first segment of 8 KiB; beyond
that builders use more segments for the same message. A field is set even if it is empty, except a missing key and missing claims. Cost:
about 1 us for a chunk, and 1.5 us for each token of a block.

Signatures are made over the canonical encoding of a struct of a received message. It has one rule: equal structs have equal bytes,
whatever their layout. One segment without a table; the targets of pointers follow in the order of the pointers, depth first; zero words
at the end of a struct's data and null pointers at its end are dropped; the structs of a list have the size of the largest one; bits
beyond the end of a list are zero. A struct that cannot be encoded raises, so nothing is signed over empty bytes. Cost: about 2 us a
pointer, bounded by the size of the message.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import copysign, inf
from struct import Struct as Layout
from typing import TypeAlias, assert_never

from penstock.dialects.streamservice import messages
from penstock.dialects.streamservice.capnp_segments import (
    LIST_BIT,
    LIST_BYTE,
    LIST_POINTER,
    LIST_STRUCT,
    WORD,
    Message,
    Struct,
    WireError,
)

SINGLE_MAX = (2 - 2**-23) * 2.0**127
"""The greatest finite number of 32 bits."""

_pointer = Layout("<II").pack_into
_word = Layout("<Q").pack
_two_words = Layout("<Qq").pack
_stats = Layout("<IfQff").pack
_claims = Layout("<qqQ").pack
_chunk_head = Layout("<IIQQIIIIII").pack

_PADDING = tuple(bytes(-size % WORD) for size in range(WORD))
EMPTY_STRUCT = 0xFFFFFFFC
"""The lower half of a pointer to an empty struct: it points to itself, because it must not be a null pointer."""

_CHUNK_ROOT = 4 << 48
_TOPIC_LIST = (65 << 3 | LIST_BYTE) << 32 | 3 << 2 | 1


class Body:
    """A struct to be written: its data and what its pointers lead to."""

    __slots__ = ("data", "pointers")

    def __init__(self, data: bytes, *pointers: Node) -> None:
        self.data = data
        self.pointers = pointers


class Bodies:
    """A list of structs of one size, which is stated for an empty list."""

    __slots__ = ("bodies", "data_words", "pointers")

    def __init__(self, data_words: int, pointers: int, bodies: Sequence[Body]) -> None:
        self.data_words = data_words
        self.pointers = pointers
        self.bodies = bodies


Node: TypeAlias = bytes | Body | Bodies | None


def chunk(topic: bytes, data: bytes, mac: bytes, prev: bytes) -> bytes:
    """A StreamChunk; `prev` is empty for the first of a stream."""
    size = len(data)
    words = (size + 7) >> 3
    tail = 4 if prev else 0
    if len(topic) != 64 or len(mac) != 32 or len(prev) not in (0, 32):
        raise ValueError("a chunk has a topic of 64 bytes and MACs of 32")
    head = _chunk_head(
        0,
        18 + words + tail,
        _CHUNK_ROOT,
        _TOPIC_LIST,
        45,  # eleven words on: after the other two pointers and the topic's nine words
        size << 3 | LIST_BYTE,
        (10 + words) << 2 | 1,
        32 << 3 | LIST_BYTE,
        (13 + words) << 2 | 1,
        len(prev) << 3 | LIST_BYTE,
    )
    return b"".join((head, topic, b"\0\0\0\0\0\0\0\0", data, _PADDING[size & 7], mac, prev))


def payload(content: messages.Payload) -> bytes:
    """A StreamPayload alone, as the data of a chunk."""
    return framed(_payload(content))


def block(prev: bytes, contents: Sequence[messages.Payload]) -> bytes:
    """A StreamBlock."""
    return framed(Body(b"", prev, Bodies(1, 2, [_payload(content) for content in contents])))


def resume(topic: bytes, mac: bytes) -> bytes:
    """A StreamResume."""
    return framed(Body(b"", topic + b"\0", mac))


def register(value: messages.StreamRegister) -> bytes:
    """A StreamRegister, as the payload of an envelope."""
    return framed(Body(value.exp.to_bytes(8, "little", signed=True), _text(value.topic)))


def info(value: messages.StreamInfo) -> bytes:
    """A StreamInfo."""
    return framed(Body(b"", _text(value.stream_id), _text(value.endpoint), value.server_key))


def start_request(value: messages.StreamStartRequest) -> bytes:
    """A StreamStartRequest."""
    return framed(Body(b"", _text(value.stream_id), value.client_key))


def auth_response(value: messages.StreamAuthResponse) -> bytes:
    """A StreamAuthResponse."""
    return framed(Body(b"", _text(value.stream_id), value.server_key))


def request(value: messages.RequestEnvelope) -> bytes:
    """A RequestEnvelope alone: its canonical form is what is signed."""
    return framed(_request(value))


def signed(value: messages.RequestEnvelope, signature: bytes, signer: bytes) -> bytes:
    """A SignedEnvelope."""
    return framed(Body(b"", _request(value), signature, signer))


def response(value: messages.ResponseEnvelope) -> bytes:
    """A ResponseEnvelope."""
    return framed(Body(_word(value.request_id), value.payload, value.signature, value.signer))


def framed(root: Body) -> bytes:
    """A message with its segment table."""
    out = bytearray(2 * WORD)
    _place(out, WORD, root)
    _pointer(out, 0, 0, len(out) // WORD - 1)
    return bytes(out)


def _place(out: bytearray, at: int, node: Node) -> None:
    """Append a node, write the pointer to it at `at`, then append what its own pointers lead to."""
    if node is None:
        return
    here = len(out)
    distance = (here - at - WORD) >> 1
    if isinstance(node, bytes):
        size = len(node)
        _pointer(out, at, distance | 1, size << 3 | LIST_BYTE)
        out += node
        out += _PADDING[size & 7]
    elif isinstance(node, Body):
        words, count = len(node.data) // WORD, len(node.pointers)
        _pointer(out, at, distance if words or count else EMPTY_STRUCT, count << 16 | words)
        out += node.data
        out += bytes(count * WORD)
        _place_all(out, here + words * WORD, node)
    else:
        step = node.data_words + node.pointers
        count = len(node.bodies)
        _pointer(out, at, distance | 1, (count * step) << 3 | LIST_STRUCT)
        out += _word(node.pointers << 48 | node.data_words << 32 | count << 2)
        blank = bytes(node.pointers * WORD)
        for body in node.bodies:
            out += body.data
            out += blank
        at = here + WORD + node.data_words * WORD
        for body in node.bodies:
            _place_all(out, at, body)
            at += step * WORD


def _place_all(out: bytearray, at: int, body: Body) -> None:
    for node in body.pointers:
        _place(out, at, node)
        at += WORD


def _text(text: str) -> bytes:
    return text.encode() + b"\0"


def _single(number: float) -> float:
    """A number for 32 bits: one that is too large becomes infinite, as in other encoders."""
    return copysign(inf, number) if SINGLE_MAX < abs(number) < inf else number


def _payload(content: messages.Payload) -> Body:
    stream_id = _text(content.stream_id)
    if isinstance(content, messages.Token):
        return Body(_word(0), stream_id, _text(content.text))
    if isinstance(content, messages.Complete):
        data = _stats(
            content.tokens,
            _single(content.tokens_per_second),
            content.generation_ms,
            _single(content.perplexity),
            _single(content.entropy),
        )
        return Body(_word(1), stream_id, Body(data, _text(content.finish_reason)))
    if isinstance(content, messages.StreamFailure):
        texts = _text(content.message), _text(content.code), _text(content.details)
        return Body(_word(2), stream_id, Body(b"", *texts))
    if isinstance(content, messages.Heartbeat):
        return Body(_word(3), stream_id, None)
    assert_never(content)


def _request(value: messages.RequestEnvelope) -> Body:
    return Body(
        _two_words(value.request_id, value.timestamp_ms),
        _identity(value.identity),
        value.payload,
        value.ephemeral_key,
        value.nonce,
        None if value.claims is None else _claims_body(value.claims),
    )


def _identity(identity: messages.Identity) -> Body:
    match identity:
        case messages.Local(user=user):
            return Body(_word(0), Body(b"", _text(user)))
        case messages.ApiToken(user=user, token_name=name):
            return Body(_word(1), Body(b"", _text(user), _text(name)))
        case messages.Peer(name=name, curve_key=key):
            return Body(_word(2), Body(b"", _text(name), key))
        case messages.Anonymous():
            return Body(_word(3), None)
        case _:
            assert_never(identity)


def _claims_body(claims: messages.Claims) -> Body:
    scopes = [Body(b"", _text(scope.action), _text(scope.resource), _text(scope.identifier)) for scope in claims.scopes]
    data = _claims(claims.exp, claims.iat, int(claims.is_admin))
    return Body(data, _text(claims.sub), Bodies(0, 3, scopes))


DEPTH_MAX = 64
"""Nested pointers, the usual limit of Cap'n Proto readers; an envelope has five."""

_ELEMENT_BITS = (0, 1, 8, 16, 32, 64)


def canonical(struct: Struct) -> bytes:
    """The canonical bytes of a struct; raises `WireError` if it has none."""
    out = bytearray(WORD)
    _struct(out, 0, struct, DEPTH_MAX)
    return bytes(out)


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
