"""Loads over Control v1 lines and over HTTP: producers in closed or open loop, a consumer, and idle subscribers."""

from __future__ import annotations

import sys
import time
from typing import Any

import msgspec

from penstock.bench.harness import drive
from penstock.bench.harness.load import Board, LoadJob, LoadReport, announce, percentiles_ms
from penstock.bench.queue.envelopes import EnqueueLines, InboxLines, Posts

TURN = 256  # envelopes of one write
CREDIT = 8192
ACK_MAX = 4096  # ids in one ack, as the server allows


class QueueJob(LoadJob, kw_only=True, omit_defaults=True):
    """A load on the queue."""

    stream: str = "bench"
    size: int = 300
    batch: int = 1
    count: int = 1 << 60  # envelopes at most, or connections
    rate: int = 0
    connections: int = 1
    stream_max: int = 0  # envelopes of one stream before the load begins the next; 0 is one stream for all
    inboxes: int = 0  # send to this many inboxes in turn instead of to one stream
    tag: str = "b"
    token: str | None = None


class ControlSender(drive.LoadSocket):
    """Counts the lines that confirm requests."""

    confirmed = 0
    _tail = b""

    def received(self, data: bytes) -> None:
        if b'"type":"error"' in (text := self._tail + data):
            raise ConnectionError(f"the server refused: {text[:400].decode(errors='replace')}")
        self._tail = data[-400:]
        self.confirmed += data.count(b"\n")

    def finish(self, count: int) -> None:
        """Wait for the confirmations of so many lines."""
        drive.read_until(self.read, lambda: self.confirmed >= count, f"the answer to one of {count} requests")


def to_lines(job: QueueJob) -> EnqueueLines | InboxLines:
    """The lines of a producer: for its stream, or for its inboxes."""
    if job.inboxes:
        return InboxLines(job.stream, job.size, job.tag, job.inboxes)
    return EnqueueLines(job.stream, job.size, job.tag, job.batch)


def produce(job: QueueJob) -> LoadReport:
    """Closed loop: a window of envelopes between the send and the consumer's ack, or the confirmation."""
    sender, board, lines = ControlSender(job.port), Board(job.board), to_lines(job)
    turn = max(1, TURN // job.batch)

    def send(first: int, now_ns: int) -> int:
        count = min(turn, -(-(job.count - first) // job.batch))
        sender.send(lines.make(first, count, now_ns))
        return count * job.batch

    def position() -> int:
        confirmed = sender.confirmed * job.batch
        return min(confirmed, board.acked) if job.window < job.count else confirmed

    report = drive.send_window(job, send, sender.read, position, burst=turn * job.batch, count_max=job.count)
    sender.finish(report.count // job.batch)
    return report


def pace(job: QueueJob) -> LoadReport:
    """Open loop: one envelope a line at fixed times."""
    sender, lines = ControlSender(job.port), to_lines(job)

    def send(number: int, now_ns: int) -> None:
        sender.send(lines.make(number, 1, now_ns))

    count = min(int(job.seconds * job.rate), job.count)
    report = drive.send_paced(job, job.rate, count, send, sender.read)
    sender.finish(count)
    return report


class StampedPayload(msgspec.Struct):
    t: str


class StampedEnvelope(msgspec.Struct):
    id: str
    payload: StampedPayload


class DeliveryLine(msgspec.Struct):
    """A line from the server; with a `batch` above 1 its fields are arrays."""

    type: str
    env: StampedEnvelope | list[StampedEnvelope] | None = None
    seq: int | list[int] = 0
    detail: str = ""


class ControlReceiver(drive.LoadSocket):
    """Decodes every delivery, acks all of one read together and checks the order."""

    def __init__(self, job: QueueJob) -> None:
        super().__init__(job.port)
        self.acked = 0
        self.is_ready = False
        self.latencies: list[int] = []
        self._is_timed = job.rate > 0
        self._decode = msgspec.json.Decoder(DeliveryLine).decode_lines
        self._tail = b""
        line = b'{"type":"subscribe","reqId":"sub","stream":"%b","batch":%d,"auto":%d}\n'
        self.send(line % (job.stream.encode(), job.batch, CREDIT))

    def received(self, data: bytes) -> None:
        now_ns = time.monotonic_ns()
        data = self._tail + data
        cut = data.rfind(b"\n") + 1
        self._tail = data[cut:]
        ids: list[str] = []
        seen: list[int] = []
        for line in self._decode(data[:cut]):
            if isinstance(line.env, list):
                ids += [env.id for env in line.env]
                seen += line.seq  # type: ignore[arg-type]
            elif line.env is not None:
                ids.append(line.env.id)
                seen.append(line.seq)  # type: ignore[arg-type]
                if self._is_timed:
                    self.latencies.append(now_ns - int(line.env.payload.t))
            elif line.type != "ok":
                raise ValueError(f"the server sent `{line.type}`: {line.detail}")
            self.is_ready = True
        if not ids:
            return
        if seen != list(range(self.acked + 1, self.acked + 1 + len(seen))):
            raise ValueError(f"deliveries out of order: {seen[:3]} after {self.acked}")
        parts = [ids[start : start + ACK_MAX] for start in range(0, len(ids), ACK_MAX)]
        self.send(b"".join([b'{"type":"ack","id":%b}\n' % msgspec.json.encode(part) for part in parts]))
        self.acked += len(ids)


def count_acks(job: QueueJob, receiver: Any) -> LoadReport:
    """Ack everything until there is no more."""
    drive.read_until(receiver.read, lambda: receiver.is_ready, "the subscription")
    announce()
    first_ns, last_ns = drive.count_until_end(job, receiver.read, lambda: receiver.acked)
    return LoadReport(receiver.acked, first_ns, last_ns, latencies=percentiles_ms(receiver.latencies) or None)


def consume(job: QueueJob) -> LoadReport:
    return count_acks(job, ControlReceiver(job))


def hold(job: QueueJob) -> LoadReport:
    """Open subscribers of streams that stay empty, and keep them until stdin ends."""
    group: drive.SocketGroup[ControlSender] = drive.SocketGroup()
    for number in range(job.count):
        member = ControlSender(job.port)
        line = b'{"type":"subscribe","reqId":1,"stream":"%b-%d","credit":10}\n'
        member.send(line % (job.stream.encode(), number))
        group.add(member)
    group.wait(lambda member: member.confirmed > 0, "an answer to each subscription")
    announce()
    sys.stdin.read()
    group.read()  # a connection that the server closed is an error
    return LoadReport(job.count)


class HttpConnection(drive.LoadSocket):
    """One keep-alive connection, made by hand: a stock client costs several times what the server does."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.sent_ns = 0  # 0: no request is in flight
        self.latencies: list[int] = []
        self._buffer = b""

    def received(self, data: bytes) -> None:
        data = self._buffer + data
        end = data.find(b"\r\n\r\n")
        start = data.find(b"Content-Length: ") + 16
        if end < 0 or len(data) < end + 4 + int(data[start : data.find(b"\r\n", start)]):
            self._buffer = data
            return
        self._buffer = b""
        if data[9:12] != b"200":
            raise ValueError(f"the server answered {data[9:300].decode(errors='replace')}")
        self.latencies.append(time.monotonic_ns() - self.sent_ns)
        self.sent_ns = 0


def post(job: QueueJob) -> LoadReport:
    """Post until the time is over, then wait for the answers in flight."""
    board = Board(job.board)
    group = drive.SocketGroup([HttpConnection(job.port) for _ in range(job.connections)])
    sent = streams = room = 0
    announce()
    first_ns = time.monotonic_ns()
    stop_ns = first_ns + int(job.seconds * 1e9)
    while (now_ns := time.monotonic_ns()) < stop_ns and sent < job.count:
        for connection in [member for member in group.members if not member.sent_ns]:
            if sent >= job.count or sent - board.acked > job.window:
                break
            if room < job.batch:
                stream = f"{job.stream}-{streams}" if job.stream_max else job.stream
                posts = Posts(stream, job.size, job.tag, job.batch, f"127.0.0.1:{job.port}", job.token)
                streams, room = streams + 1, job.stream_max or 1 << 60
            connection.send(posts.make(sent, now_ns))
            connection.sent_ns = time.monotonic_ns()
            sent, room = sent + job.batch, room - job.batch
        if not group.read(drive.WAIT_S if any(member.sent_ns for member in group.members) else 0.0):
            time.sleep(drive.POLL_S)
    board.total = sent
    group.wait(lambda member: not member.sent_ns, "an answer to each request")
    times = percentiles_ms([took for member in group.members for took in member.latencies])
    return LoadReport(sent, first_ns, time.monotonic_ns(), latencies=times)
