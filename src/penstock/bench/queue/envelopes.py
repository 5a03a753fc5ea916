"""Envelopes of an exact size, made by inserting a number and a time: encoding JSON for each would measure the client."""

from __future__ import annotations

from itertools import chain, repeat

ID_DIGITS = 10
STAMP_DIGITS = 20


def envelope(stream: str, size: int, tag: str) -> bytes:
    """A bytes format that takes a number and a time in nanoseconds and gives an envelope of `size` bytes."""
    head = (
        f'{{"id":"{tag}-%0{ID_DIGITS}d","ts":"2026-01-01T00:00:00Z","to":"{stream}","type":"bench.load",'
        f'"from":"bench","payload":{{"t":"%0{STAMP_DIGITS}d","pad":"'
    )
    tail = '"}}'
    given = len((head % (0, 0)) + tail)
    if size < given:
        raise ValueError(f"an envelope of this bench has at least {given} bytes")
    return (head + "x" * (size - given) + tail).encode()


def pairs(first: int, count: int, stamp_ns: int) -> tuple[int, ...]:
    """The arguments of `count` envelopes, numbered from `first`."""
    return tuple(chain.from_iterable(zip(range(first, first + count), repeat(stamp_ns), strict=False)))


class EnqueueLines:
    """Control v1 lines that enqueue `batch` envelopes each."""

    def __init__(self, stream: str, size: int, tag: str, batch: int) -> None:
        one = envelope(stream, size, tag)
        self._batch = batch
        env = one if batch == 1 else b"[" + b",".join([one] * batch) + b"]"
        self._line = b'{"type":"enqueue","reqId":%%d,"to":"%b","env":%b}\n' % (stream.encode(), env)
        self._block = b""

    def make(self, first: int, lines: int, stamp_ns: int) -> bytes:
        """So many lines, with envelopes numbered from `first`."""
        if self._batch == 1:  # one formatting call for all lines
            if len(self._block) != lines * len(self._line):
                self._block = self._line * lines
            numbers = range(first, first + lines)
            return self._block % tuple(chain.from_iterable(zip(numbers, numbers, repeat(stamp_ns), strict=False)))
        starts = range(first, first + lines * self._batch, self._batch)
        return b"".join([self._line % (start, *pairs(start, self._batch, stamp_ns)) for start in starts])


def inbox(stream: str, number: int) -> str:
    return f"agents/{stream}-{number}/inbox"


class InboxLines:
    """Control v1 lines that enqueue one envelope each, to `count` inboxes in turn."""

    def __init__(self, stream: str, size: int, tag: str, count: int) -> None:
        self._lines = [EnqueueLines(inbox(stream, number), size, tag, 1) for number in range(count)]

    def make(self, first: int, lines: int, stamp_ns: int) -> bytes:
        """So many lines, with envelopes numbered from `first`."""
        inboxes = self._lines
        numbers = range(first, first + lines)
        return b"".join([inboxes[number % len(inboxes)].make(number, 1, stamp_ns) for number in numbers])


class Posts:
    """HTTP requests that enqueue `batch` envelopes each."""

    def __init__(self, stream: str, size: int, tag: str, batch: int, host: str, token: str | None) -> None:
        one = envelope(stream, size, tag)
        self._batch = batch
        inside = b'"envelope":' + one if batch == 1 else b'"envelopes":[' + b",".join([one] * batch) + b"]"
        self._body = b'{"to":"%b",%b}' % (stream.encode(), inside)
        length = len(self._body % pairs(0, batch, 0))
        login = f"Authorization: Bearer {token}\r\n" if token else ""
        self._head = (
            f"POST /v1/enqueue HTTP/1.1\r\nHost: {host}\r\n{login}"
            f"Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        ).encode()

    def make(self, first: int, stamp_ns: int) -> bytes:
        """One request, with envelopes numbered from `first`."""
        return self._head + self._body % pairs(first, self._batch, stamp_ns)
