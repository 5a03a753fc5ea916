"""What loads share: sockets that read while they write, and loops that send in a window, send by the clock and count."""

from __future__ import annotations

import select
import socket
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from penstock.bench.harness.load import UNKNOWN, Board, LoadJob, LoadReport, announce, percentiles_ms

HOST = "127.0.0.1"
READ_BYTES = 1 << 20
POLL_S = 0.0002  # how often a sender with a full window looks again
WAIT_S = 0.05
Read = Callable[[float], object]
"""Reads what there is, or waits that many seconds for it; whether it read anything."""
OPEN_S = 60.0  # how long a server may take to accept


class LoadSocket:
    """A connection that reads while it writes, so that neither side blocks the other."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection((HOST, port), OPEN_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.setblocking(False)

    @abstractmethod
    def received(self, data: bytes) -> None: ...

    def send(self, data: bytes | bytearray) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[self.sock.send(view) :]
            except BlockingIOError:
                select.select([self.sock], [self.sock], [], WAIT_S)
                self.read()

    def read(self, wait_s: float = 0.0) -> bool:
        """Read once what is there; whether that was anything."""
        if wait_s and not select.select([self.sock], [], [], wait_s)[0]:
            return False
        try:
            data = self.sock.recv(READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            raise ConnectionError("the server closed the connection")
        self.received(data)
        return True


S = TypeVar("S", bound=LoadSocket)


class SocketGroup(Generic[S]):
    """Many connections of one process."""

    def __init__(self, members: Iterable[S] = ()) -> None:
        self.members: list[S] = []
        self._poll = select.epoll()
        self._by_fd: dict[int, S] = {}
        for member in members:
            self.add(member)

    def add(self, member: S) -> None:
        self.members.append(member)
        self._by_fd[member.sock.fileno()] = member
        self._poll.register(member.sock, select.EPOLLIN)

    def read(self, wait_s: float = 0.0) -> bool:
        """Read once from each connection that has data; whether any had."""
        ready = self._poll.poll(wait_s, len(self.members))
        for number, _ in ready:
            self._by_fd[number].read()
        return bool(ready)

    def wait(self, is_done: Callable[[S], bool], what: str) -> None:
        """Read until it holds for every member."""
        read_until(self.read, lambda: all(is_done(member) for member in self.members), what)

    def settle(self) -> None:
        """Read until it is quiet."""
        while self.read(0.2):
            pass


def read_until(read: Read, is_done: Callable[[], bool], what: str) -> None:
    """Read until it is done, but not for ever."""
    deadline = time.monotonic() + OPEN_S
    while not is_done():
        if time.monotonic() > deadline:
            raise ValueError(f"{what} did not arrive within {OPEN_S:.0f} s")
        read(WAIT_S)


def send_window(
    job: LoadJob,
    send: Callable[[int, int], int],
    read: Read,
    position: Callable[[], int],
    *,
    burst: int = 1,
    stall_s: float = 20.0,
    count_max: int = 1 << 60,
    sent: int = 0,
) -> LoadReport:
    """Send bursts for `seconds` while the window before `position` has room, then wait until all have arrived.

    `send` gets the number of the first message and the time, and returns how many it sent, `burst` at most. When nothing
    arrives for `stall_s`, the rest is lost. `sent` counts messages of before.
    """
    announce()
    board = Board(job.board)
    first_ns = time.monotonic_ns()
    while (now_ns := time.monotonic_ns()) - first_ns < job.seconds * 1e9 and sent < count_max:
        if sent - position() + burst > job.window:
            read(POLL_S)
        else:
            sent += send(sent, now_ns)
            read(0.0)
    board.total = sent
    arrived = -1
    last_ns = time.monotonic_ns()
    while arrived < sent and time.monotonic_ns() - last_ns < stall_s * 1e9:
        read(POLL_S)
        if (now := position()) != arrived:
            arrived, last_ns = now, time.monotonic_ns()
    return LoadReport(sent, first_ns, last_ns)


def count_until_end(
    job: LoadJob, read: Read, position: Callable[[], int], *, gather_s: float = 0.0, stall_s: float = 20.0
) -> tuple[int, int]:
    """Put the position on the board until it is the total; returns the times of the first and the last read.

    `gather_s` lets messages gather: waking for each would take a core from the server.
    """
    board = Board(job.board)
    first_ns, last_ns = 0, time.monotonic_ns()
    while True:
        if read(WAIT_S):
            board.acked = position()
            last_ns = time.monotonic_ns()
            first_ns = first_ns or last_ns
            if gather_s:
                time.sleep(gather_s)
        total, is_stalled = board.total, time.monotonic_ns() - last_ns > stall_s * 1e9
        if total != UNKNOWN and (position() >= total or is_stalled):
            return first_ns, last_ns


def send_paced(job: LoadJob, rate: float, count: int, send: Callable[[int, int], None], read: Read) -> LoadReport:
    """Open loop: send one message at a time at fixed times; `late` is how far the sends were behind them."""
    late: list[int] = []
    announce()
    first_ns = time.monotonic_ns()
    for number in range(count):
        due_ns = first_ns + int(number * 1e9 / rate)
        if (wait_ns := due_ns - time.monotonic_ns()) > 0:
            time.sleep(wait_ns / 1e9)  # the timers of event loops have a grain of a millisecond
        now_ns = time.monotonic_ns()
        late.append(now_ns - due_ns)
        send(number, now_ns)
        if number % 64 == 0:
            read(0.0)
    if job.board:
        Board(job.board).total = count
    return LoadReport(count, first_ns, time.monotonic_ns(), late=percentiles_ms(late))
