"""Stream frames on a WebSocket: made many at a time, numbered, and counted by their headers without decoding."""

from __future__ import annotations

TEXT, BINARY, CLOSE, PING, PONG = 0x81, 0x82, 0x88, 0x89, 0x8A
KEY = bytes((0x5A, 0xC3, 0x17, 0x9E))  # not zero, as those of real clients, so the server must unmask
SHORT, LONG = 126, 127  # the second byte of a header when two or eight bytes of length follow it
BLOCK_DIGITS, PLACE_DIGITS = 8, 4
NUMBER_DIGITS = BLOCK_DIGITS + PLACE_DIGITS  # the number of a frame: its block and its place in the block


def mask(payload: bytes) -> bytes:
    return bytes(byte ^ KEY[index & 3] for index, byte in enumerate(payload))


def message(first: int, payload: bytes) -> bytes:
    """One message of a client."""
    size = len(payload)
    if size < SHORT:
        head = bytes((first, 0x80 | size))
    elif size < 1 << 16:
        head = bytes((first, 0x80 | SHORT)) + size.to_bytes(2, "big")
    else:
        head = bytes((first, 0x80 | LONG)) + size.to_bytes(8, "big")
    return head + KEY + mask(payload)


def frame(stream_id: str, size: int, number: bytes = b"") -> bytes:
    """One frame of a client with `size` bytes of data."""
    return message(BINARY, b"#%b#%b" % (stream_id.encode(), number.ljust(size, b"x")))


class FrameBlocks:
    """Blocks of frames for one stream. All blocks share one buffer, in which only the number changes."""

    def __init__(self, stream_id: str, size: int, count: int) -> None:
        if size < NUMBER_DIGITS or not 0 < count <= 10**PLACE_DIGITS:
            raise ValueError(f"a frame has at least {NUMBER_DIGITS} bytes, a block at most 10,000 frames")
        numbers = [b"%08d%04d" % (0, place) for place in range(count)]
        self._block = bytearray(b"".join(frame(stream_id, size, number) for number in numbers))
        self._size, self._count = len(self._block) // count, count
        self._digits = b"0" * BLOCK_DIGITS
        self._data_at = self._size - size
        self._keys = [KEY[(len(stream_id) + 2 + index) & 3] for index in range(BLOCK_DIGITS)]

    def make(self, number: int) -> bytearray:
        """The block of that number, valid until the next one is made."""
        digits = b"%08d" % number
        for index, (old, new) in enumerate(zip(self._digits, digits, strict=True)):
            if old != new:
                column = slice(self._data_at + index, None, self._size)
                self._block[column] = bytes([new ^ self._keys[index]]) * self._count
        self._digits = digits
        return self._block


class FrameTally:
    """What one connection has received. `take` costs a few slices a chunk, however many frames are in it."""

    def __init__(self, block: int = 0) -> None:
        self.count = 0  # frames of streams
        self.position = 0  # one more than the newest number, when frames come in blocks of `block`
        self.texts: list[bytes] = []
        self.pings: list[bytes] = []
        self.closed: bytes | None = None
        self._block = block

    def take(self, buffer: bytes) -> int:
        """Count the complete messages; returns where the rest begins."""
        at, end = 0, len(buffer)
        while (found := _sizes(buffer, at, end)) is not None:
            head, size = found
            whole = (end - at) // (head + size)
            if not whole:
                break
            first = buffer[at]
            if first == BINARY:
                count = _count_alike(buffer, at, head, head + size, whole)
                self._count(buffer, at + (count - 1) * (head + size) + head, count)
                at += count * (head + size)
                continue
            payload = buffer[at + head : at + head + size]
            if first == TEXT:
                self.texts.append(payload)
            elif first == PING:
                self.pings.append(payload)
            elif first == CLOSE:
                self.closed = payload[2:]
            elif first != PONG:
                raise ValueError(f"a message began with the byte {first:#x}")
            at += head + size
        return at

    def _count(self, buffer: bytes, newest_at: int, count: int) -> None:
        self.count += count
        if not self._block:
            return
        data_at = buffer.index(b"#", newest_at + 1) + 1
        place_at = data_at + BLOCK_DIGITS
        number = int(buffer[data_at:place_at]) * self._block + int(buffer[place_at : place_at + PLACE_DIGITS])
        if number < self.position + count - 1:
            raise ValueError(f"frame {number} came {count} after {self.position}: twice, or out of order")
        self.position = number + 1


def _sizes(buffer: bytes, at: int, end: int) -> tuple[int, int] | None:
    """Bytes of header and of payload, once the header is complete."""
    if end - at < 2:
        return None
    size = buffer[at + 1]
    if size < SHORT:
        return 2, size
    more = 2 if size == SHORT else 8
    return None if end - at < 2 + more else (2 + more, int.from_bytes(buffer[at + 2 : at + 2 + more], "big"))


def _count_alike(buffer: bytes, at: int, head: int, stride: int, whole: int) -> int:
    """How many consecutive messages have the same header."""
    count = whole
    for offset in range(head):
        column = buffer[at + offset : at + count * stride : stride]
        count = len(column) - len(column.lstrip(column[:1]))
    return count
