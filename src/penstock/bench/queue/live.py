"""`penstock bench live`: followers of a view on WebSockets, which must all reach the same version."""

from __future__ import annotations

import re
import select
import sys
import time
from typing import Annotated

from cyclopts import Parameter

from penstock.bench.harness.drive import WAIT_S, LoadSocket, SocketGroup
from penstock.bench.harness.load import LoadReport, announce, percentiles_ms
from penstock.bench.harness.processes import ProcessGroup, allow_files
from penstock.bench.harness.result import BenchError, BenchResult, BenchRound
from penstock.bench.queue.commands import Size
from penstock.bench.queue.loads import QueueJob
from penstock.cli.options import PLAIN, Output

FILL_RATE = 100_000
GRACE_S = 20.0
QUIET_S = 0.5
REQUEST = (
    b"GET /v1/live?view=latestPerAgent HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\n"
    b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
)
_VERSION, _SENT = b'"version":', b'"t":"'


def live(
    *,
    seconds: Annotated[float, Parameter(help="Seconds of changes per cell.")] = 10.0,
    watchers: Annotated[str, Parameter(help="Followers, with commas; 0 measures the changes alone.")] = "0,1000",
    rows: Annotated[int, Parameter(help="Rows of the view.")] = 1_000,
    changes: Annotated[int, Parameter(help="Changes per second, over all rows.")] = 1_000,
    size: Size = 300,
    output: Output = PLAIN,
) -> int:
    """Measure followers of `latestPerAgent` on WebSockets: CPU of the server, and latency of the changes.

    For example:

      penstock bench live --watchers 100,1000 --rows 100 --changes 5000 --json
    """
    result = BenchResult.begin("live", locals())
    counts = result.parse_numbers("watchers")
    allowed = allow_files(max(counts))
    load = QueueJob(size=size, inboxes=rows, seconds=seconds, rate=changes, tag="c")

    def run(group: ProcessGroup) -> None:
        for count in counts:
            if count > allowed:
                result.notes.append(f"{count} followers need more open files than this user may have")
            done = _measure(group, min(count, allowed), load)
            words = f"live, {min(count, allowed):,} followers of {rows:,} rows, {changes:,} changes a second"
            batched = "changes are gathered for 100 ms; one write a follower; per second counts changes to all"
            result.add(words, batched, [done])

    return ProcessGroup(result).run(run, output)


def _measure(group: ProcessGroup, watchers: int, load: QueueJob) -> BenchRound:
    server = group.penstock()
    load.port, rows = server.port, load.inboxes
    fill = QueueJob(port=server.port, size=load.size, inboxes=rows, count=rows, rate=FILL_RATE, seconds=60.0)
    group.load("queue.loads:pace", fill).report()
    job = QueueJob(port=server.http_port, count=watchers, seconds=load.seconds)
    followers = group.load("queue.live:follow", job, is_announced=True) if watchers else None
    before_s, begun = server.cpu_s(), time.monotonic()
    sent = group.load("queue.loads:pace", load).report()
    seen = sent if followers is None else followers.report()
    cpu_s, wall_s = server.cpu_s() - before_s, time.monotonic() - begun
    if seen.count < watchers * min(rows, sent.count):
        raise BenchError(f"{sent.count} changes of {rows} rows, and {watchers} followers received only {seen.count}")
    server.stop()
    done = BenchRound.timed(seen.count, sent.seconds, cpu_s={"server": cpu_s}, latency_ms=seen.latencies)
    done.server_cpu_share = round(cpu_s / min(sent.seconds, wall_s), 4)
    return done


class FollowerSocket(LoadSocket):
    """One follower: it counts changes, keeps the newest version and, if it is timed, reads the time in each row."""

    def __init__(self, job: QueueJob, *, is_timed: bool) -> None:
        super().__init__(job.port)
        self.is_ready = False
        self.count = self.version = 0
        self.latencies_ns: list[int] = []
        self._is_timed = is_timed
        self._tail = b""
        self.send(REQUEST)

    def received(self, data: bytes) -> None:
        whole = self._tail + data
        if not self.is_ready:
            self.is_ready = b'"watermark":' in whole
            self._tail = b"" if self.is_ready else whole
            return
        # A mark may be cut by the end of a chunk; a change is longer than the tail that is kept.
        self.count += whole.count(_VERSION) - self._tail.count(_VERSION)
        versions = re.findall(_VERSION + rb"(\d+),", whole)
        self.version = int(versions[-1]) if versions else self.version
        if self._is_timed:
            now_ns = time.monotonic_ns()
            start = max(len(self._tail) - len(_SENT) + 1, 0)
            stamps = re.findall(_SENT + rb"(\d{20})", whole[start:])
            self.latencies_ns += [now_ns - int(stamp) for stamp in stamps]
        self._tail = whole[-64:]


def follow(job: QueueJob) -> LoadReport:
    """Follow until stdin has ended and all are at one version; `count` is changes."""
    group: SocketGroup[FollowerSocket] = SocketGroup()
    for number in range(job.count):
        group.add(FollowerSocket(job, is_timed=number == 0))
        group.read()
    group.wait(lambda member: member.is_ready, "a watermark")
    announce()
    while not select.select([sys.stdin], [], [], 0)[0]:
        group.read(WAIT_S)
    deadline = time.monotonic() + GRACE_S
    while group.read(QUIET_S) and time.monotonic() < deadline:
        pass
    versions = {member.version for member in group.members}
    report = LoadReport(sum(member.count for member in group.members))
    report.latencies = percentiles_ms(group.members[0].latencies_ns)
    report.error = f"followers are at {len(versions)} versions" if len(versions) > 1 else None
    return report
