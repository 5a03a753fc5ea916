"""The frames of a Stream Kernel pipe: decode them from chunks of bytes, and encode them.

    uint32be metadataLength | uint32be payloadLength | metadata (JSON, UTF-8) | payload

Owns the partial frame that a chunk left behind, and the number of the next data frame. Both lengths are checked as soon as they arrive,
so the decoder never holds more than one frame of the allowed size. Bytes that are not a frame end the pipe, because the start of the next
frame is unknown. Unknown types are skipped and counted; unknown metadata is ignored. A payload is a piece of a byte stream; `WholeLines`
restores lines.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.core.errors import Refusal
from penstock.core.limits import MIB

PAYLOAD_MAX = 10 * MIB
"""Bytes of one payload: the limit of the other side."""
METADATA_MAX = 64 * 1024
"""Bytes of one frame's metadata; real ones have about 60."""
HEAD = 8
FRAME_MAX = HEAD + METADATA_MAX + PAYLOAD_MAX
"""Bytes of the longest frame, and so of what a decoder holds besides its chunk."""

Kind = Literal["data", "ping", "pong", "close"]
_KINDS: dict[str, Kind] = {"data": "data", "ping": "ping", "pong": "pong", "close": "close"}
_encode = msgspec.json.encode


class Metadata(msgspec.Struct, rename="camel", omit_defaults=True):
    """The metadata of a frame. Only `type` matters: the socket keeps the order of frames."""

    type: str
    timestamp: int | float | None = None
    sequence_id: int | None = None


_metadata = msgspec.json.Decoder(Metadata).decode


class PipeFrame(msgspec.Struct, frozen=True):
    """One frame of a known kind."""

    kind: Kind
    payload: bytes = b""
    timestamp: int | float | None = None
    sequence_id: int | None = None


class FrameEncoder:
    """Encodes frames; data frames are numbered from 0."""

    def __init__(self) -> None:
        self.next_id = 0

    def data(self, now_ms: int, payload: bytes) -> bytes:
        """A data frame of at most `PAYLOAD_MAX` bytes, which `WholeLines` ensures."""
        assert len(payload) <= PAYLOAD_MAX
        metadata = _encode(Metadata("data", now_ms, self.next_id))
        self.next_id += 1
        return _frame(metadata, payload)

    def control(self, now_ms: int, kind: Literal["ping", "pong", "close"]) -> bytes:
        """A frame without payload and number."""
        return _frame(_encode(Metadata(kind, now_ms)), b"")


def _frame(metadata: bytes, payload: bytes) -> bytes:
    return b"".join((len(metadata).to_bytes(4, "big"), len(payload).to_bytes(4, "big"), metadata, payload))


class FrameDecoder:
    """Decodes frames."""

    def __init__(self) -> None:
        self.failure: Refusal | None = None
        """Why nothing more can be decoded; set by the first bytes that are not a frame."""
        self.ignored = 0
        """Frames of an unknown type."""
        self._held = bytearray()

    @property
    def held(self) -> int:
        """Bytes of an incomplete frame."""
        return len(self._held)

    def feed(self, chunk: bytes) -> list[PipeFrame]:
        """The frames that this chunk completes, including those before a failure."""
        if self.failure is not None:
            return []
        held = self._held
        held += chunk
        found: list[PipeFrame] = []
        start = 0
        while self.failure is None and len(held) - start >= HEAD:
            metadata_size = int.from_bytes(held[start : start + 4], "big")
            payload_size = int.from_bytes(held[start + 4 : start + HEAD], "big")
            self.failure = _oversize(metadata_size, payload_size)
            body = start + HEAD
            end = body + metadata_size + payload_size
            if self.failure is not None or len(held) < end:
                break
            frame = self._read(bytes(held[body : body + metadata_size]), bytes(held[body + metadata_size : end]))
            start = end
            if frame is not None:
                found.append(frame)
        if self.failure is not None:
            held.clear()
        elif start:
            del held[:start]
        return found

    def _read(self, raw: bytes, payload: bytes) -> PipeFrame | None:
        try:
            metadata = _metadata(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            hint = 'it is a JSON object such as {"type":"data","timestamp":0,"sequenceId":0}'
            self.failure = Refusal("InvalidRequest", f"a frame's metadata is not valid: {error}", hint=hint)
            return None
        kind = _KINDS.get(metadata.type)
        if kind is None:
            self.ignored += 1
            return None
        return PipeFrame(kind, payload, metadata.timestamp, metadata.sequence_id)


def _oversize(metadata_size: int, payload_size: int) -> Refusal | None:
    if metadata_size <= METADATA_MAX and payload_size <= PAYLOAD_MAX:
        return None
    what, size, limit = "payload", payload_size, PAYLOAD_MAX
    if metadata_size > METADATA_MAX:
        what, size, limit = "metadata", metadata_size, METADATA_MAX
    return Refusal(
        "TooLarge",
        f"a frame says that its {what} has {size} bytes and at most {limit} are allowed",
        hint="perhaps this is no pipe: a frame begins with the two lengths as 4-byte big-endian numbers",
    )


class WholeLines:
    """Cuts a byte stream after line ends. A line longer than `limit` is passed on in pieces, so it is never held whole."""

    def __init__(self, limit: int = PAYLOAD_MAX) -> None:
        self._limit = limit
        self._half = bytearray()

    @property
    def held(self) -> int:
        """Bytes of an incomplete line."""
        return len(self._half)

    def feed(self, chunk: bytes) -> list[bytes]:
        """Pieces of at most `limit` bytes, of whole lines where possible."""
        half = self._half
        half += chunk
        if len(half) < self._limit and b"\n" not in chunk:
            return []  # the partial line was searched before
        found: list[bytes] = []
        start = 0
        while True:
            end = half.rfind(b"\n", start, start + self._limit) + 1
            if not end:
                if len(half) - start < self._limit:
                    break
                end = start + self._limit
            found.append(bytes(half[start:end]))
            start = end
        if start:
            del half[:start]
        return found
