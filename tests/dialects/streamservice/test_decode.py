"""Decoding compared with pycapnp: defaults, damaged payloads, and faults with their reason."""

from __future__ import annotations

from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import given

from penstock.dialects.streamservice import decode, encode
from penstock.dialects.streamservice.messages import (
    Block,
    Complete,
    StreamFailure,
    Token,
)
from penstock.dialects.streamservice.wire import FrameFault
from tests.dialects.streamservice.reference import (
    built_block,
    built_payload,
    payloads,
    streaming,
)
from tests.dialects.streamservice.test_encode import dice


def test_fields_that_were_never_set_have_their_defaults() -> None:
    assert decode.read_payload(bytes(streaming.StreamPayload.new_message().to_bytes())) == Token("")
    builder = streaming.StreamPayload.new_message()
    builder.init("complete")
    assert decode.read_payload(bytes(builder.to_bytes())) == Complete(finish_reason="")
    builder = streaming.StreamPayload.new_message()
    builder.init("error")
    assert decode.read_payload(bytes(builder.to_bytes())) == StreamFailure("", "")
    assert decode.read_block(bytes(streaming.StreamBlock.new_message().to_bytes())) == Block(b"", [])


@given(
    st.one_of(
        payloads.map(built_payload),
        st.lists(payloads, max_size=3).map(lambda parts: built_block(b"p" * 16, parts)),
    ),
    dice,
)
def test_where_a_spoilt_payload_is_read_pycapnp_reads_the_same(frame: bytes, dice: Random) -> None:
    spoilt = bytearray(frame)
    for _ in range(dice.randrange(1, 4)):
        spoilt[dice.randrange(8, len(spoilt))] ^= 1 << dice.randrange(8)
    ours = decode.read_payload(bytes(spoilt))
    if not isinstance(ours, Token):
        return
    with streaming.StreamPayload.from_bytes(bytes(spoilt)) as payload:
        assert payload.which() == "token"
        assert (payload.streamId, payload.token) == (ours.stream_id, ours.text)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (bytes(streaming.StreamInfo.new_message(streamId="s", serverPubkey=b"k").to_bytes()), "size"),
        (bytes(streaming.StreamStartRequest.new_message(streamId="s").to_bytes()), "size"),
        (encode.framed(encode.Body((9).to_bytes(8, "little"), b"s\0", b"t\0")), "unknown"),
        (encode.framed(encode.Body(bytes(8), b"s\0", b"no end")), "text"),
        (encode.framed(encode.Body(bytes(8), b"s\0", b"\xff\xfe\0")), "text"),
        (encode.framed(encode.Body(bytes(8), b"s\0", b"")), "text"),
        (encode.framed(encode.Body(bytes(8), b"s\0", encode.Body(bytes(8)))), "kind"),
    ],
)
def test_a_message_that_says_something_wrong_is_a_fault(frame: bytes, reason: str) -> None:
    readers = (decode.read_info, decode.read_start_request, decode.read_payload)
    assert FrameFault(reason) in [read(frame) for read in readers]  # type: ignore[operator]
