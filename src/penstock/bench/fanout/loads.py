"""The loads of a fan-out: a publisher in closed loop, its readers, and participants that publish by the clock.

The publisher keeps a window of frames before the slowest reader. A server may drop frames for a slow reader; the numbers
in the frames tell that apart from frames in flight, and the window goes on.
"""

from __future__ import annotations

import sys
import time

from penstock.bench.fanout.frames import FrameBlocks, frame
from penstock.bench.fanout.participants import ParticipantGroup, name
from penstock.bench.harness.drive import count_until_end, send_paced, send_window
from penstock.bench.harness.load import Board, LoadJob, LoadReport, announce

GATHER_S = 0.0005
STALL_S = 3.0  # when nothing comes for this long, the missing frames were dropped


class FanoutJob(LoadJob, kw_only=True, omit_defaults=True):
    """A load on the frames of a space."""

    size: int
    count: int  # participants
    block: int = 0  # frames of one write
    rate: int = 0
    is_targeted: bool = False  # frames go to one participant, not to all
    is_aggregated: bool = False  # that one sends a stream to all


def publish(job: FanoutJob) -> LoadReport:
    """Send blocks of frames for `seconds`. `count` is frames sent, `received` own echoes."""
    board = Board(job.board)
    group = ParticipantGroup(job.port, [0], job.block)
    group.open_streams([[name(1)] if job.is_targeted else []])
    member = group.members[0]
    blocks = FrameBlocks(member.stream_id, job.size, job.block)

    def send(first: int, _now_ns: int) -> int:
        member.send(blocks.make(first // job.block))
        return job.block

    def position() -> int:
        return board.acked if job.is_targeted else min(board.acked, member.tally.position)

    report = send_window(job, send, member.read, position, burst=job.block, stall_s=STALL_S)
    report.received = member.tally.count
    member.close_stream()
    group.settle()
    return report


def receive(job: FanoutJob) -> LoadReport:
    """Join as every other participant, read everything, and put the slowest position on the board."""
    group = ParticipantGroup(job.port, range(1, job.count), job.block)
    announce()
    audience = [member.tally for member in (group.members[:1] if job.is_targeted else group.members)]
    count_until_end(
        job, group.read, lambda: min(tally.position for tally in audience), gather_s=GATHER_S, stall_s=STALL_S
    )
    sys.stdin.read()  # leaving earlier would make work for the server while it is measured
    report = LoadReport(sum(tally.count for tally in audience))
    strays = group.received_count - report.count
    if strays:
        report.error = f"{strays} frames came to participants that were no target"
    return report


def pace(job: FanoutJob) -> LoadReport:
    """`count` participants, each with a stream at `rate` frames a second, in one process that reads for all.

    `count` of the report is frames sent, `received` what arrived, `missing` the rest. When it aggregates, the stream of
    the first participant goes to all; the others go to the first, or to all as well.
    """
    group = ParticipantGroup(job.port, range(job.count))
    targets = [[name(0)] if job.is_targeted else [] for _ in range(job.count)]
    if job.is_aggregated:
        targets[0] = []
    group.open_streams(targets)
    frames = [frame(member.stream_id, job.size) for member in group.members]
    group.settle()
    before, each = group.received_count, int(job.seconds * job.rate)

    def send(number: int, _now_ns: int) -> None:
        group.members[number % job.count].send(frames[number % job.count])

    report = send_paced(job, job.rate * job.count, each * job.count, send, group.read)
    expected = each * sum(len(target) or job.count for target in targets)
    deadline = time.monotonic() + STALL_S
    while group.received_count - before < expected and time.monotonic() < deadline:
        if group.read(0.001):
            deadline = time.monotonic() + STALL_S
    report.received = group.received_count - before
    report.missing = expected - report.received
    report.echoes = each * sum(not target or name(index) in target for index, target in enumerate(targets))
    return report
