"""The writer of a shard's log: one message in flight, and no outcome is guessed.

A message is published on the condition that the stream ends where the writer has read to, so of two writers one is refused. That fence
holds for one message at a time: of two in flight, the second would match behind the first message of a new owner. An outcome that is
unknown is resolved by reading the place after the condition:

    ours is there                        it is kept
    another that continues the log       its writer was first; if this was an owner, it is deposed
    a void message                       step over it, and look at the next place
    nothing                              publish the same bytes again
    the place was purged                 a later owner was there, and what it read is unknown
    anything else                        damage

"Refused" is no outcome: an earlier copy of the same message may be what was in its place. The caller performs one step after another,
`Publish` or `Seek`, and returns what came of it, until the step is `Resolved`.
"""

from __future__ import annotations

from collections import deque
from typing import Literal, TypeAlias

import msgspec

from penstock.core.cluster.messages import FrameKind, LogMessage, cut
from penstock.core.cluster.reader import LogDamage, ShardReader

REWOUND_AFTER_US = 15_000_000
"""A stream that ends before what was kept is damaged, unless it was read from a leader that has lost its majority: one answers for 10 s."""


class Publish(msgspec.Struct, frozen=True):
    """Append this message if the stream ends at sequence `after`."""

    message: LogMessage
    after: int


class Seek(msgspec.Struct, frozen=True):
    """Read from the leader of the stream what follows sequence `after`."""

    after: int


class Kept(msgspec.Struct, frozen=True):
    """The stream has the message, on a majority of its disks."""

    seq: int


class Passed(msgspec.Struct, frozen=True):
    """The stream does not end at `after`."""


class Full(msgspec.Struct, frozen=True):
    """The stream has no room for the message."""


class Unknown(msgspec.Struct, frozen=True):
    """There was no answer in time: the operation may have happened, or may happen yet."""


class Found(msgspec.Struct, frozen=True):
    """Messages that follow the sequence that was asked for, perhaps not all, and where the stream ends."""

    messages: list[tuple[int, LogMessage | None]]
    last: int
    first: int = 1
    """Where the stream begins: what was before is purged."""


class Resolved(msgspec.Struct, frozen=True):
    """What became of a frame. It counts when it is `kept`, and never will when it is `deposed` or `full`; else that is unknown."""

    verdict: Literal["kept", "deposed", "full", "behind"] | LogDamage


Published: TypeAlias = Kept | Passed | Full | Unknown
Step: TypeAlias = Publish | Seek | Resolved


class ShardWriter:
    """Appends frames to the log that a reader has read to its end."""

    def __init__(self, reader: ShardReader) -> None:
        self.reader = reader
        self.epoch = 0
        """The epoch it owns; 0 while it is a candidate."""
        self.proven_us: int | None = None
        """When the newest kept message was first sent: no other node owned the log then."""
        self._unsent: deque[LogMessage] = deque()
        """Messages of the frame under way; the first is in flight."""
        self._sent_us = 0
        self._is_repeated = False
        """Whether an earlier copy of the message in flight may still arrive."""
        self._short_us: int | None = None
        """Since when the stream has ended before what was kept."""

    @property
    def is_busy(self) -> bool:
        return bool(self._unsent)

    @property
    def has_remains(self) -> bool:
        """Whether a stream became full within a frame: only a new epoch drops what is there of it."""
        return not self._unsent and self.reader.end != self.reader.whole

    def take_over(self, now_us: int, owner: str, nonce: str) -> Publish:
        """Begin an epoch behind what was read. The nonce tells this attempt from every other."""
        return self._begin(now_us, "epoch", f"{owner} {nonce}".encode(), epoch=self.reader.end.epoch + 1, number=0)

    def append(self, now_us: int, kind: FrameKind, payload: bytes = b"", rows: int = 0) -> Publish:
        """Append a frame of the epoch it owns."""
        return self._begin(now_us, kind, payload, epoch=self.epoch, number=self.reader.end.number + 1, rows=rows)

    def _begin(
        self, now_us: int, kind: FrameKind, payload: bytes, *, epoch: int, number: int, rows: int = 0
    ) -> Publish:
        end = self.reader.end
        frame = cut(kind, payload, epoch=epoch, number=number, first=end.offset, rows=rows, previous=end.check)
        self._unsent.extend(frame)
        return self._publish(now_us)

    def _publish(self, now_us: int) -> Publish:
        self._sent_us = now_us
        self._is_repeated = False
        self._short_us = None
        return Publish(self._unsent[0], self.reader.end.seq)

    def published(self, now_us: int, outcome: Published) -> Step:
        """The outcome of a `Publish`."""
        after = self.reader.end.seq
        match outcome:
            case Kept(seq=seq) if seq == after + 1:
                return self._kept(now_us)
            case Full() if not self._is_repeated:
                return self._resolve("full")
            case _:
                return Seek(after)

    def sought(self, now_us: int, found: Found | Unknown) -> Step:
        """The outcome of a `Seek`."""
        reader, ours = self.reader, self._unsent[0]
        if isinstance(found, Unknown):
            self._short_us = None
            return Seek(reader.end.seq)
        if found.first > reader.end.seq + 1:
            return self._resolve("behind")
        for seq, message in found.messages:
            if message == ours and seq == reader.end.seq + 1:
                return self._kept(now_us)
            what = reader.problem(seq, message)
            if what is None and message is not None and message.epoch == self.epoch:
                what = f"it is of epoch {self.epoch}, and the owner of that epoch did not write it"
            if what is not None or message is None:
                return self._resolve(LogDamage(reader.stream, seq, what or ""))
            if not reader.is_void(message):
                return self._resolve("deposed")
            reader.accept(seq, message)
        if found.last != reader.end.seq:
            return self._short(now_us, found.last)
        self._short_us = None
        self._is_repeated = True
        return Publish(ours, reader.end.seq)

    def _kept(self, now_us: int) -> Step:
        message = self._unsent.popleft()
        taken = self.reader.accept(self.reader.end.seq + 1, message)
        assert not isinstance(taken, LogDamage), taken
        self.epoch = message.epoch
        self.proven_us = self._sent_us
        return self._publish(now_us) if self._unsent else Resolved("kept")

    def _short(self, now_us: int, last: int) -> Step:
        """The stream ends elsewhere: before what was kept, or behind messages that it does not show."""
        if self._short_us is None:
            self._short_us = now_us
        after = self.reader.end.seq
        if now_us - self._short_us < REWOUND_AFTER_US:
            return Seek(after)
        return self._resolve(LogDamage(self.reader.stream, last + 1, f"it ends at {last}, and {after} was kept"))

    def _resolve(self, verdict: Literal["deposed", "full", "behind"] | LogDamage) -> Resolved:
        self._unsent.clear()
        if verdict != "full":
            self.epoch, self.proven_us = 0, None
        return Resolved(verdict)
