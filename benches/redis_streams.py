"""The peer of `penstock bench queue`: Redis Streams, driven by a lean hand-made client and by redis-py.

Both send XADD, XREADGROUP with a count, and XACK of all that came. hiredis parses the replies of both.
"""

from __future__ import annotations

import shutil
import socket
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from penstock.bench.harness.drive import HOST, LoadSocket, count_until_end, send_paced, send_window
from penstock.bench.harness.load import Board, LoadReport, announce
from penstock.bench.harness.processes import START_S, ServerProcess
from penstock.bench.harness.result import BenchError
from penstock.bench.queue.envelopes import ID_DIGITS, envelope, pairs
from penstock.bench.queue.loads import TURN, QueueJob, StampedEnvelope, count_acks

GROUP = b"bench"
READ_MAX = 256  # entries of one XREADGROUP: about what our server merges into one write
BLOCK_MS = 1000


def missing() -> str | None:
    """Why this machine has no peer."""
    if shutil.which("redis-server") is None:
        return "redis-server is not installed"
    absent = [name for name in ("redis", "hiredis") if find_spec(name) is None]
    return f"its Python client is not installed: {', '.join(absent)}" if absent else None


class RedisServer(ServerProcess):
    """redis-server without persistence; durable means its log, by default synced every second."""

    def __init__(self, folder: Path, *, durable: bool, sync: str = "everysec") -> None:
        with socket.socket() as sock:
            sock.bind((HOST, 0))
            self.port = sock.getsockname()[1]
        options = ["--port", str(self.port), "--bind", HOST, "--save", ""]
        super().__init__(
            folder, ["redis-server", *options, "--appendonly", "yes" if durable else "no", "--appendfsync", sync]
        )

    def _ask(self, line: str, timeout_s: float = START_S) -> list[bytes]:
        with socket.create_connection((HOST, self.port), timeout_s) as sock:
            sock.sendall(f"{line}\r\n".encode())
            return sock.recv(4096).split(b"\r\n")

    def is_ready(self) -> bool:
        try:
            return self._ask("PING", 1.0)[0] == b"+PONG"
        except OSError:
            return False

    def check_counts(self, stream: str, count: int) -> None:
        """No entry is pending; then everything is deleted, so that one round does not slow the next."""
        pending = int(self._ask(f"XPENDING {stream} bench")[1][1:])
        if pending:
            raise BenchError(f"redis has {pending} entries pending of {count}")
        self._ask("FLUSHALL")


def command(*words: bytes) -> bytes:
    return b"*%d\r\n%b" % (len(words), b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words]))


class Adds:
    """Commands that add one envelope each to a stream, which is trimmed because XACK deletes nothing."""

    KEPT = 100_000

    def __init__(self, stream: str, size: int, tag: str) -> None:
        words = [b"XADD", stream.encode(), b"MAXLEN", b"~", b"%d" % self.KEPT, b"*", b"e"]
        head = b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])
        self._one = b"*8\r\n%b$%d\r\n%b\r\n" % (head, size, envelope(stream, size, tag))
        self._block = b""

    def make(self, first: int, count: int, stamp_ns: int) -> bytes:
        if len(self._block) != count * len(self._one):
            self._block = self._one * count
        return self._block % pairs(first, count, stamp_ns)


class RedisSender(LoadSocket):
    """Counts the replies to XADD."""

    _breaks = 0

    def received(self, data: bytes) -> None:
        if data[:1] == b"-":
            raise ConnectionError(f"redis refused: {data[:200]!r}")
        self._breaks += data.count(b"\n")

    @property
    def confirmed(self) -> int:
        return self._breaks // 2  # a reply is `$<length>\r\n<id>\r\n`


def produce(job: QueueJob) -> LoadReport:
    """Pipelines XADDs within the window."""
    sender, adds, board = RedisSender(job.port), Adds(job.stream, job.size, job.tag), Board(job.board)

    def send(first: int, now_ns: int) -> int:
        sender.send(adds.make(first, TURN, now_ns))
        return TURN

    return send_window(job, send, sender.read, lambda: min(sender.confirmed, board.acked), burst=TURN)


def pace(job: QueueJob) -> LoadReport:
    """Open loop."""
    sender, adds = RedisSender(job.port), Adds(job.stream, job.size, job.tag)

    def send(number: int, now_ns: int) -> None:
        sender.send(adds.make(number, 1, now_ns))

    return send_paced(job, job.rate, int(job.seconds * job.rate), send, sender.read)


class RedisReceiver(LoadSocket):
    """Sends the acks of one read and the next read in one write."""

    def __init__(self, job: QueueJob) -> None:
        super().__init__(job.port)
        self.acked = 0
        self.is_ready = False
        self.latencies: list[int] = []
        self._is_timed, self._key = job.rate > 0, job.stream.encode()
        self._reader = import_module("hiredis").Reader()
        self._decode = msgspec.json.Decoder(StampedEnvelope).decode
        limits = (b"COUNT", b"%d" % READ_MAX, b"BLOCK", b"%d" % BLOCK_MS)
        self._read = command(b"XREADGROUP", b"GROUP", GROUP, b"c", *limits, b"STREAMS", self._key, b">")
        self.send(command(b"XGROUP", b"CREATE", self._key, GROUP, b"0", b"MKSTREAM") + self._read)

    def received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            self.is_ready = True
            if isinstance(reply, list):
                self._take(reply[0][1])
            elif reply is None:
                self.send(self._read)
            elif isinstance(reply, Exception):
                raise ConnectionError(f"redis refused: {reply}")

    def _take(self, entries: list[Any]) -> None:
        now_ns = time.monotonic_ns()
        for number, (_, (_, body)) in enumerate(entries, self.acked):
            env = self._decode(body)
            if int(env.id[-ID_DIGITS:]) != number:
                raise ValueError(f"entry {env.id} came when number {number} was due")
            if self._is_timed:
                self.latencies.append(now_ns - int(env.payload.t))
        self.send(command(b"XACK", self._key, GROUP, *[id_ for id_, _ in entries]) + self._read)
        self.acked += len(entries)


def consume(job: QueueJob) -> LoadReport:
    return count_acks(job, RedisReceiver(job))


def stock_produce(job: QueueJob) -> LoadReport:
    """redis-py with a pipeline of `batch` XADDs: one round trip a batch, within the window."""
    board = Board(job.board)
    one = envelope(job.stream, job.size, job.tag)
    client = import_module("redis").Redis(HOST, job.port)

    def send(first: int, now_ns: int) -> int:
        pipe = client.pipeline(transaction=False)
        for number in range(first, first + job.batch):
            pipe.xadd(job.stream, {b"e": one % (number, now_ns)}, maxlen=Adds.KEPT, approximate=True)
        pipe.execute()
        return job.batch

    return send_window(job, send, time.sleep, lambda: board.acked, burst=job.batch)


def stock_consume(job: QueueJob) -> LoadReport:
    """redis-py: XREADGROUP, then one XACK of all that came."""
    decode = msgspec.json.Decoder(StampedEnvelope).decode
    client = import_module("redis").Redis(HOST, job.port)
    client.xgroup_create(job.stream, GROUP, "0", mkstream=True)
    announce()
    acked = 0

    def read(wait_s: float) -> bool:
        nonlocal acked
        reply: Any = client.xreadgroup(GROUP, "c", {job.stream: ">"}, count=READ_MAX, block=int(wait_s * 1e3))
        if not reply:
            return False
        entries = (reply if isinstance(reply, list) else list(reply.items()))[0][1]
        rows = entries if isinstance(entries[0], tuple) else entries[0]
        numbers = [int(decode(fields[b"e"]).id[-ID_DIGITS:]) for _, fields in rows]
        if numbers != list(range(acked, acked + len(numbers))):
            raise ValueError(f"entries {numbers[:3]} came when number {acked} was due")
        client.xack(job.stream, GROUP, *[id_ for id_, _ in rows])
        acked += len(rows)
        return True

    first_ns, last_ns = count_until_end(job, read, lambda: acked)
    return LoadReport(acked, first_ns, last_ns)
