"""Frames are classified by structure, never by the sizes of their data, and no bytes cause an exception."""

from __future__ import annotations

import tracemalloc
from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from penstock.dialects.streamservice import decode, encode, wire
from penstock.dialects.streamservice.capnp_segments import REASONS
from penstock.dialects.streamservice.messages import RequestEnvelope, Token
from penstock.dialects.streamservice.wire import (
    Chunk,
    FrameFault,
    Register,
    Resume,
    is_topic,
    peek,
    peek_block,
)
from tests.dialects.streamservice.reference import (
    TOPIC,
    built_block,
    built_chunk,
    built_signed,
    canonical_message,
    envelopes,
    far_pointer,
    frame_of,
    list_pointer,
    macs,
    read_signed,
    scattered,
    streaming,
    struct_pointer,
    topics,
)

SIZES = [0, 1, 7, 8, 15, 16, 31, 32, 33, 63, 64, 65, 300]
MAC, PREV = b"m" * 32, b"p" * 32
READERS = [
    peek,
    peek_block,
    canonical_message,
    decode.read_chunk,
    decode.read_payload,
    decode.read_block,
    decode.read_register,
    decode.read_info,
    decode.read_start_request,
    decode.read_auth_response,
    read_signed,
    decode.read_response,
]


@pytest.mark.promise(
    "Token streams: bytes, keys and signatures",
    "a frame is classified by its structure, whatever the sizes of its data",
)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("prev", [b"", PREV])
def test_a_chunk_is_a_chunk_whatever_the_size_of_its_data(size: int, prev: bytes) -> None:
    assert peek(built_chunk(TOPIC, b"d" * size, MAC, prev)) == Chunk(TOPIC.encode(), MAC, prev)


@pytest.mark.promise(
    "Token streams: bytes, keys and signatures",
    "a frame is classified by its structure, whatever the sizes of its data",
)
def test_the_trap_of_64_bytes_is_one_that_tokens_reach() -> None:
    data = encode.payload(Token("8 to 15 by", "seven"))
    assert len(data) == 64
    assert isinstance(peek(encode.chunk(TOPIC.encode(), data, MAC, PREV)), Chunk)


@pytest.mark.parametrize("mac", [b"m" * 16, MAC])
def test_a_request_to_resume(mac: bytes) -> None:
    frame = bytes(streaming.StreamResume.new_message(topic=TOPIC, resumeFromHmac=mac).to_bytes())
    assert peek(frame) == Resume(TOPIC.encode(), mac)
    assert encode.resume(TOPIC.encode(), mac) == frame


@given(envelopes, st.binary(min_size=64, max_size=64), macs)
def test_an_envelope_is_a_registration(envelope: RequestEnvelope, signature: bytes, signer: bytes) -> None:
    frame = built_signed(envelope, signature, signer)
    assert peek(frame) == Register(frame, signature, signer)


@pytest.mark.promise(
    "Token streams: bytes, keys and signatures",
    "a frame is classified by its structure, whatever the sizes of its data",
)
@given(
    topics,
    st.binary(max_size=100),
    macs,
    st.just(b"") | macs,
    st.randoms(use_true_random=False),
    st.integers(2, 5),
)
def test_far_pointers_change_nothing(
    topic: str, data: bytes, mac: bytes, prev: bytes, dice: Random, count: int
) -> None:
    frame = scattered(built_chunk(topic, data, mac, prev), dice, count)
    assert peek(frame) == Chunk(topic.encode(), mac, prev)
    with streaming.StreamChunk.from_bytes(frame) as chunk:
        assert (chunk.topic, chunk.data, chunk.hmac, chunk.prevHmac) == (topic, data, mac, prev)


@pytest.mark.parametrize("order", [("hmac", "prevHmac", "data", "topic"), ("data", "topic", "prevHmac", "hmac")])
def test_fields_may_lie_in_any_order(order: tuple[str, ...]) -> None:
    values = {"topic": TOPIC, "data": b"d" * 64, "hmac": MAC, "prevHmac": PREV}
    chunk = streaming.StreamChunk.new_message()
    for name in order:
        setattr(chunk, name, values[name])
    assert peek(bytes(chunk.to_bytes())) == Chunk(TOPIC.encode(), MAC, PREV)


def test_a_chunk_of_many_segments_as_builders_write_it() -> None:
    frame = built_chunk(TOPIC, b"d" * 50_000, MAC, PREV)
    assert frame[0] > 0, "the builder should have gone on in another segment"
    assert peek(frame) == Chunk(TOPIC.encode(), MAC, PREV)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (built_chunk(TOPIC[:63], b"d", MAC, PREV), "topic"),
        (built_chunk(TOPIC + "0", b"d", MAC, PREV), "topic"),
        (built_chunk("", b"d" * 32, MAC, PREV), "topic"),
        (built_chunk(TOPIC, b"d", b"m" * 31, PREV), "size"),
        (built_chunk(TOPIC, b"d", b"", PREV), "size"),
        (built_chunk(TOPIC, b"d", MAC, b"p" * 16), "size"),
        (bytes(streaming.StreamResume.new_message(topic=TOPIC, resumeFromHmac=b"m" * 17).to_bytes()), "size"),
        (built_signed(RequestEnvelope(b"", b"n" * 16, 0), b"s" * 63, PREV), "size"),
        (built_signed(RequestEnvelope(b"", b"n" * 16, 0), b"s" * 64, b"k"), "size"),
        (bytes(streaming.StreamChunk.new_message().to_bytes()), "unknown"),
        (b"", "short"),
        (bytes(8), "short"),
        (bytes(16), "long"),
        (frame_of(bytes(8)), "unknown"),
        (built_chunk(TOPIC, b"d", MAC, PREV)[:-8], "short"),
        (built_chunk(TOPIC, b"d", MAC, PREV) + bytes(8), "long"),
        (built_chunk(TOPIC, b"d", MAC, PREV).replace(TOPIC.encode() + b"\0", TOPIC.encode() + b"x"), "text"),
    ],
)
def test_an_invalid_frame_gets_its_reason(frame: bytes, reason: str) -> None:
    assert peek(frame) == FrameFault(reason)
    assert FrameFault(reason).message == REASONS[reason]


@pytest.mark.promise(
    "Token streams: bytes, keys and signatures",
    "a frame is classified by its structure, whatever the sizes of its data",
)
def test_the_quick_way_and_the_thorough_way_agree() -> None:
    dice = Random(7)
    frame = bytearray(built_chunk(TOPIC, b"d" * 20, MAC, PREV))
    for _ in range(20_000):
        spoilt = bytearray(frame)
        for _ in range(dice.randrange(1, 3)):
            at = dice.randrange(56) if dice.random() < 0.8 else dice.randrange(len(spoilt))
            spoilt[at] ^= 1 << dice.randrange(8)
        cut = bytes(spoilt[: dice.randrange(40, len(spoilt) + 1)] if dice.random() < 0.2 else spoilt)
        assert peek(cut) == wire._look(cut), cut.hex()


def test_a_chunk_without_room_for_its_topic() -> None:
    """Everything that the quick way looks at is right, but for the size of the frame."""
    pointers = [list_pointer(3, 2, 65), list_pointer(0, 2, 0), list_pointer(1, 2, 32), bytes(8)]
    for words in range(5):
        assert peek(frame_of(struct_pointer(0, 0, 4) + b"".join(pointers) + bytes(8 * words))) == FrameFault("bounds")


@pytest.mark.promise(
    "Token streams: bytes, keys and signatures",
    "no input makes a reader raise, read out of bounds or allocate by a declared length",
)
@pytest.mark.parametrize("offset", [-6, -5, 0, 1, 2, 3, 500, 2**29 - 1, -(2**29)])
def test_no_pointer_leads_out_of_its_segment(offset: int) -> None:
    """Neither into the segment table, nor into the next segment, nor beyond the frame."""
    body = struct_pointer(0, 1, 2) + bytes(8) + bytes(8) + list_pointer(offset, 2, 16)
    frame = frame_of(body + bytes(8), b"secret\0\0" * 4)
    assert decode.read_payload(frame) == FrameFault("bounds")
    inside = frame_of(struct_pointer(0, 1, 2) + bytes(8) + bytes(8) + list_pointer(0, 2, 8) + b"inside\0\0", bytes(8))
    assert decode.read_payload(inside) == Token("inside\0")


def test_a_block_shows_its_link_and_nothing_else() -> None:
    assert peek_block(built_block(b"p" * 16, [Token("x")])) == b"p" * 16
    assert peek_block(built_block(b"p" * 15, [])) == FrameFault("size")
    assert peek_block(b"nonsense") == FrameFault("short")


def test_topics() -> None:
    assert is_topic(TOPIC.encode())
    for wrong in (TOPIC.upper(), TOPIC[:-1], TOPIC + "0", TOPIC + "\n", "g" * 64, ""):
        assert not is_topic(wrong.encode())


def messages() -> st.SearchStrategy[bytes]:
    """Messages of every kind, whole."""
    return st.one_of(
        st.builds(built_chunk, topics, st.binary(max_size=70), macs, st.just(b"") | macs),
        st.builds(built_signed, envelopes, st.just(b"s" * 64), macs),
        st.just(built_block(b"p" * 16, [Token("a", "s"), Token("b", "s")])),
        st.just(encode.resume(TOPIC.encode(), MAC)),
    )


@pytest.mark.promise(
    "Token streams: bytes, keys and signatures",
    "no input makes a reader raise, read out of bounds or allocate by a declared length",
)
@settings(max_examples=250)
@given(messages(), st.randoms(use_true_random=False), st.integers(1, 4), st.booleans())
def test_no_spoilt_message_makes_a_reader_raise(frame: bytes, dice: Random, count: int, is_cut: bool) -> None:
    spoilt = bytearray(scattered(frame, dice, count))
    for _ in range(dice.randrange(1, 6)):
        spoilt[dice.randrange(len(spoilt))] ^= 1 << dice.randrange(8)
    if is_cut:
        del spoilt[dice.randrange(len(spoilt)) :]
    for read in READERS:
        read(bytes(spoilt))


@given(
    st.binary(max_size=200)
    | st.lists(st.integers(0, 2**64 - 1), max_size=12).map(
        lambda words: frame_of(b"".join(word.to_bytes(8, "little") for word in words))
    )
)
def test_no_bytes_at_all_make_a_reader_raise(frame: bytes) -> None:
    for read in READERS:
        read(frame)


def nested_lists(levels: int) -> bytes:
    """A message whose every level points to the next one twice: as a tree it has 2 ** levels leaves."""
    words = [struct_pointer(0, 0, 1), list_pointer(0, 6, 2)]
    for _ in range(levels):
        words += [list_pointer(1, 6, 2), list_pointer(0, 6, 2)]
    return frame_of(b"".join(words) + bytes(16))


def shared_text(count: int, size: int) -> bytes:
    """A block whose payloads all lead to one and the same long text."""
    text_at = 4 + 3 * count
    words = [struct_pointer(0, 0, 2), bytes(8), list_pointer(0, 7, 3 * count)]
    words.append((count << 2 | 1 << 32 | 2 << 48).to_bytes(8, "little"))
    for index in range(count):
        here = 4 + 3 * index
        words += [bytes(8), bytes(8), list_pointer(text_at - here - 3, 2, size)]
    return frame_of(b"".join(words) + b"x" * (size - 1) + bytes(1))


HOSTILE = {
    "a segment count beyond reason": (0xFFFFFFFF).to_bytes(4, "little") + bytes(60),
    "as many segments as can be said": (511).to_bytes(4, "little") + bytes(60),
    "a segment longer than the frame": (0xFFFFFFFF << 32).to_bytes(8, "little") + bytes(64),
    "a list of half a gigabyte": frame_of(
        struct_pointer(0, 0, 4) + b"".join(list_pointer(0, 2, 2**29 - 1) for _ in range(4))
    ),
    "a struct of a megabyte": frame_of(struct_pointer(0, 65535, 65535)),
    "a billion structs of no size": frame_of(
        struct_pointer(0, 0, 2) + bytes(8) + list_pointer(0, 7, 0) + (0xFFFFFFFC).to_bytes(8, "little")
    ),
    "a list of a half billion nothings": frame_of(struct_pointer(0, 0, 1) + list_pointer(0, 0, 2**29 - 1)),
    "a struct that points to itself": frame_of(struct_pointer(-1, 0, 1)),
    "a pointer that points to its own struct": frame_of(struct_pointer(0, 0, 1) + struct_pointer(-1, 0, 1)),
    "two pointers to their own list": frame_of(
        struct_pointer(0, 0, 1) + list_pointer(0, 6, 2) + list_pointer(-1, 6, 2) + list_pointer(-2, 6, 2)
    ),
    "a tree of a billion leaves": nested_lists(30),
    "a text shared by thousands": shared_text(2000, 60_000),
    "a far pointer to itself": frame_of(far_pointer(0, 0)),
    "far pointers in a ring": frame_of(far_pointer(1, 0), far_pointer(0, 0)),
    "a far pointer to nowhere": frame_of(far_pointer(9, 0)),
    "a far pointer beyond its segment": frame_of(far_pointer(1, 1), bytes(8)),
    "a double far pointer at the very end": frame_of(far_pointer(1, 0, double=True), bytes(8)),
    "a double far pointer to a double far pointer": frame_of(
        far_pointer(1, 0, double=True), far_pointer(1, 0, double=True) + struct_pointer(0, 0, 1)
    ),
    "a far pointer to a null": frame_of(far_pointer(1, 0), bytes(8)),
    "a capability": frame_of(struct_pointer(0, 0, 2) + (3).to_bytes(8, "little") * 2),
    "an offset before the message": frame_of(struct_pointer(-5, 1, 0)),
}


@pytest.mark.promise(
    "Token streams: bytes, keys and signatures",
    "no input makes a reader raise, read out of bounds or allocate by a declared length",
)
@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_hostile_messages_cost_little(name: str) -> None:
    frame = HOSTILE[name]
    for read in READERS:
        tracemalloc.start()
        try:
            read(frame)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 100_000 + 40 * len(frame), f"{read.__name__} took {peak} bytes"


@pytest.mark.promise(
    "Token streams: bytes, keys and signatures",
    "no input makes a reader raise, read out of bounds or allocate by a declared length",
)
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("a billion structs of no size", "effort"),
        ("two pointers to their own list", "effort"),
        ("a tree of a billion leaves", "effort"),
        ("a pointer that points to its own struct", "depth"),
        ("a capability", "capability"),
    ],
)
def test_endless_messages_have_no_canonical_form(name: str, reason: str) -> None:
    assert canonical_message(HOSTILE[name]) == FrameFault(reason)
