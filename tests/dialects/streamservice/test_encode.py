"""Our encoders write what pycapnp writes, and our decoders read what pycapnp reads."""

from __future__ import annotations

from random import Random
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from penstock.dialects.streamservice import decode, encode
from penstock.dialects.streamservice.encode import DEPTH_MAX
from penstock.dialects.streamservice.messages import (
    Block,
    ChunkBody,
    Claims,
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
    StreamScope,
    StreamStartRequest,
    Token,
)
from penstock.dialects.streamservice.wire import FrameFault
from tests.dialects.streamservice.reference import (
    TOPIC,
    built_block,
    built_chunk,
    built_payload,
    built_signed,
    canonical_message,
    common,
    envelopes,
    fill_envelope,
    frame_of,
    i64,
    list_pointer,
    macs,
    payloads,
    read_signed,
    scattered,
    streaming,
    struct_pointer,
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
    assert read_signed(frame) == SignedEnvelope(envelope, signature, signer)
    assert read_signed(scattered(frame, dice, count)) == SignedEnvelope(envelope, signature, signer)
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


def body_of(frame: bytes) -> bytes:
    data = canonical_message(frame)
    assert isinstance(data, bytes)
    return data


@pytest.mark.promise(
    "Token streams: bytes, keys and signatures",
    "equal content has one canonical form, whatever its layout",
)
@given(envelopes, dice, st.integers(1, 5))
def test_where_things_lie_does_not_matter(envelope: RequestEnvelope, dice: Random, count: int) -> None:
    frame = encode.signed(envelope, b"s" * 64, b"k" * 32)
    assert body_of(scattered(frame, dice, count)) == body_of(frame)


@pytest.mark.promise(
    "Token streams: bytes, keys and signatures",
    "equal content has one canonical form, whatever its layout",
)
@given(envelopes)
def test_it_is_its_own_canonical_form_and_still_says_the_same(envelope: RequestEnvelope) -> None:
    frame = built_signed(envelope, b"s" * 64, b"k" * 32)
    data = body_of(frame)
    assert body_of(frame_of(data)) == data
    assert read_signed(frame_of(data)) == read_signed(frame)
    with common.SignedEnvelope.from_bytes(frame_of(data)) as signed:
        assert signed.envelope.requestId == envelope.request_id
        assert signed.envelope.timestamp == envelope.timestamp_ms
        assert signed.envelope.nonce == envelope.nonce


@given(st.lists(payloads, max_size=4), st.lists(payloads, max_size=4))
def test_different_contents_have_different_forms(one: list[Payload], other: list[Payload]) -> None:
    forms = [body_of(encode.block(b"p" * 16, parts)) for parts in (one, other)]
    read = [decode.read_block(frame_of(form)) for form in forms]
    assert (forms[0] == forms[1]) == (read[0] == read[1])


def words(data: bytes) -> list[str]:
    return [data[at : at + 8].hex() for at in range(0, len(data), 8)]


def test_zeros_at_the_end_are_left_out() -> None:
    body = encode.Body((7).to_bytes(8, "little") + bytes(24), b"text\0", None, None)
    assert words(body_of(encode.framed(body))) == [
        struct_pointer(0, 1, 1).hex(),
        "0700000000000000",
        list_pointer(0, 2, 5).hex(),
        b"text\0\0\0\0".hex(),
    ]


def test_zeros_before_something_else_stay() -> None:
    body = encode.Body(bytes(8) + (7).to_bytes(8, "little"), None, b"x\0")
    assert words(body_of(encode.framed(body)))[:4] == [
        struct_pointer(0, 2, 2).hex(),
        "00" * 8,
        "0700000000000000",
        "00" * 8,
    ]


def test_a_struct_of_nothing_points_to_itself() -> None:
    assert words(body_of(encode.framed(encode.Body(bytes(16), None)))) == ["fcffffff00000000"]
    inner = encode.Body(b"", encode.Body(bytes(8)))
    assert words(body_of(encode.framed(inner))) == [struct_pointer(0, 0, 1).hex(), "fcffffff00000000"]


@pytest.mark.promise(
    "Token streams: bytes, keys and signatures",
    "equal content has one canonical form, whatever its layout",
)
def test_structs_of_a_list_have_the_size_of_the_largest() -> None:
    one = encode.Body(bytes(16), None, None)
    other = encode.Body((9).to_bytes(8, "little") + bytes(8), b"x\0", None)
    assert words(body_of(encode.framed(encode.Body(b"", encode.Bodies(2, 2, [one, other]))))) == [
        struct_pointer(0, 0, 1).hex(),
        list_pointer(0, 7, 4).hex(),
        struct_pointer(2, 1, 1).hex(),
        "00" * 8,
        "00" * 8,
        "0900000000000000",
        list_pointer(0, 2, 2).hex(),
        b"x\0\0\0\0\0\0\0".hex(),
    ]


def test_an_empty_list_is_not_a_missing_one() -> None:
    def form(claims: Claims | None) -> bytes:
        return body_of(encode.request(RequestEnvelope(b"", b"n" * 16, 1, claims)))

    assert len({form(None), form(Claims("", 0)), form(Claims("", 0, 0, (StreamScope("", "", ""),)))}) == 3


def test_bits_beyond_the_end_of_a_list_are_cleared() -> None:
    def bits(last: int) -> bytes:
        return frame_of(struct_pointer(0, 0, 1) + list_pointer(0, 1, 11) + bytes([0xFF, last]) + bytes(6))

    def numbers(padding: bytes) -> bytes:
        return frame_of(struct_pointer(0, 0, 1) + list_pointer(0, 3, 3) + b"abcdef" + padding)

    assert body_of(bits(0xFD)) == body_of(bits(0x05))
    assert body_of(bits(0xFD)) != body_of(bits(0x01))
    assert body_of(numbers(b"zz")) == body_of(numbers(bytes(2)))


def test_lists_of_pointers() -> None:
    pointers = list_pointer(2, 2, 2) + bytes(8) + list_pointer(-4, 2, 1)
    frame = frame_of(struct_pointer(0, 0, 1) + list_pointer(1, 6, 3) + b"b" + bytes(7) + pointers + b"a\0" + bytes(6))
    assert words(body_of(frame)) == [
        struct_pointer(0, 0, 1).hex(),
        list_pointer(0, 6, 3).hex(),
        list_pointer(2, 2, 2).hex(),
        "00" * 8,
        list_pointer(1, 2, 1).hex(),
        b"a\0".hex() + "00" * 6,
        b"b".hex() + "00" * 7,
    ]


@pytest.mark.parametrize(("levels", "is_fine"), [(DEPTH_MAX, True), (DEPTH_MAX + 1, False)])
def test_nesting_is_bounded(levels: int, is_fine: bool) -> None:
    body = encode.Body((1).to_bytes(8, "little"))
    for _ in range(levels):
        body = encode.Body(b"", body)
    frame = encode.framed(body)
    assert canonical_message(frame) == (frame[8:] if is_fine else FrameFault("depth"))
