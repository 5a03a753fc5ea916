"""Attackers: each kind is a thread that repeats its attack until the time is over. A refusal or a cut is expected."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import zmq

from penstock.bench.harness.drive import HOST, WAIT_S
from penstock.bench.harness.load import LoadJob, LoadReport, announce
from penstock.bench.harness.result import MIB
from penstock.bench.queue.live import REQUEST

ATTACKER = "127.0.0.2"  # an address of their own, so that limits of an address do not reach the normal clients
HOLD_S, ANSWER_S = 5.0, 2.0
_EVENTS = b"GET /v1/live?view=latestPerAgent HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n\r\n"
_TAP = b'{"type":"tap","reqId":1,"stream":"soak/normal"}\n'
_GHOST = b'{"type":"subscribe","reqId":%d,"stream":"soak/ghost-%d","subId":"s%d"}\n'
_BODY = b'{"to":"soak/x","envelope":{"id":"a","ts":"2026-01-01T00:00:00Z","type":"t","payload":%b}}'
_ITEM = b'{"id":"%d","ts":"2026-01-01T00:00:00Z","type":"t","to":"dlq/soak/x","payload":"%b"}'
_POST = b"POST %b HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %b\r\nContent-Length: %d\r\n\r\n%b"
_SPACE = b'{"kind":"x","payload":{"v":%b}}'
_LONE = rb'{"type":"enqueue","reqId":1,"to":"soak/x","env":{"id":"a","ts":"x","type":"t","payload":"\ud800"}}'


class SoakJob(LoadJob, kw_only=True, omit_defaults=True):
    """The ports to attack, and how hard."""

    http_port: int = 0
    pub: str = ""
    token: str = ""
    connections: int = 500
    body: int = 7 * MIB
    share: float = 0.0  # of a core, for `burn`


class Attackers:
    """The attacks, and how often each was tried."""

    def __init__(self, job: SoakJob) -> None:
        self._job, self._end, self.tries = job, time.monotonic() + job.seconds, 0

    def run(self, attack: Callable[[], None]) -> None:
        """Repeat an attack, also when the server refuses or closes."""
        while time.monotonic() < self._end:
            with suppress(OSError):
                attack()
            self.tries += 1

    def _open(self, port: int, data: bytes = b"", buffer: int = MIB) -> socket.socket:
        sock = socket.create_connection((HOST, port), ANSWER_S, (ATTACKER, 0))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        sock.sendall(data)
        return sock

    def _post(self, path: bytes, body: bytes) -> None:
        request = _POST % (path, self._job.token.encode(), len(body), body)
        with suppress(OSError), self._open(self._job.http_port, request) as sock:
            sock.recv(MIB)

    def spaces(self) -> None:
        self.bodies(self._job.body // 2, b"/participants/operator/messages?space=soak", _SPACE)

    def bodies(self, size: int = 0, path: bytes = b"/v1/enqueue", form: bytes = _BODY) -> None:
        """What costs most to parse for its size: numbers, keys, depth, escapes, one long string."""
        size = size or self._job.body
        keys = b"".join(b'"%d":0,' % number for number in range(size // 11))
        texts = [b'"%b"' % (piece * (size // len(piece))) for piece in (b"x", rb"\ud83d\ude00")]
        numbers = [b"[1%b]" % (piece * (size // len(piece))) for piece in (b",1.5e300", b",1")]
        for payload in (*numbers, b'{%b"z":0}' % keys, b"[" * size, *texts):
            self._post(path, form % payload)

    def batches(self) -> None:
        """Enqueue a full array; stage dead letters, commit, redrive and purge them."""
        items = b",".join(_ITEM % (number, b"1" * (self._job.body // 8192)) for number in range(4096))
        self._post(b"/v1/enqueue", b'{"to":"soak/x","envelopes":[%b]}' % items)
        path = b"/v1/stage/soak/%d/" % time.time_ns()
        for part in b"0123":
            self._post(b"%bparts/%c" % (path, part), b"\n".join(_ITEM % (time.time_ns(), b"") for _ in range(4096)))
        self._post(path + b"commit", b'{"parts":["0","1","2","3"]}')
        self._post(b"/v1/redrive", b'{"stream":"soak/x","max":100000}')
        self._post(b"/v1/purge", b'{"stream":"soak/x"}')

    def paused(self) -> None:
        """Connections that never read: followers by events and WebSocket, taps, silent ones, begun requests."""
        opened = [(self._job.http_port, data) for data in (_EVENTS, REQUEST, b"", b"G")]
        opened += [(self._job.port, data) for data in (_TAP, b"", b"{")]
        with ExitStack() as held:
            for number in range(self._job.connections):
                with suppress(OSError):
                    held.enter_context(self._open(*opened[number % len(opened)], buffer=4096))
            time.sleep(min(HOLD_S, max(0.0, self._end - time.monotonic())))

    def subscriptions(self) -> None:
        """More than a connection may have, and topics of the relay that no publisher has."""
        with self._open(self._job.port, b"".join(_GHOST % (n, n, n) for n in range(5_000))) as sock:
            sock.recv(MIB)
        with zmq.Context() as context, context.socket(zmq.SUB) as sub:
            sub.linger = 0
            sub.connect(self._job.pub)
            for topic in [os.urandom(32).hex().encode() for _ in range(5_000)] + [os.urandom(16_384)]:
                sub.subscribe(topic)
            time.sleep(WAIT_S)

    def mistakes(self) -> None:
        """What users of one gateway do wrong: lone surrogates, unknown and broken requests, long lines."""
        with self._open(self._job.port) as sock:
            for line in (_LONE, b'{"type":"none","reqId":2}', b'{"type":"ack","id":', b"[" * 9_000, b"x" * 9 * MIB):
                sock.sendall(line + b"\n")
                sock.recv(MIB)


def attack(job: SoakJob) -> LoadReport:
    """All attackers at once; `count` is tries."""
    all_ = Attackers(job)
    announce()
    attacks = (all_.bodies, all_.spaces, all_.batches, all_.paused, all_.subscriptions, all_.mistakes)
    with ThreadPoolExecutor(len(attacks)) as pool:
        list(pool.map(all_.run, attacks))
    return LoadReport(all_.tries)


def burn(job: SoakJob) -> LoadReport:
    """Use a share of a core and nothing else."""
    announce()
    begun_s, used_s = time.monotonic(), time.process_time()
    while (spent_s := time.monotonic() - begun_s) < job.seconds:
        if time.process_time() - used_s > job.share * spent_s:
            time.sleep(WAIT_S / 10)
    return LoadReport()
