"""The loads of a fan-out: one that publishes as fast as its readers read, those readers, and a crowd that publishes by the clock.

The publisher keeps a window of frames that the slowest reader has not had yet. A server may drop frames for somebody who does not
read; the numbers in the frames tell that apart from frames under way, and the window goes on.
"""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Callable
from pathlib import Path

from penstock.bench.board import UNKNOWN, Board
from penstock.bench.fanout_crowd import LOOK_S, Crowd, Peer, name
from penstock.bench.fanout_frames import Blocks, frame
from penstock.bench.jobs import Job, Report

POLL_S = 0.0002
"""How often a publisher whose window is full looks again."""
GATHER_S = 0.0005
"""How long readers let frames gather: who wakes for each of them takes a core from the server."""
TICK_S = 0.001
"""How often a crowd that publishes by the clock sends what is due: frames that come in heaps would cost the server less than real ones."""
READ_TICKS = 5
"""How many of those until it reads."""
STALL_S = 3.0
"""When nothing has come for so long, the frames that are missing were dropped."""


def spent_s(pid: int) -> float:
    """CPU seconds of all threads of a process, to the nanosecond: a clock tick is long beside ten frames a second."""
    total_ns = 0
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            total_ns += int(path.read_bytes().split()[0])
        except OSError:
            continue  # A thread that has just ended.
    return total_ns / 1e9


class _Watch:
    """Time and the server's CPU from a first moment to the last at which something moved."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._spent_s = spent_s(pid)
        self.first_ns = self.last_ns = time.monotonic_ns()

    def moved(self) -> None:
        self.last_ns = time.monotonic_ns()

    def is_stalled(self) -> bool:
        return time.monotonic_ns() - self.last_ns > STALL_S * 1e9

    def report(self, count: int) -> Report:
        return Report(
            count, self.first_ns, self.last_ns, server_cpu_s=round(spent_s(self._pid) - self._spent_s, 6)
        )


def publish(job: Job) -> Report:
    """Send blocks of frames for `seconds`, then wait until the readers have had them all. `count` is frames sent, `heard` own echoes."""
    board = Board(Path(job.board))
    crowd = Crowd(job.host, job.port, job.stream, job.batch)
    crowd.join([0])
    crowd.open([[name(1)] if job.is_targeted else []])
    peer = crowd.peers[0]
    assert peer.stream_id is not None
    blocks = Blocks(peer.stream_id, job.size, job.batch)

    def position() -> int:
        return board.acked if job.is_targeted else min(board.acked, peer.tally.position)

    watch = _Watch(job.server_pid)
    sent = _send(job, crowd, blocks, position, watch.first_ns + int(job.seconds * 1e9))
    board.total = sent
    before = -1
    watch.moved()
    while (now := position()) < sent and not watch.is_stalled():
        if now != before:
            before = now
            watch.moved()
        time.sleep(POLL_S)
        crowd.read(0.0)
    if now == sent:
        watch.moved()
    report = watch.report(sent)
    report.heard = peer.tally.count
    peer.close_stream()
    _settle(crowd)
    return report


def _send(job: Job, crowd: Crowd, blocks: Blocks, position: Callable[[], int], stop_ns: int) -> int:
    """Keep the window full until the time is over; returns how many frames went out."""
    peer: Peer = crowd.peers[0]
    sent = 0
    pending = memoryview(b"")
    while True:
        if not pending:
            if time.monotonic_ns() >= stop_ns:
                return sent
            if sent - position() + job.batch <= job.window:
                pending = memoryview(blocks.make(sent // job.batch))
                sent += job.batch
        if pending:
            try:
                pending = pending[peer.sock.send(pending) :]
            except BlockingIOError:
                select.select([peer.sock], [peer.sock], [], POLL_S)
            peer.read(crowd.buffer)
        else:
            time.sleep(POLL_S)
            crowd.read(0.0)


def receive(job: Job, say_ready: Callable[[], None]) -> Report:
    """Join as everybody but the publisher, read everything, and say on the board how far the slowest has come."""
    board = Board(Path(job.board))
    crowd = Crowd(job.host, job.port, job.stream, job.batch)
    crowd.join(range(1, job.count))
    say_ready()
    audience = [peer.tally for peer in (crowd.peers[:1] if job.is_targeted else crowd.peers)]
    watch = _Watch(job.server_pid)
    while True:
        if crowd.read(LOOK_S):
            watch.moved()
            board.acked = min(tally.position for tally in audience)
            time.sleep(GATHER_S)
        total = board.total
        if total != UNKNOWN and (board.acked >= total or watch.is_stalled()):
            break
    sys.stdin.read()  # Who leaves earlier is work for the server that nobody asked about.
    report = watch.report(sum(tally.count for tally in audience))
    strays = sum(peer.tally.count for peer in crowd.peers) - report.count
    if strays:
        report.error = f"{strays} frames came to participants who were no target"
    return report


def pace(job: Job) -> Report:
    """A crowd of `count`, each with a stream at `rate` frames a second. `count` is frames sent, `heard` what arrived, `missing` the rest.

    When it aggregates, the first participant's stream goes to everybody and the others' to it, or to everybody as well; else all
    streams are alike.
    """
    crowd = Crowd(job.host, job.port, job.stream)
    crowd.join(range(job.count))
    everybody: list[str] = []
    targets = [[name(0)] if job.is_targeted else everybody for _ in range(job.count)]
    if job.is_aggregated:
        targets[0] = everybody
    crowd.open(targets)
    frames = [frame(peer.stream_id or "", job.size) for peer in crowd.peers]
    audiences = [len(target) or job.count for target in targets]
    _settle(crowd)
    before = sum(peer.tally.count for peer in crowd.peers)
    watch = _Watch(job.server_pid)
    wanted = int(job.seconds * job.rate) * job.count
    sent = expected = ticks = 0
    while sent < wanted:
        elapsed_s = (time.monotonic_ns() - watch.first_ns) / 1e9
        due = min(wanted, int(elapsed_s * job.rate * job.count) + 1)
        for number in range(sent, due):
            crowd.peers[number % job.count].sock.sendall(frames[number % job.count])
            expected += audiences[number % job.count]
        sent = due
        ticks += 1
        if ticks % READ_TICKS == 0:
            crowd.read(0.0)
        left_s = TICK_S - ((time.monotonic_ns() - watch.first_ns) / 1e9 - elapsed_s)
        if left_s > 0:
            time.sleep(left_s)
    watch.moved()
    report = watch.report(sent)
    while (heard := sum(peer.tally.count for peer in crowd.peers) - before) < expected:
        if watch.is_stalled():
            break
        if crowd.read(TICK_S):
            watch.moved()
    report.heard, report.missing = heard, expected - heard
    hears_itself = [not target or name(index) in target for index, target in enumerate(targets)]
    report.echoes = sum(hears_itself[number % job.count] for number in range(sent))
    return report


def _settle(crowd: Crowd) -> None:
    """Read what the openings have caused, until it is quiet."""
    while crowd.read(0.2):
        pass
