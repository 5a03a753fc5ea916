"""The loads of a relay: a publisher that keeps a window full or sends by the clock, its subscriber, and those who register, hold and verify.

The publisher begins when a probe has come through, so that every subscription is in effect. Every message is counted at both ends.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import zmq

from penstock.bench.board import UNKNOWN, Board
from penstock.bench.fanout_loads import spent_s
from penstock.bench.jobs import Job, Report
from penstock.bench.relay_messages import CHUNK_SPARE, blocks, chunk, probe, registration, topic
from penstock.dialects.streamservice.keys import StreamKeys
from penstock.dialects.streamservice.verify_stream import StreamVerifier

BURST = 256
HWM = 100_000
POLL_S = 0.0002
"""How often a publisher whose window is full looks again."""
GATHER_S = 0.0005
"""How long a subscriber lets messages gather: who wakes for each of them takes a core from the relay."""
TICK_S = 0.001
PROBE_S = 0.02
STALL_S = 5.0
"""When nothing has come for so long, what is missing was lost."""
VERIFIED_BLOCKS = 1_000


def _open(context: zmq.Context[Any], kind: int, endpoint: str) -> zmq.Socket[Any]:
    socket: zmq.Socket[Any] = context.socket(kind)
    socket.linger = 0
    socket.sndhwm = socket.rcvhwm = HWM
    socket.connect(endpoint)
    return socket


def publish(job: Job) -> Report:
    """Send chunks for `seconds`, in a window or at `rate` a second until stdin ends; then wait until all have arrived."""
    board = Board(Path(job.board))
    names = [topic(job.tag, number) for number in range(job.count)]
    context: zmq.Context[Any] = zmq.Context()
    push = _open(context, zmq.PUSH, job.pull)
    if not job.is_plain:
        for name in names:
            push.send(registration(name))

    def wire(name: str, frame: bytes) -> bytes:
        # A plain proxy does not put the topic in front, so it is there before.
        return name.encode() + frame if job.is_plain else frame

    frames = [wire(name, chunk(name, job.size, 0)) for name in names]
    frames *= max(1, BURST // len(frames))
    _await_subscriber(push, wire(names[-1], probe(names[-1])), board)
    before_s, first_ns = spent_s(job.server_pid), time.monotonic_ns()
    sent = (_pace if job.rate else _fill)(job, push, frames, board)
    board.total = sent
    last_ns = _await_rest(board, sent)
    report = Report(sent, first_ns, last_ns, server_cpu_s=round(spent_s(job.server_pid) - before_s, 6))
    context.destroy(0)
    return report


def _await_subscriber(push: zmq.Socket[Any], message: bytes, board: Board) -> None:
    deadline = time.monotonic() + 20.0
    while not board.acked:
        if time.monotonic() > deadline:
            raise ValueError("no probe came through")
        push.send(message)
        time.sleep(PROBE_S)


def _fill(job: Job, push: zmq.Socket[Any], frames: list[bytes], board: Board) -> int:
    """Keep the window full until the time is over."""
    send = super(zmq.Socket, push).send
    stop_ns = time.monotonic_ns() + int(job.seconds * 1e9)
    sent = place = 0
    while time.monotonic_ns() < stop_ns:
        if sent - (board.acked - 1) + BURST > job.window:
            time.sleep(POLL_S)
            continue
        for frame in frames[place : place + BURST]:
            send(frame)
            sent += 1
        place = place + BURST if place + BURST < len(frames) else 0
    return sent


def _pace(job: Job, push: zmq.Socket[Any], frames: list[bytes], board: Board) -> int:
    """Send what is due, a millisecond's worth at a time, until told to stop."""
    send = super(zmq.Socket, push).send
    start_ns = time.monotonic_ns()
    sent = 0
    while time.monotonic_ns() - start_ns < job.seconds * 1e9:
        due = int((time.monotonic_ns() - start_ns) * job.rate / 1e9)
        # Who falls behind does not make up for it in one go: that would be another load.
        for _ in range(min(due - sent, 8 * BURST, job.window - (sent - board.acked))):
            send(frames[sent % len(frames)])
            sent += 1
        if select.select([sys.stdin], [], [], TICK_S)[0]:
            break
    return sent


def _await_rest(board: Board, sent: int) -> int:
    """When the last message had arrived, or the last that did."""
    before, last_ns = -1, time.monotonic_ns()
    while (now := board.acked - 1) < sent and time.monotonic_ns() - last_ns < STALL_S * 1e9:
        if now != before:
            before, last_ns = now, time.monotonic_ns()
        time.sleep(POLL_S)
    return time.monotonic_ns() if now >= sent else last_ns


def receive(job: Job, announce: Callable[[], None]) -> Report:
    """Count the messages of every topic until there are no more."""
    board = Board(Path(job.board))
    context: zmq.Context[Any] = zmq.Context()
    sub = _open(context, zmq.SUB, job.pub)
    for number in range(job.count):
        sub.subscribe(topic(job.tag, number))
    announce()
    take = super(zmq.Socket, sub).recv
    count, is_found = 0, False
    last = time.monotonic()
    while True:
        before = count
        try:
            while True:
                if len(take(zmq.NOBLOCK)) > job.size:
                    count += 1
                else:
                    is_found = True  # a probe
                if count & BURST - 1 == BURST - 1:
                    board.acked = count + 1
        except zmq.Again:
            pass
        if is_found:
            board.acked = count + 1
        if count != before:
            last = time.monotonic()
        if 0 <= (total := board.total) <= count or (total != UNKNOWN and time.monotonic() - last > STALL_S):
            break
        time.sleep(GATHER_S)
    context.destroy(0)
    return Report(count)


def register(job: Job) -> Report:
    """Register many topics; the message behind them comes through when all were looked at."""
    names = [topic(job.tag, number) for number in range(job.count)]
    signed = [registration(name) for name in names]
    context: zmq.Context[Any] = zmq.Context()
    push, sub = _open(context, zmq.PUSH, job.pull), _open(context, zmq.SUB, job.pub)
    sub.subscribe(names[-1])
    before_s, first_ns = spent_s(job.server_pid), time.monotonic_ns()
    for envelope in signed:
        push.send(envelope)
    push.send(chunk(names[-1], job.size, 0))
    if not sub.poll(60_000):
        raise ValueError("the last of the registrations came to nothing")
    last_ns = time.monotonic_ns()
    spent = round(spent_s(job.server_pid) - before_s, 6)
    context.destroy(0)
    return Report(job.count, first_ns, last_ns, server_cpu_s=spent)


def hold(job: Job, announce: Callable[[], None]) -> Report:
    """Open many topics, each with a subscriber and a few messages, and keep them until stdin ends."""
    names = [topic(job.tag, number) for number in range(job.count)]
    context: zmq.Context[Any] = zmq.Context()
    push, sub = _open(context, zmq.PUSH, job.pull), _open(context, zmq.SUB, job.pub)
    for name in names:
        sub.subscribe(name)
    first_ns = time.monotonic_ns()
    heard = 0
    for place in range(0, len(names), BURST):
        group = names[place : place + BURST]
        for name in group:
            push.send(registration(name))
        for name in group:
            for number in range(job.batch):
                push.send(chunk(name, job.size, number))
        while heard < (place + len(group)) * job.batch:
            if not sub.poll(20_000):
                raise ValueError(f"{heard} messages came and then no more")
            sub.recv()
            heard += 1
    report = Report(len(names), first_ns, time.monotonic_ns(), heard=heard)
    announce()
    while os.read(sys.stdin.fileno(), 4_096):
        pass
    context.destroy(0)
    return report


def verify(job: Job) -> Report:
    """Follow a stream of blocks as a client does, again and again; `count` is tokens."""
    name = sha256(job.tag.encode()).hexdigest()
    keys = StreamKeys("sha256", name, b"\x07" * 32, name, b"\x07" * 32, b"\x07" * 32)
    stream = blocks(keys, VERIFIED_BLOCKS)
    first_ns = now_ns = time.monotonic_ns()
    tokens = 0
    while now_ns - first_ns < job.seconds * 1e9:
        follower = StreamVerifier(0, keys)
        for parts in stream:
            tokens += len(follower.take(now_ns // 1000, parts))
        if follower.counts.accepted != len(stream):
            raise ValueError(f"{follower.counts.accepted} of {len(stream)} blocks were accepted")
        now_ns = time.monotonic_ns()
    return Report(tokens, first_ns, now_ns)


def least_size() -> int:
    """Bytes of the smallest chunk that is not taken for a probe."""
    return CHUNK_SPARE + 16
