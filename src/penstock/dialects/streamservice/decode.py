"""Decode whole messages of token streams from untrusted peers: a value, or a `FrameFault` with the reason.

Owns the meaning of fields: which pointer is which field, which number is which union arm. The relay uses it only for registrations. It
checks no MAC and no signature: a reader checks those first, where the format allows it. Cost: about 2 us for each token of a block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from penstock.dialects.streamservice import messages
from penstock.dialects.streamservice.capnp_segments import Message, Struct, WireError
from penstock.dialects.streamservice.wire import KEY_SIZE, SIGNATURE_SIZE, Chunk, FrameFault, peek

NONCE_SIZE = 16

Value = TypeVar("Value")


def read_chunk(frame: bytes) -> messages.ChunkBody | FrameFault:
    """A StreamChunk with its data."""
    seen = peek(frame)
    if not isinstance(seen, Chunk):
        return seen if isinstance(seen, FrameFault) else FrameFault("unknown")
    data = _read(frame, lambda root: root.data(1) or b"")
    return data if isinstance(data, FrameFault) else messages.ChunkBody(seen.topic, data, seen.mac, seen.prev)


def read_payload(frame: bytes) -> messages.Payload | FrameFault:
    """A StreamPayload alone, the data of a chunk."""
    return _read(frame, _payload)


def read_block(frame: bytes) -> messages.Block | FrameFault:
    """A StreamBlock."""
    return _read(frame, lambda root: messages.Block(root.data(0) or b"", [_payload(part) for part in root.structs(1)]))


def read_register(frame: bytes) -> messages.StreamRegister | FrameFault:
    """A StreamRegister, the payload of an envelope; nothing in it may be unknown."""

    def register(root: Struct) -> messages.StreamRegister:
        root.check_known(1, 1)
        return messages.StreamRegister(root.text(0), root.i64(0))

    return _read(frame, register)


def read_info(frame: bytes) -> messages.StreamInfo | FrameFault:
    """A StreamInfo."""
    return _read(frame, lambda root: messages.StreamInfo(root.text(0), root.text(1), _sized(root.data(2), KEY_SIZE)))


def read_start_request(frame: bytes) -> messages.StreamStartRequest | FrameFault:
    """A StreamStartRequest."""
    return _read(frame, lambda root: messages.StreamStartRequest(root.text(0), _sized(root.data(1), KEY_SIZE)))


def read_auth_response(frame: bytes) -> messages.StreamAuthResponse | FrameFault:
    """A StreamAuthResponse."""
    return _read(frame, lambda root: messages.StreamAuthResponse(root.text(0), _sized(root.data(1), KEY_SIZE)))


def read_response(frame: bytes) -> messages.ResponseEnvelope | FrameFault:
    """A ResponseEnvelope, not verified; a missing signature is empty."""

    def response(root: Struct) -> messages.ResponseEnvelope:
        return messages.ResponseEnvelope(root.u64(0), root.data(0) or b"", root.data(1) or b"", root.data(2) or b"")

    return _read(frame, response)


def signed_envelope(root: Struct) -> tuple[messages.SignedEnvelope, Struct]:
    """A SignedEnvelope and its signed struct, for the signature check; an unknown field in it is an error."""
    body = root.struct(0)
    if body is None:
        raise WireError("unknown")
    body.check_known(2, 5)
    key = body.data(2)
    envelope = messages.RequestEnvelope(
        payload=body.data(1) or b"",
        nonce=_sized(body.data(3), NONCE_SIZE),
        timestamp_ms=body.i64(8),
        claims=_claims(body.struct(4)),
        identity=_identity(body.struct(0)),
        request_id=body.u64(0),
        ephemeral_key=_sized(key, KEY_SIZE) if key else None,
    )
    signature, signer = _sized(root.data(1), SIGNATURE_SIZE), _sized(root.data(2), KEY_SIZE)
    return messages.SignedEnvelope(envelope, signature, signer), body


def _read(frame: bytes, read: Callable[[Struct], Value]) -> Value | FrameFault:
    try:
        return read(Message(frame).root())
    except WireError as error:
        return FrameFault(error.reason)


def _sized(data: bytes | None, size: int) -> bytes:
    if data is None or len(data) != size:
        raise WireError("size")
    return data


def _payload(body: Struct) -> messages.Payload:
    stream_id = body.text(0)
    arm = body.u16(0)
    if arm == 0:
        return messages.Token(body.text(1), stream_id)
    if arm == 3:
        return messages.Heartbeat(stream_id)
    if arm > 3:
        raise WireError("unknown")
    part = body.struct(1)
    if arm == 1:
        return _complete(part, stream_id)
    if part is None:
        return messages.StreamFailure("", "", "", stream_id)
    return messages.StreamFailure(part.text(0), part.text(1), part.text(2), stream_id)


def _complete(part: Struct | None, stream_id: str) -> messages.Complete:
    if part is None:
        return messages.Complete(finish_reason="", stream_id=stream_id)
    return messages.Complete(
        tokens=part.u32(0),
        finish_reason=part.text(0),
        generation_ms=part.u64(8),
        tokens_per_second=part.f32(4),
        perplexity=part.f32(16),
        entropy=part.f32(20),
        stream_id=stream_id,
    )


def _identity(body: Struct | None) -> messages.Identity:
    if body is None:
        raise WireError("unknown")
    body.check_known(1, 1)
    arm = body.u16(0)
    if arm == 3:
        return messages.Anonymous()
    part = body.struct(0)
    if part is None or arm > 3:
        raise WireError("unknown")
    part.check_known(0, 2 if arm else 1)
    if arm == 0:
        return messages.Local(part.text(0))
    if arm == 1:
        return messages.ApiToken(part.text(0), part.text(1))
    return messages.Peer(part.text(0), part.data(1) or b"")


def _claims(body: Struct | None) -> messages.Claims | None:
    if body is None:
        return None
    body.check_known(3, 2)
    return messages.Claims(
        sub=body.text(0),
        exp=body.i64(0),
        iat=body.i64(8),
        scopes=tuple(_scope(part) for part in body.structs(1)),
        is_admin=bool(body.u16(16) & 1),
    )


def _scope(body: Struct) -> messages.StreamScope:
    body.check_known(0, 3)
    return messages.StreamScope(body.text(0), body.text(1), body.text(2))
