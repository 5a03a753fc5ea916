"""Encode messages of token streams as framed Cap'n Proto, each in one segment.

Owns the layout: byte for byte what the usual builders write when the fields are set in order, up to their first segment of 8 KiB; beyond that
builders use more segments for the same message. A field is set even if it is empty, except a missing key and missing claims.
Cost: about 1 us for a chunk, and 1.5 us for each token of a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import copysign, inf
from struct import Struct as Layout
from typing import TypeAlias, assert_never

from penstock.dialects.streamservice.capnp_segments import LIST_BYTE, LIST_STRUCT, WORD
from penstock.dialects.streamservice.messages import (
    Anonymous,
    ApiToken,
    Claims,
    Complete,
    Heartbeat,
    Identity,
    Local,
    Payload,
    Peer,
    RequestEnvelope,
    ResponseEnvelope,
    StreamAuthResponse,
    StreamFailure,
    StreamInfo,
    StreamRegister,
    StreamStartRequest,
    Token,
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


def payload(content: Payload) -> bytes:
    """A StreamPayload alone, as the data of a chunk."""
    return framed(_payload(content))


def block(prev: bytes, contents: Sequence[Payload]) -> bytes:
    """A StreamBlock."""
    return framed(Body(b"", prev, Bodies(1, 2, [_payload(content) for content in contents])))


def resume(topic: bytes, mac: bytes) -> bytes:
    """A StreamResume."""
    return framed(Body(b"", topic + b"\0", mac))


def register(value: StreamRegister) -> bytes:
    """A StreamRegister, as the payload of an envelope."""
    return framed(Body(value.exp.to_bytes(8, "little", signed=True), _text(value.topic)))


def info(value: StreamInfo) -> bytes:
    """A StreamInfo."""
    return framed(Body(b"", _text(value.stream_id), _text(value.endpoint), value.server_key))


def start_request(value: StreamStartRequest) -> bytes:
    """A StreamStartRequest."""
    return framed(Body(b"", _text(value.stream_id), value.client_key))


def auth_response(value: StreamAuthResponse) -> bytes:
    """A StreamAuthResponse."""
    return framed(Body(b"", _text(value.stream_id), value.server_key))


def request(value: RequestEnvelope) -> bytes:
    """A RequestEnvelope alone: its canonical form is what is signed."""
    return framed(_request(value))


def signed(value: RequestEnvelope, signature: bytes, signer: bytes) -> bytes:
    """A SignedEnvelope."""
    return framed(Body(b"", _request(value), signature, signer))


def response(value: ResponseEnvelope) -> bytes:
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


def _payload(content: Payload) -> Body:
    stream_id = _text(content.stream_id)
    if isinstance(content, Token):
        return Body(_word(0), stream_id, _text(content.text))
    if isinstance(content, Complete):
        data = _stats(
            content.tokens,
            _single(content.tokens_per_second),
            content.generation_ms,
            _single(content.perplexity),
            _single(content.entropy),
        )
        return Body(_word(1), stream_id, Body(data, _text(content.finish_reason)))
    if isinstance(content, StreamFailure):
        texts = _text(content.message), _text(content.code), _text(content.details)
        return Body(_word(2), stream_id, Body(b"", *texts))
    if isinstance(content, Heartbeat):
        return Body(_word(3), stream_id, None)
    assert_never(content)


def _request(value: RequestEnvelope) -> Body:
    return Body(
        _two_words(value.request_id, value.timestamp_ms),
        _identity(value.identity),
        value.payload,
        value.ephemeral_key,
        value.nonce,
        None if value.claims is None else _claims_body(value.claims),
    )


def _identity(identity: Identity) -> Body:
    match identity:
        case Local(user=user):
            return Body(_word(0), Body(b"", _text(user)))
        case ApiToken(user=user, token_name=name):
            return Body(_word(1), Body(b"", _text(user), _text(name)))
        case Peer(name=name, curve_key=key):
            return Body(_word(2), Body(b"", _text(name), key))
        case Anonymous():
            return Body(_word(3), None)
        case _:
            assert_never(identity)


def _claims_body(claims: Claims) -> Body:
    scopes = [Body(b"", _text(scope.action), _text(scope.resource), _text(scope.identifier)) for scope in claims.scopes]
    data = _claims(claims.exp, claims.iat, int(claims.is_admin))
    return Body(data, _text(claims.sub), Bodies(0, 3, scopes))
