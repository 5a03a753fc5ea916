"""The load over HTTP: keep-alive connections, each with one request in flight.

The client is hand-made, because stock ones cost several times what the server does. It reads only the status line and
`Content-Length`.
"""

from __future__ import annotations

import time

from penstock.bench.harness.drive import POLL_S, WAIT_S, LoadSocket, SocketGroup
from penstock.bench.harness.load import Board, LoadReport, announce, percentiles_ms
from penstock.bench.queue.control_load import QueueJob
from penstock.bench.queue.envelopes import Posts


class HttpConnection(LoadSocket):
    """One keep-alive connection."""

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
    group = SocketGroup([HttpConnection(job.port) for _ in range(job.connections)])
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
        if not group.read(WAIT_S if any(member.sent_ns for member in group.members) else 0.0):
            time.sleep(POLL_S)
    board.total = sent
    group.wait(lambda member: not member.sent_ns, "an answer to each request")
    times = percentiles_ms([took for member in group.members for took in member.latencies])
    return LoadReport(sent, first_ns, time.monotonic_ns(), latencies=times)
