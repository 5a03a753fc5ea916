"""The frames of a Stream Kernel pipe: bytes cut anywhere in, frames out, and the other way round.

    uint32be metadataLength | uint32be payloadLength | metadata (JSON, UTF-8) | payload

Pure: it owns the half frame a chunk left behind and the number of the next data frame. Both lengths are checked as soon as
their eight bytes are there, so a peer makes us hold one frame of the allowed size at most, whatever it claims. There is no
handshake, magic number or version to rely on: what cannot be a frame ends the pipe, for nobody knows where the next one starts.
A type that we do not know is passed over and counted, as the other side does, and so is any further field of the metadata.

A frame's payload is a stretch of a byte stream and not a message; `WholeLines` gives Control v1 its lines back.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.core.errors import Refusal
from penstock.core.limits import MIB

PAYLOAD_MAX = 10 * MIB
"""Bytes of one payload: what the other side takes."""
METADATA_MAX = 64 * 1024
"""Bytes of one frame's metadata; real ones have about 60."""
HEAD = 8
FRAME_MAX = HEAD + METADATA_MAX + PAYLOAD_MAX
"""Bytes of the longest frame, and so of what a decoder holds beside the chunk it was given."""

Kind = Literal["data", "ping", "pong", "close"]
_KINDS: dict[str, Kind] = {"data": "data", "ping": "ping", "pong": "pong", "close": "close"}
_encode = msgspec.json.encode


class Metadata(msgspec.Struct, rename="camel", omit_defaults=True):
    """What a frame says of itself. Only the type decides anything: sockets keep the order of frames by themselves."""

    type: str
    timestamp: int | float | None = None
    sequence_id: int | None = None


_metadata = msgspec.json.Decoder(Metadata).decode


class PipeFrame(msgspec.Struct, frozen=True):
    """One frame of a kind we know."""

    kind: Kind
    payload: bytes = b""
    timestamp: int | float | None = None
    sequence_id: int | None = None


class FrameEncoder:
    """One end's way out: numbers its data frames from 0."""

    def __init__(self) -> None:
        self.next_id = 0

    def data(self, now_ms: int, payload: bytes) -> bytes:
        """A data frame; the caller keeps to `PAYLOAD_MAX`, as `WholeLines` does."""
        assert len(payload) <= PAYLOAD_MAX
        metadata = _encode(Metadata("data", now_ms, self.next_id))
        self.next_id += 1
        return _frame(metadata, payload)

    def control(self, now_ms: int, kind: Literal["ping", "pong", "close"]) -> bytes:
        """A frame without a payload; it has no number."""
        return _frame(_encode(Metadata(kind, now_ms)), b"")


def _frame(metadata: bytes, payload: bytes) -> bytes:
    return b"".join((len(metadata).to_bytes(4, "big"), len(payload).to_bytes(4, "big"), metadata, payload))


class FrameDecoder:
    """One end's way in."""

    def __init__(self) -> None:
        self.failure: Refusal | None = None
        """Why nothing more can be read: set by the first bytes that are no frame."""
        self.ignored = 0
        """Frames of a type that we do not know."""
        self._held = bytearray()

    @property
    def held(self) -> int:
        """Bytes of a frame that is not whole yet."""
        return len(self._held)

    def feed(self, chunk: bytes) -> list[PipeFrame]:
        """The frames that this chunk completes; those before a failure are given too."""
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
            frame = self._read(
                bytes(held[body : body + metadata_size]), bytes(held[body + metadata_size : end])
            )
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
    """Cuts a byte stream behind its line ends.

    A line longer than `limit` is given in pieces of that size: whoever reads the stream may refuse it, and nobody has to hold it.
    """

    def __init__(self, limit: int = PAYLOAD_MAX) -> None:
        self._limit = limit
        self._half = bytearray()

    @property
    def held(self) -> int:
        """Bytes of a line that is not whole yet."""
        return len(self._half)

    def feed(self, chunk: bytes) -> list[bytes]:
        """Stretches of at most `limit` bytes, each of whole lines where that is possible."""
        half = self._half
        half += chunk
        if len(half) < self._limit and b"\n" not in chunk:
            return []  # the half line was looked through before
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
