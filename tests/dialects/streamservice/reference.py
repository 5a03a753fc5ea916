"""References to compare with: pycapnp on our schemas, random messages, and a tool that splits a message into segments."""

from __future__ import annotations

from pathlib import Path
from random import Random
from struct import pack, pack_into
from typing import Any

import capnp
import hypothesis.strategies as st

import penstock
from penstock.dialects.streamservice.capnp_segments import Message, WireError
from penstock.dialects.streamservice.decode import signed_envelope
from penstock.dialects.streamservice.encode import canonical
from penstock.dialects.streamservice.messages import (
    Anonymous,
    ApiToken,
    Claims,
    Complete,
    Heartbeat,
    Local,
    Payload,
    Peer,
    RequestEnvelope,
    SignedEnvelope,
    StreamFailure,
    StreamScope,
    Token,
)
from penstock.dialects.streamservice.wire import FrameFault

capnp.remove_import_hook()
SCHEMAS = Path(penstock.__file__).parent / "schemas"
streaming: Any = capnp.load(str(SCHEMAS / "streaming.capnp"))
common: Any = capnp.load(str(SCHEMAS / "common.capnp"))

TOPIC = "6f54b4d5d1f681b32c06fa8c9783b681581ee642c48d5361ad5669369d6a4155"
NOW_MS = 1_762_974_000_123

texts = st.text(max_size=20)
singles = st.floats(width=32, allow_nan=False)
u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
topics = st.binary(min_size=32, max_size=32).map(bytes.hex)
macs = st.binary(min_size=32, max_size=32)

payloads: st.SearchStrategy[Payload] = st.one_of(
    st.builds(Token, texts, texts),
    st.builds(Complete, u32, texts, u64, singles, singles, singles, texts),
    st.builds(StreamFailure, texts, texts, texts, texts),
    st.builds(Heartbeat, texts),
)
claims = st.builds(
    Claims,
    texts,
    i64,
    i64,
    st.lists(st.builds(StreamScope, texts, texts, texts), max_size=3).map(tuple),
    st.booleans(),
)
envelopes = st.builds(
    RequestEnvelope,
    payload=st.binary(max_size=80),
    nonce=st.binary(min_size=16, max_size=16),
    timestamp_ms=i64,
    claims=st.none() | claims,
    identity=st.one_of(
        st.builds(Local, texts),
        st.builds(ApiToken, texts, texts),
        st.builds(Peer, texts, macs),
        st.just(Anonymous()),
    ),
    request_id=u64,
    ephemeral_key=st.none() | macs,
)


def fill_payload(builder: Any, payload: Payload) -> None:
    """Set the fields of a StreamPayload in their order."""
    builder.streamId = payload.stream_id
    match payload:
        case Token(text=text):
            builder.token = text
        case Complete():
            stats = builder.init("complete")
            stats.tokensGenerated = payload.tokens
            stats.finishReason = payload.finish_reason
            stats.generationTimeMs = payload.generation_ms
            stats.tokensPerSecond = payload.tokens_per_second
            stats.perplexity = payload.perplexity
            stats.avgEntropy = payload.entropy
        case StreamFailure():
            error = builder.init("error")
            error.message, error.code, error.details = payload.message, payload.code, payload.details
        case Heartbeat():
            builder.heartbeat = None


def built_payload(payload: Payload) -> bytes:
    builder = streaming.StreamPayload.new_message()
    fill_payload(builder, payload)
    return bytes(builder.to_bytes())


def built_block(prev: bytes, parts: list[Payload]) -> bytes:
    builder = streaming.StreamBlock.new_message()
    builder.prevMac = prev
    for slot, part in zip(builder.init("payloads", len(parts)), parts, strict=True):
        fill_payload(slot, part)
    return bytes(builder.to_bytes())


def built_chunk(topic: str, data: bytes, mac: bytes, prev: bytes) -> bytes:
    builder = streaming.StreamChunk.new_message()
    builder.topic, builder.data, builder.hmac, builder.prevHmac = topic, data, mac, prev
    return bytes(builder.to_bytes())


def fill_envelope(builder: Any, envelope: RequestEnvelope) -> None:
    """Set the fields of a RequestEnvelope as the protocol's own writer does."""
    builder.requestId = envelope.request_id
    identity = builder.init("identity")
    match envelope.identity:
        case Local(user=user):
            identity.init("local").user = user
        case ApiToken(user=user, token_name=name):
            token = identity.init("apiToken")
            token.user, token.tokenName = user, name
        case Peer(name=name, curve_key=key):
            peer = identity.init("peer")
            peer.name, peer.curveKey = name, key
        case _:
            identity.anonymous = None
    builder.payload = envelope.payload
    if envelope.ephemeral_key is not None:
        builder.ephemeralPubkey = envelope.ephemeral_key
    builder.nonce = envelope.nonce
    builder.timestamp = envelope.timestamp_ms
    if envelope.claims is not None:
        made = builder.init("claims")
        made.sub, made.exp, made.iat = envelope.claims.sub, envelope.claims.exp, envelope.claims.iat
        for slot, scope in zip(made.init("scopes", len(envelope.claims.scopes)), envelope.claims.scopes, strict=True):
            slot.action, slot.resource, slot.identifier = scope.action, scope.resource, scope.identifier
        made.admin = envelope.claims.is_admin


def built_signed(envelope: RequestEnvelope, signature: bytes, signer: bytes) -> bytes:
    builder = common.SignedEnvelope.new_message()
    fill_envelope(builder.init("envelope"), envelope)
    builder.signature, builder.signerPubkey = signature, signer
    return bytes(builder.to_bytes())


def frame_of(*segments: bytes) -> bytes:
    """A message of the given segments, with its table."""
    table = pack(f"<I{len(segments)}I", len(segments) - 1, *(len(segment) // 8 for segment in segments))
    return table + bytes(-len(table) % 8) + b"".join(segments)


def struct_pointer(offset: int, data_words: int, pointers: int) -> bytes:
    return pack("<iHH", offset << 2, data_words, pointers)


def list_pointer(offset: int, kind: int, count: int) -> bytes:
    return pack("<iI", offset << 2 | 1, count << 3 | kind)


def far_pointer(segment: int, word: int, *, double: bool = False) -> bytes:
    return pack("<II", word << 3 | (4 if double else 0) | 2, segment)


def scattered(frame: bytes, dice: Random, count: int) -> bytes:
    """The same message over several segments, each object anywhere, reached by near, far and double far pointers."""
    message = Message(frame)
    # Each begins with a word that nothing leads to; in the first it is the root. pycapnp knows no segment without words.
    segments = [bytearray(8) for _ in range(count)]

    def move(segment: int, at: int, source_segment: int, source: int) -> None:
        found = message.resolve(source_segment, source)
        if found is None:
            return
        word, source_segment, source = found
        shape = word >> 32
        body, inner = _anatomy(frame, word, source)
        target = dice.randrange(count)
        here = len(segments[target])
        segments[target] += body
        tag = word & 3
        if target == segment:
            pointer = _near(here - at - 8, tag, shape)
        elif dice.random() < 0.5:
            pad = len(segments[target])
            segments[target] += _near(here - pad - 8, tag, shape)
            pointer = far_pointer(target, pad // 8)
        else:
            third = dice.randrange(count)
            pad = len(segments[third])
            segments[third] += far_pointer(target, here // 8) + _near(0, tag, shape)
            pointer = far_pointer(third, pad // 8, double=True)
        segments[segment][at : at + 8] = pointer
        for place in inner:
            pack_into("<Q", segments[target], here + place, 0)
            move(target, here + place, source_segment, source + place)

    move(0, 0, 0, message.bounds[0][0])
    return frame_of(*map(bytes, segments))


def _near(distance: int, tag: int, shape: int) -> bytes:
    return pack("<iI", (distance // 8) << 2 | tag, shape)


def _anatomy(frame: bytes, word: int, at: int) -> tuple[bytes, list[int]]:
    """The bytes of an object, and where in it pointers lie."""
    if not word & 3:
        data, pointers = word >> 32 & 0xFFFF, word >> 48
        return frame[at : at + 8 * (data + pointers)], [8 * (data + index) for index in range(pointers)]
    kind, count = word >> 32 & 7, word >> 35
    if kind == 6:
        return frame[at : at + 8 * count], [8 * index for index in range(count)]
    if kind < 6:
        size = (count * (0, 1, 8, 16, 32, 64)[kind] + 63) // 64 * 8
        return frame[at : at + size], []
    tag = int.from_bytes(frame[at : at + 8], "little")
    data, pointers = tag >> 32 & 0xFFFF, tag >> 48
    step = data + pointers
    places = [
        8 * (1 + element * step + data + index)
        for element in range((tag & 0xFFFFFFFF) >> 2)
        for index in range(pointers)
    ]
    return frame[at : at + 8 + 8 * count], places


def read_signed(frame: bytes) -> SignedEnvelope | FrameFault:
    """A SignedEnvelope, not verified."""
    try:
        return signed_envelope(Message(frame).root())[0]
    except WireError as error:
        return FrameFault(error.reason)


def canonical_message(frame: bytes) -> bytes | FrameFault:
    """The canonical bytes of a whole message's root."""
    try:
        return canonical(Message(frame).root())
    except WireError as error:
        return FrameFault(error.reason)
