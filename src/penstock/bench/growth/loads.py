"""The loads of growth: subscribers of many inboxes over many connections, and paced frames in a space."""

from __future__ import annotations

import time

import msgspec

from penstock.bench.fanout.frames import frame
from penstock.bench.fanout.loads import FanoutJob, ParticipantGroup, name
from penstock.bench.harness.drive import LoadSocket, SocketGroup, count_until_end, read_until, send_paced
from penstock.bench.harness.load import LoadReport, announce, percentiles_ms
from penstock.bench.queue.envelopes import inbox
from penstock.bench.queue.loads import DeliveryLine, QueueJob

CREDIT = 1_024
TOGETHER = 100  # connections that are opened before their answers are read


class InboxLine(DeliveryLine, rename="camel"):
    """A line from the server that names its subscription."""

    sub_id: str = ""


class InboxReceiver(LoadSocket):
    """A connection that subscribes to some inboxes, acks all of one read together and checks the order of each."""

    def __init__(self, job: QueueJob, numbers: range) -> None:
        super().__init__(job.port)
        self.acked = 0
        self.latencies: list[int] = []
        self._is_timed = job.rate > 0
        self._waiting = len(numbers)  # answers
        self._newest: dict[str, int] = {}
        self._decode = msgspec.json.Decoder(InboxLine).decode_lines
        self._tail = b""
        line = b'{"type":"subscribe","reqId":%d,"subId":"%d","stream":"%b","auto":%d}\n'
        names = [(number, number, inbox(job.stream, number).encode(), CREDIT) for number in numbers]
        self.send(b"".join([line % name for name in names]))

    @property
    def is_ready(self) -> bool:
        return not self._waiting

    def ping(self) -> None:
        """Ask for an answer that follows the handling of all acks: those of a connection that ends may be dropped."""
        self._waiting += 1
        self.send(b'{"type":"ping","reqId":"end"}\n')

    def received(self, data: bytes) -> None:
        now_ns = time.monotonic_ns()
        data = self._tail + data
        cut = data.rfind(b"\n") + 1
        self._tail = data[cut:]
        ids: dict[str, list[str]] = {}
        for line in self._decode(data[:cut]):
            if isinstance(line.env, list) or line.env is None or isinstance(line.seq, list):
                if line.type not in ("ok", "pong"):
                    raise ValueError(f"the server sent `{line.type}`: {line.detail}")
                self._waiting -= 1
                continue
            newest = self._newest.get(line.sub_id, line.seq - 1)
            if line.seq != newest + 1:
                raise ValueError(f"deliveries of `{line.sub_id}` out of order: {line.seq} after {newest}")
            self._newest[line.sub_id] = line.seq
            ids.setdefault(line.sub_id, []).append(line.env.id)
            if self._is_timed:
                self.latencies.append(now_ns - int(line.env.payload.t))
        encode = msgspec.json.encode
        acks = [b'{"type":"ack","subId":%b,"id":%b}\n' % (encode(label), encode(some)) for label, some in ids.items()]
        self.send(b"".join(acks))
        self.acked += sum(map(len, ids.values()))


def consume(job: QueueJob) -> LoadReport:
    """Subscribe to `inboxes` over `connections`, and ack everything until there is no more."""
    group: SocketGroup[InboxReceiver] = SocketGroup()
    each = -(-job.inboxes // job.connections)
    for number, first in enumerate(range(0, job.inboxes, each), 1):
        group.add(InboxReceiver(job, range(first, min(first + each, job.inboxes))))
        if number % TOGETHER == 0:
            read_until(group.read, lambda: all(one.is_ready for one in group.members[-TOGETHER:]), "a subscription")
    group.wait(lambda member: member.is_ready, "an answer to each subscription")
    announce()
    count = 0

    def read(wait_s: float) -> bool:
        nonlocal count
        has_read = group.read(wait_s)
        count = sum([member.acked for member in group.members]) if has_read else count
        return has_read

    first_ns, last_ns = count_until_end(job, read, lambda: count)
    for member in group.members:
        member.ping()
    group.wait(lambda member: member.is_ready, "an answer to each ping")
    times = percentiles_ms([took for member in group.members for took in member.latencies])
    return LoadReport(count, first_ns, last_ns, latencies=times or None)


def pace_frames(job: FanoutJob) -> LoadReport:
    """Join as every participant; the first sends frames to the second by the clock, each timed."""
    group = ParticipantGroup(job.port, range(job.count))
    sender, reader = group.members[:2]
    sender.request_stream([name(1)])
    read_until(group.read, lambda: bool(sender.stream_id), "a `stream/open`")
    group.settle()
    data, sent_ns, latencies = frame(sender.stream_id, job.size), list[int](), list[int]()

    def read(wait_s: float = 0.0) -> bool:
        has_read = group.read(wait_s)
        now_ns = time.monotonic_ns()
        latencies.extend([now_ns - sent_ns[number] for number in range(len(latencies), reader.tally.count)])
        return has_read

    def send(_number: int, now_ns: int) -> None:
        sent_ns.append(now_ns)
        sender.send(data)
        read(1 / job.rate / 2)

    count = int(job.seconds * job.rate)
    report = send_paced(job, job.rate, count, send, read)
    read_until(read, lambda: len(latencies) >= count, "a frame")
    report.latencies, report.received = percentiles_ms(latencies), len(latencies)
    return report
