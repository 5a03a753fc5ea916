"""The reader's rule: which messages of a shard's log count, and what they add up to.

A message counts if it continues the frame, the epoch and the chain of checksums, or if it begins a higher epoch and the chain holds. A
message of a lower epoch is void: its writer did not know that it was deposed. A commit whose last part never came is dropped when the next
epoch begins. Everything else is damage. Every node that reads a log comes to the same rows, at whatever message it started.
"""

from __future__ import annotations

import msgspec

from penstock.core.cluster.messages import PARTS_MAX, FrameKind, LogMessage


class LogEnd(msgspec.Struct, frozen=True):
    """Up to where a log was read, and what the next message must continue."""

    seq: int = 0
    """Sequence of the last message in the stream."""
    epoch: int = 0
    number: int = 0
    """The last frame of the epoch."""
    offset: int = 0
    """The next row."""
    check: int = 0
    owner: str = ""
    """Who began the epoch."""
    is_released: bool = False
    """Whether the owner ended it."""


class LogFrame(msgspec.Struct, frozen=True):
    """A whole frame: the rows of a commit, or a marker."""

    kind: FrameKind
    epoch: int
    first: int
    rows: int
    payload: bytes


class LogDamage(msgspec.Struct, frozen=True):
    """The log is not what was written to it: the shard halts, and a person decides."""

    stream: str
    seq: int
    what: str

    def __str__(self) -> str:
        return f"stream `{self.stream}` is damaged at message {self.seq}: {self.what}"


class ShardReader:
    """Reads the log of one shard, message by message."""

    def __init__(self, stream: str, end: LogEnd | None = None) -> None:
        """`end` is where to go on: the `whole` of another reader."""
        self.stream = stream
        self.end = end or LogEnd()
        self.whole = self.end
        """The end of the last whole frame, from which another reader may go on."""
        self._parts: list[LogMessage] = []
        """The unfinished commit."""
        self.voids = 0
        """Messages that did not count."""
        self.unfinished = 0
        """Commits that were dropped."""

    def accept(self, seq: int, message: LogMessage | None) -> LogFrame | LogDamage | None:
        """Read the next message; None if it is void, or a part of a commit that goes on."""
        what = self.problem(seq, message)
        if what is not None or message is None:
            return LogDamage(self.stream, seq, what or "")
        if self.is_void(message):
            self.voids += 1
            self.end = msgspec.structs.replace(self.end, seq=seq)
            if not self._parts:
                self.whole = self.end
            return None
        if message.epoch > self.end.epoch and self._parts:
            self.unfinished += 1
            self._parts.clear()
        self._parts.append(message)
        is_whole = message.part == message.parts
        self.end = LogEnd(
            seq,
            message.epoch,
            message.number,
            message.first + message.rows if is_whole else message.first,
            message.check,
            message.payload.partition(b" ")[0].decode(errors="replace") if message.kind == "epoch" else self.end.owner,
            message.kind == "released",
        )
        if not is_whole:
            return None
        payload = b"".join([part.payload for part in self._parts])
        self._parts.clear()
        self.whole = self.end
        return LogFrame(message.kind, message.epoch, message.first, message.rows, payload)

    def is_void(self, message: LogMessage) -> bool:
        """Whether its writer was deposed before."""
        return message.epoch < self.end.epoch

    def problem(self, seq: int, message: LogMessage | None) -> str | None:
        """Why the next message of the log cannot be this one."""
        end = self.end
        if seq != end.seq + 1:
            return f"message {end.seq + 1} is missing"
        if message is None:
            return "it was not written by a node of this cluster"
        if not message.is_sound:
            return "its checksum is wrong"
        if self.is_void(message):
            return None
        if message.previous != end.check:
            return f"it continues another message than number {end.seq}"
        if message.first != end.offset:
            return f"it has row {message.first} where row {end.offset} belongs"
        if message.epoch > end.epoch:
            begins = (message.kind, message.number, message.part, message.parts) == ("epoch", 0, 1, 1)
            return None if begins else f"epoch {message.epoch} begins without its marker"
        return self._gap(message)

    def _gap(self, message: LogMessage) -> str | None:
        """Why a message does not go on where its epoch is."""
        if self.end.is_released:
            return f"epoch {message.epoch} goes on after its end"
        number, part = self.end.number + 1, 1
        if self._parts:
            last = self._parts[-1]
            number, part = last.number, last.part + 1
            if (message.kind, message.parts, message.rows) != (last.kind, last.parts, last.rows):
                return f"it is of another commit than the part {last.part} before it"
        if (message.number, message.part) != (number, part) or not part <= message.parts <= PARTS_MAX:
            return f"it is {message.number}.{message.part}/{message.parts}, and {number}.{part} belongs here"
        return f"a second marker begins epoch {message.epoch}" if message.kind == "epoch" else None
