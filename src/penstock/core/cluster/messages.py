"""The messages of a shard's log, and how a frame is cut into them.

    Pen: <epoch>.<number>.<part>/<parts> <kind> <first offset>+<rows> <previous> <check>
    Pen: 7.42.1/3 rows 1000+12 9f3a22b1 04c1d7aa

A frame is what a reader applies as a whole: the rows of one commit, or a marker. Each owner writes under an epoch of its own and numbers
its frames from 0, which is the marker that begins the epoch. `check` is the crc32c of the header before it and of the payload;
`previous` is the `check` of the message before, so a message vouches for all that precede it.
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias, cast

import google_crc32c
import msgspec

HEADER = "Pen"
MESSAGE_MAX = 512 * 1024
"""Bytes of payload in a message: half of what a NATS server takes by default."""
PARTS_MAX = 513
"""Messages of a frame: the longest frame of a segment, 256 MiB and 8 bytes."""

FrameKind: TypeAlias = Literal["epoch", "rows", "idle", "released"]
"""`epoch` begins an epoch and names its owner, `rows` is a commit, `idle` shows that the owner is alive, `released` ends the epoch."""

_FORM = re.compile(
    r"(\d{1,18})\.(\d{1,18})\.(\d{1,9})/(\d{1,9}) (epoch|rows|idle|released) (\d{1,18})\+(\d{1,18}) ([0-9a-f]{8}) ([0-9a-f]{8})"
)


class LogMessage(msgspec.Struct, frozen=True):
    """One message of a shard's log."""

    epoch: int
    number: int
    part: int
    parts: int
    kind: FrameKind
    first: int
    """Offset of the frame's first row; of a marker, the next offset."""
    rows: int
    previous: int
    payload: bytes
    check: int

    @property
    def header(self) -> str:
        return f"{self._place} {self.check:08x}"

    @property
    def is_sound(self) -> bool:
        """Whether header and payload are as they were written."""
        return self.check == _checksum(self._place, self.payload)

    @property
    def _place(self) -> str:
        frame = f"{self.epoch}.{self.number}.{self.part}/{self.parts}"
        return f"{frame} {self.kind} {self.first}+{self.rows} {self.previous:08x}"


def _checksum(place: str, payload: bytes) -> int:
    return int(google_crc32c.extend(google_crc32c.value(place.encode()), payload))


def parse_message(header: str | None, payload: bytes) -> LogMessage | None:
    """The message with this header; None if no node of ours has written it."""
    match = _FORM.fullmatch(header or "")
    if match is None:
        return None
    epoch, number, part, parts, kind, first, rows, previous, check = match.groups()
    numbers = (int(epoch), int(number), int(part), int(parts))
    return LogMessage(
        *numbers, cast(FrameKind, kind), int(first), int(rows), int(previous, 16), payload, int(check, 16)
    )


def cut(
    kind: FrameKind, payload: bytes, *, epoch: int, number: int, first: int, rows: int = 0, previous: int
) -> list[LogMessage]:
    """The messages of a frame, in order."""
    pieces = [payload[start : start + MESSAGE_MAX] for start in range(0, len(payload), MESSAGE_MAX)] or [b""]
    if len(pieces) > PARTS_MAX:
        raise ValueError(f"a frame of {len(payload)} bytes needs {len(pieces)} messages, at most {PARTS_MAX}")
    messages: list[LogMessage] = []
    for part, piece in enumerate(pieces, 1):
        message = LogMessage(epoch, number, part, len(pieces), kind, first, rows, previous, piece, 0)
        message = msgspec.structs.replace(message, check=_checksum(message._place, piece))
        messages.append(message)
        previous = message.check
    return messages
