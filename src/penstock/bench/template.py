"""The load: envelopes of an exact size, made by putting an id and a time into a template.

Making JSON anew for every envelope would measure the client. What differs between envelopes (id and stamp) is
spliced in; the rest is the same bytes each time, which no server here can tell.
"""

from __future__ import annotations

from itertools import chain, repeat

ID_DIGITS = 10
STAMP_DIGITS = 20
SIZE_MIN = 220
"""Bytes of an envelope without its padding, rounded up."""


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


class Lines:
    """Control v1 lines that enqueue `batch` envelopes each."""

    def __init__(self, stream: str, size: int, tag: str, batch: int) -> None:
        one = envelope(stream, size, tag)
        self.batch = batch
        env = one if batch == 1 else b"[" + b",".join([one] * batch) + b"]"
        self._line = b'{"type":"enqueue","reqId":%%d,"to":"%b","env":%b}\n' % (stream.encode(), env)
        self._block: dict[int, bytes] = {}

    def make(self, first: int, lines: int, stamp_ns: int) -> bytes:
        """So many lines, with envelopes numbered from `first`."""
        if self.batch == 1:
            # One formatting call for all lines of a turn; each line is still a request of its own.
            block = self._block.get(lines)
            if block is None:
                block = self._block[lines] = self._line * lines
            numbers = range(first, first + lines)
            return block % tuple(chain.from_iterable(zip(numbers, numbers, repeat(stamp_ns), strict=False)))
        made = []
        for start in range(first, first + lines * self.batch, self.batch):
            numbers = range(start, start + self.batch)
            pairs = chain.from_iterable(zip(numbers, repeat(stamp_ns), strict=False))
            made.append(self._line % (start, *pairs))
        return b"".join(made)


class Posts:
    """HTTP requests that enqueue `batch` envelopes each."""

    def __init__(self, stream: str, size: int, tag: str, batch: int, host: str, token: str | None) -> None:
        one = envelope(stream, size, tag)
        self.batch = batch
        inside = b'"envelope":' + one if batch == 1 else b'"envelopes":[' + b",".join([one] * batch) + b"]"
        self._body = b'{"to":"%b",%b}' % (stream.encode(), inside)
        length = len(self._body % tuple([0] * (2 * batch)))
        login = f"Authorization: Bearer {token}\r\n" if token else ""
        self._head = (
            f"POST /v1/enqueue HTTP/1.1\r\nHost: {host}\r\n{login}"
            f"Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        ).encode()

    def make(self, first: int, stamp_ns: int) -> bytes:
        """One request, with envelopes numbered from `first`."""
        numbers = range(first, first + self.batch)
        pairs = chain.from_iterable(zip(numbers, repeat(stamp_ns), strict=False))
        return self._head + self._body % tuple(pairs)


class Adds:
    """Redis commands that add one envelope each to a stream."""

    KEPT = 100_000
    """About how many entries Redis keeps, or its memory would grow without bound: it deletes nothing on XACK."""

    def __init__(self, stream: str, size: int, tag: str) -> None:
        one = envelope(stream, size, tag)
        key = stream.encode()
        kept = b"%d" % self.KEPT
        self._one = (
            b"*8\r\n$4\r\nXADD\r\n$%d\r\n%b\r\n$6\r\nMAXLEN\r\n$1\r\n~\r\n$%d\r\n%b\r\n$1\r\n*\r\n$1\r\ne\r\n$%d\r\n%b\r\n"
            % (len(key), key, len(kept), kept, size, one)
        )
        self._block: dict[int, bytes] = {}

    def make(self, first: int, count: int, stamp_ns: int) -> bytes:
        block = self._block.get(count)
        if block is None:
            block = self._block[count] = self._one * count
        numbers = range(first, first + count)
        return block % tuple(chain.from_iterable(zip(numbers, repeat(stamp_ns), strict=False)))
