"""A log in a list, for the tests of readers and writers."""

from penstock.core.cluster.messages import MESSAGE_MAX, FrameKind, LogMessage, cut
from penstock.core.cluster.reader import LogFrame, ShardReader
from penstock.core.cluster.writer import Found

LONG = bytes(MESSAGE_MAX + 1)
"""A payload of two messages."""


class Log:
    """The messages of a stream, the first of sequence 1, written by the rule."""

    def __init__(self) -> None:
        self.messages: list[LogMessage] = []
        self.reader = ShardReader("s")

    def make(self, kind: FrameKind, payload: bytes = b"", rows: int = 0, epoch: int = 0) -> list[LogMessage]:
        """A frame that continues the log, or begins this epoch."""
        end = self.reader.end
        number = 0 if kind == "epoch" else end.number + 1
        return cut(
            kind, payload, epoch=epoch or end.epoch, number=number, first=end.offset, rows=rows, previous=end.check
        )

    def add(self, message: LogMessage) -> object:
        self.messages.append(message)
        return self.reader.accept(len(self.messages), message)

    def write(self, kind: FrameKind, payload: bytes = b"", rows: int = 0, epoch: int = 0) -> LogFrame:
        for message in self.make(kind, payload, rows, epoch):
            frame = self.add(message)
        assert isinstance(frame, LogFrame), frame
        return frame

    def begin(self, epoch: int, owner: str) -> LogFrame:
        return self.write("epoch", f"{owner} 00".encode(), epoch=epoch)

    def after(self, seq: int) -> Found:
        rest: list[tuple[int, LogMessage | None]] = [*enumerate(self.messages[seq:], seq + 1)]
        return Found(rest, len(self.messages))

    def reader_of(self) -> ShardReader:
        """A reader of its own that has read the whole log."""
        reader = ShardReader("s")
        for seq, message in enumerate(self.messages, 1):
            reader.accept(seq, message)
        return reader
