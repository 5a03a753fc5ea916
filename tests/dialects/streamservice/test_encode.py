"""Our encoders write what pycapnp writes, and our decoders read what pycapnp reads."""

from __future__ import annotations

from random import Random
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from penstock.dialects.streamservice import decode, encode
from penstock.dialects.streamservice.messages import (
    Block,
    ChunkBody,
    Complete,
    Heartbeat,
    Payload,
    RequestEnvelope,
    ResponseEnvelope,
    SignedEnvelope,
    StreamAuthResponse,
    StreamFailure,
    StreamInfo,
    StreamRegister,
    StreamStartRequest,
    Token,
)
from tests.dialects.streamservice.reference import (
    TOPIC,
    built_block,
    built_chunk,
    built_payload,
    built_signed,
    common,
    envelopes,
    fill_envelope,
    i64,
    macs,
    payloads,
    scattered,
    streaming,
    texts,
    topics,
    u64,
)

dice = st.randoms(use_true_random=False)
counts = st.integers(1, 4)


@pytest.mark.promise(
    "Token streams: bytes, keys and signatures",
    "messages equal those of pycapnp, and both read each other's",
)
@given(topics, st.binary(max_size=200), macs, st.just(b"") | macs)
def test_chunks(topic: str, data: bytes, mac: bytes, prev: bytes) -> None:
    frame = built_chunk(topic, data, mac, prev)
    assert encode.chunk(topic.encode(), data, mac, prev) == frame
    assert decode.read_chunk(frame) == ChunkBody(topic.encode(), data, mac, prev)


@pytest.mark.promise(
    "Token streams: bytes, keys and signatures",
    "messages equal those of pycapnp, and both read each other's",
)
@given(payloads, dice, counts)
def test_payloads(payload: Payload, dice: Random, count: int) -> None:
    frame = built_payload(payload)
    assert encode.payload(payload) == frame
    assert decode.read_payload(frame) == payload
    assert decode.read_payload(scattered(frame, dice, count)) == payload


@pytest.mark.promise(
    "Token streams: bytes, keys and signatures",
    "messages equal those of pycapnp, and both read each other's",
)
@given(macs.map(lambda mac: mac[:16]), st.lists(payloads, max_size=6), dice, counts)
def test_blocks(prev: bytes, parts: list[Payload], dice: Random, count: int) -> None:
    frame = built_block(prev, parts)
    assert encode.block(prev, parts) == frame
    assert decode.read_block(frame) == Block(prev, parts)
    moved = scattered(frame, dice, count)
    assert decode.read_block(moved) == Block(prev, parts)
    with streaming.StreamBlock.from_bytes(moved) as block:
        assert [part.which() for part in block.payloads] == [arm(part) for part in parts]


def arm(payload: Payload) -> str:
    return {Token: "token", Complete: "complete", StreamFailure: "error", Heartbeat: "heartbeat"}[type(payload)]


@pytest.mark.promise(
    "Token streams: bytes, keys and signatures",
    "messages equal those of pycapnp, and both read each other's",
)
@settings(max_examples=20)
@given(st.lists(st.integers(0, 9_000), min_size=1, max_size=6))
def test_messages_beyond_the_first_segment(sizes: list[int]) -> None:
    parts: list[Payload] = [Token("t" * size, f"s{size}") for size in sizes]
    frame = built_block(b"p" * 16, parts)
    ours = encode.block(b"p" * 16, parts)
    assert decode.read_block(frame) == decode.read_block(ours) == Block(b"p" * 16, parts)
    with streaming.StreamBlock.from_bytes(ours) as block:
        assert [part.token for part in block.payloads] == [part.text for part in parts]  # type: ignore[union-attr]


@pytest.mark.promise(
    "Token streams: bytes, keys and signatures",
    "messages equal those of pycapnp, and both read each other's",
)
@given(envelopes, st.binary(min_size=64, max_size=64), macs, dice, counts)
def test_envelopes(envelope: RequestEnvelope, signature: bytes, signer: bytes, dice: Random, count: int) -> None:
    frame = built_signed(envelope, signature, signer)
    assert encode.signed(envelope, signature, signer) == frame
    assert decode.read_signed(frame) == SignedEnvelope(envelope, signature, signer)
    assert decode.read_signed(scattered(frame, dice, count)) == SignedEnvelope(envelope, signature, signer)
    alone = common.RequestEnvelope.new_message()
    fill_envelope(alone, envelope)
    assert encode.request(envelope) == bytes(alone.to_bytes())


@pytest.mark.promise(
    "Token streams: bytes, keys and signatures",
    "messages equal those of pycapnp, and both read each other's",
)
@given(texts, texts, macs, topics, i64, u64, st.binary(max_size=50))
def test_the_small_messages(
    stream_id: str, endpoint: str, key: bytes, topic: str, exp: int, number: int, data: bytes
) -> None:
    cases: list[tuple[bytes, Any, Any, object]] = [
        (
            encode.info(StreamInfo(stream_id, endpoint, key)),
            streaming.StreamInfo.new_message(streamId=stream_id, endpoint=endpoint, serverPubkey=key),
            decode.read_info,
            StreamInfo(stream_id, endpoint, key),
        ),
        (
            encode.start_request(StreamStartRequest(stream_id, key)),
            streaming.StreamStartRequest.new_message(streamId=stream_id, clientPubkey=key),
            decode.read_start_request,
            StreamStartRequest(stream_id, key),
        ),
        (
            encode.auth_response(StreamAuthResponse(stream_id, key)),
            streaming.StreamAuthResponse.new_message(streamId=stream_id, serverPubkey=key),
            decode.read_auth_response,
            StreamAuthResponse(stream_id, key),
        ),
        (
            encode.register(StreamRegister(topic, exp)),
            streaming.StreamRegister.new_message(topic=topic, exp=exp),
            decode.read_register,
            StreamRegister(topic, exp),
        ),
        (
            encode.response(ResponseEnvelope(number, data, b"s" * 64, key)),
            common.ResponseEnvelope.new_message(requestId=number, payload=data, signature=b"s" * 64, signerPubkey=key),
            decode.read_response,
            ResponseEnvelope(number, data, b"s" * 64, key),
        ),
    ]
    for ours, builder, read, value in cases:
        assert ours == bytes(builder.to_bytes())
        assert read(ours) == value


def test_a_chunk_is_written_with_the_sizes_of_a_chunk_or_not_at_all() -> None:
    topic = TOPIC.encode()
    for wrong in ((topic[:-1], b"m" * 32, b""), (topic, b"m" * 16, b""), (topic, b"m" * 32, b"p" * 16)):
        with pytest.raises(ValueError, match="a chunk has"):
            encode.chunk(wrong[0], b"data", wrong[1], wrong[2])
