"""The loads of a relay: their messages, a publisher with its subscriber, and loads that register, hold and verify topics."""

from __future__ import annotations

import secrets
import select
import sys
import time
from hashlib import sha256
from typing import Any

import zmq

from penstock.bench.harness.drive import count_until_end, send_window
from penstock.bench.harness.load import Board, LoadJob, LoadReport, announce
from penstock.dialects.streamservice import encode
from penstock.dialects.streamservice.chain import BlockChain
from penstock.dialects.streamservice.keys import StreamKeys
from penstock.dialects.streamservice.messages import Token
from penstock.dialects.streamservice.signatures import SigningKey, sign_registration
from penstock.dialects.streamservice.verify_stream import StreamVerifier

KEY = SigningKey(sha256(b"bench").digest())  # signs the registrations of a run
SIGNERS = {"bench": KEY.public.hex()}
CHUNK_SPARE = 184  # bytes of a chunk without its data
LIFE_S = 3_600
BLOCK_TOKENS = 16
_MAC = b"\x01" * 32


def topic(tag: str, number: int) -> str:
    """The name of a topic."""
    return sha256(f"{tag}-{number}".encode()).hexdigest()


def registration(name: str) -> bytes:
    """A signed envelope that registers a topic."""
    now_ms = time.time_ns() // 1_000_000
    nonce = secrets.token_bytes(16)
    return sign_registration(name, now_ms // 1000 + LIFE_S, KEY, nonce=nonce, now_ms=now_ms, sub="bench")


def chunk(name: str, size: int, number: int) -> bytes:
    """A chunk of `size` bytes in all; the relay does not check its MACs, so they need not be right."""
    return encode.chunk(name.encode(), number.to_bytes(8, "big") * ((size - CHUNK_SPARE) // 8), _MAC, _MAC)


def probe(name: str) -> bytes:
    """A chunk that is shorter than all others; it shows that the subscription is in effect."""
    return encode.chunk(name.encode(), b"probe", _MAC, _MAC)


def blocks(keys: StreamKeys, count: int) -> list[tuple[bytes, bytes, bytes]]:
    """The first blocks of a stream, as a subscriber receives them."""
    chain = BlockChain(keys.mac_key, keys.topic, keys.suite)
    made = []
    for number in range(count):
        words = [Token(f" word{number}") for _ in range(BLOCK_TOKENS)]
        frame = encode.block(chain.prev, words)
        made.append((keys.topic.encode(), frame, chain.compute_next(frame)))
    return made


BURST = 256
HWM = 100_000
READ_MAX = 1_024  # messages between two entries on the board
GATHER_S = 0.0005  # how long a subscriber lets messages gather: waking for each would take a core from the relay
TICK_S = 0.001
PROBE_S = 0.02
STALL_S = 5.0  # when nothing comes for this long, the missing messages are lost
VERIFIED_BLOCKS = 1_000
SIZE_MIN = CHUNK_SPARE + 16  # the smallest chunk that is longer than a probe


class RelayJob(LoadJob, kw_only=True, omit_defaults=True):
    """A load on a relay."""

    pub: str = ""
    pull: str = ""
    size: int = 304
    count: int = 1  # topics
    each: int = 0  # messages of each topic that is held
    rate: int = 0
    tag: str = "r"
    is_plain: bool = False  # the server is a proxy that knows no topics


def _open(kind: int, endpoint: str) -> zmq.Socket[Any]:
    socket: zmq.Socket[Any] = zmq.Context.instance().socket(kind)
    socket.linger = 0
    socket.sndhwm = socket.rcvhwm = HWM
    socket.connect(endpoint)
    return socket


def _topics(job: RelayJob) -> list[str]:
    return [topic(job.tag, number) for number in range(job.count)]


def publish(job: RelayJob) -> LoadReport:
    """Send chunks for `seconds` in a window, or at `rate` until stdin ends; then wait until all have arrived."""
    board = Board(job.board)
    names = _topics(job)
    push = _open(zmq.PUSH, job.pull)

    def to_wire(name: str, frame: bytes) -> bytes:
        return name.encode() + frame if job.is_plain else frame  # a proxy does not prefix the topic

    for name in [] if job.is_plain else names:
        push.send(registration(name))
    frames = [to_wire(name, chunk(name, job.size, 0)) for name in names]
    frames *= max(1, BURST // len(frames))
    deadline = time.monotonic() + 20.0
    while not board.acked:  # a probe that has come through shows that the subscriptions are in effect
        if time.monotonic() > deadline:
            raise ValueError("no probe came through")
        push.send(to_wire(names[-1], probe(names[-1])))
        time.sleep(PROBE_S)
    push_now = super(zmq.Socket, push).send

    def send_burst(first: int, _now_ns: int) -> int:
        start = first % len(frames)
        for frame in frames[start : start + BURST]:
            push_now(frame)
        return min(BURST, len(frames) - start)

    def send_due(first: int, now_ns: int) -> int:
        # A late publisher does not catch up in one burst: that would be another load.
        due = min(int((now_ns - first_ns) * job.rate / 1e9) - first, 8 * BURST)
        for number in range(first, first + due):
            push_now(frames[number % len(frames)])
        return due

    def wait(wait_s: float) -> None:
        if job.rate and select.select([sys.stdin], [], [], TICK_S)[0]:
            job.seconds = 0.0  # the parent has closed stdin
        elif wait_s:
            time.sleep(wait_s)

    first_ns = time.monotonic_ns()
    send = send_due if job.rate else send_burst
    report = send_window(job, send, wait, lambda: board.acked, burst=BURST, stall_s=STALL_S, sent=1)
    report.count -= 1  # the probe
    return report


def receive(job: RelayJob) -> LoadReport:
    """Count the messages of every topic until there are no more."""
    board = Board(job.board)
    sub = _open(zmq.SUB, job.pub)
    for name in _topics(job):
        sub.subscribe(name)
    announce()
    take = super(zmq.Socket, sub).recv
    count, probes = 0, 0

    def read(_wait_s: float) -> bool:
        nonlocal count, probes
        before = count
        try:
            while count - before < READ_MAX:
                if len(take(zmq.NOBLOCK)) > job.size:
                    count += 1
                else:
                    probes = 1
        except zmq.Again:
            time.sleep(GATHER_S)
        return count != before or bool(probes and not board.acked)

    count_until_end(job, read, lambda: count + probes, stall_s=STALL_S)
    return LoadReport(count)


def register(job: RelayJob) -> LoadReport:
    """Register many topics; a message sent after them arrives when all are handled."""
    names = _topics(job)
    signed = [registration(name) for name in names]
    push, sub = _open(zmq.PUSH, job.pull), _open(zmq.SUB, job.pub)
    sub.subscribe(names[-1])
    announce()
    first_ns = time.monotonic_ns()
    for envelope in signed:
        push.send(envelope)
    push.send(chunk(names[-1], job.size, 0))
    if not sub.poll(60_000):
        raise ValueError("the last registration had no effect")
    return LoadReport(job.count, first_ns, time.monotonic_ns())


def hold(job: RelayJob) -> LoadReport:
    """Open many topics, each with a subscriber and `each` messages, and keep them until stdin ends."""
    names = _topics(job)
    push, sub = _open(zmq.PUSH, job.pull), _open(zmq.SUB, job.pub)
    for name in names:
        sub.subscribe(name)
    first_ns = time.monotonic_ns()
    received = 0
    for place in range(0, len(names), BURST):
        group = names[place : place + BURST]
        for name in group:
            push.send(registration(name))
        for name in group:
            for number in range(job.each):
                push.send(chunk(name, job.size, number))
        while received < (place + len(group)) * job.each:
            if not sub.poll(20_000):
                raise ValueError(f"{received} messages came and then no more")
            sub.recv()
            received += 1
    report = LoadReport(len(names), first_ns, time.monotonic_ns())
    announce()
    sys.stdin.read()
    return report


def verify(job: RelayJob) -> LoadReport:
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
    return LoadReport(tokens, first_ns, now_ns)
