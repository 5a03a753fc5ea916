"""The bytes of a shard's stream: when new records are refused, and how far it may be purged.

Settles must fit while records do not, so the last tenth of a stream is reserved for them, and the last hundredth for markers: without an
owner no stream is purged, and an owner needs its markers. A stream is purged only behind a live file that
is stored where every node finds it, and never past what a named reader has not read.
"""
# size: two rules and their reasons

from __future__ import annotations

from collections.abc import Iterable

from penstock.core.cluster.messages import MESSAGE_MAX
from penstock.core.cluster.reader import LogEnd

SETTLES_PERCENT = 90
"""New records are refused from here on."""
MARKERS_PERCENT = 99
"""Settles too: with 1 GiB, the rest has room for the idle frames of half a day."""
MESSAGE_OVERHEAD = 256
"""Bytes a message needs in a stream besides its payload: header, subject, record."""
STREAM_FULL = "the stream of the shard is full"


class StreamSpace:
    """How full a stream is, as its owner knows it."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used = 0

    def measured(self, used: int) -> None:
        """The servers reported the size of the stream."""
        self.used = used

    def kept(self, frame: int) -> None:
        """A frame of this size was appended; the next report corrects the estimate."""
        self.used += _stored(frame)

    @property
    def is_short(self) -> bool:
        """Whether new records are refused."""
        return self.used * 100 >= self.bytes_max * SETTLES_PERCENT

    def takes(self, frame: int) -> bool:
        """Whether a frame of this size leaves the room that markers need."""
        return (self.used + _stored(frame)) * 100 <= self.bytes_max * MARKERS_PERCENT


def _stored(frame: int) -> int:
    return frame + (frame // MESSAGE_MAX + 1) * MESSAGE_OVERHEAD


def purge_point(live_files: Iterable[LogEnd], readers: Iterable[int]) -> int:
    """The last message that may go: behind the newest stored live file that no reader needs an earlier one than. 0 if there is none."""
    floor = min(readers, default=None)
    return max((end.seq for end in live_files if floor is None or end.offset <= floor), default=0)
