"""The loads of a fan-out: participants on plain sockets, a publisher with its readers, and publishers by the clock."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import msgspec

from penstock.bench.fanout.frames import PONG, TEXT, FrameBlocks, FrameTally, frame, message
from penstock.bench.harness.drive import LoadSocket, SocketGroup, count_until_end, send_paced, send_window
from penstock.bench.harness.load import Board, LoadJob, LoadReport, announce

SPACE = "bench"
TOGETHER = 50  # participants that join or open streams at the same time; the others read meanwhile
_UPGRADE = (
    b"GET /ws HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
)


def name(number: int) -> str:
    return f"p{number}"


def token(number: int) -> str:
    return f"t-p{number}"


class ParticipantSocket(LoadSocket):
    """One participant: its connection and what it has received."""

    def __init__(self, number: int, port: int, block: int) -> None:
        super().__init__(port)
        self.name = name(number)
        self.is_joined = self._is_upgraded = False
        self.stream_id = ""
        self.tally = FrameTally(block)
        self._request = f"open-{self.name}-{time.monotonic_ns()}"
        self._rest = b""
        self._join = {"type": "join", "space": SPACE, "token": token(number), "participantId": self.name}
        self.send(_UPGRADE % port)

    def request_stream(self, target: Sequence[str]) -> None:
        """Open a stream; an empty target is every participant."""
        payload = {"direction": "upload", "content_type": "application/octet-stream"}
        self.send_envelope("stream/request", payload | ({"target": list(target)} if target else {}), id=self._request)

    def send_envelope(self, kind: str, payload: object, **more: str) -> None:
        fields = {"protocol": "mew/v0.4", "kind": kind, "payload": payload, **more}
        self.send(message(TEXT, msgspec.json.encode(fields)))

    def received(self, data: bytes) -> None:
        """Count frames. An error that the space sends is raised here."""
        data = self._rest + data
        if not self._is_upgraded:
            head, end, rest = data.partition(b"\r\n\r\n")
            if not end:
                self._rest = data
                return
            if not head.startswith(b"HTTP/1.1 101"):
                raise ConnectionError(f"no WebSocket: {data[:400]!r}")
            self._is_upgraded, data = True, rest
            self.send(message(TEXT, msgspec.json.encode(self._join)))
        tally = self.tally
        self._rest = data[tally.take(data) :]
        for text in tally.texts:
            if b'"system/error"' in text:
                raise ValueError(f"{self.name} received {text[:400].decode(errors='replace')}")
            self.is_joined = self.is_joined or b'"system/welcome"' in text
            if not self.stream_id and b'"stream/open"' in text and self._request.encode() in text:
                self.stream_id = msgspec.json.decode(text)["payload"]["stream_id"]
        tally.texts.clear()
        for ping in tally.pings:
            self.send(message(PONG, ping))
        tally.pings.clear()
        if tally.closed is not None:
            raise ConnectionError(f"{self.name} was closed: {tally.closed[:200].decode(errors='replace')}")


class ParticipantGroup(SocketGroup[ParticipantSocket]):
    """The participants that one process plays, by their numbers."""

    def __init__(self, port: int, numbers: Sequence[int], block: int = 0) -> None:
        super().__init__()
        for index, number in enumerate(numbers, 1):
            self.add(ParticipantSocket(number, port, block))
            if index % TOGETHER == 0 or index == len(numbers):
                self.wait(lambda member: member.is_joined, "a welcome")

    def open_streams(self, targets: Sequence[Sequence[str]]) -> None:
        """Open a stream of each participant, in order, to the targets of its entry."""
        for index, (member, target) in enumerate(zip(self.members, targets, strict=True), 1):
            member.request_stream(target)
            if index % TOGETHER == 0 or index == len(targets):
                opened = self.members[:index]
                self.wait(lambda member: bool(member.stream_id) or member not in opened, "a `stream/open`")  # noqa: B023 - called at once

    @property
    def received_count(self) -> int:
        return sum(member.tally.count for member in self.members)


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
        acked: int = board.acked
        return acked if job.is_targeted else min(acked, member.tally.position)

    report = send_window(job, send, member.read, position, burst=job.block, stall_s=STALL_S)
    report.received = member.tally.count
    member.send_envelope("stream/close", {"stream_id": member.stream_id})
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
    if strays := group.received_count - report.count:
        report.error = f"{strays} frames came to participants that were no target"
    return report


def pace(job: FanoutJob) -> LoadReport:
    """Every participant sends at `rate`; when it aggregates, the first sends to all and the others to the first."""
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
