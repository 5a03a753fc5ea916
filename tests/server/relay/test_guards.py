"""The bound on connections, in a real process of the relay with few descriptors."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import pytest
import zmq

from penstock.core.relay.bounds import RelayLimits
from penstock.server.relay.process import NICE, RelayTask
from penstock.server.relay.reports import RelayReady, RelayReport, RelayTotals, decode
from tests.server.relay.test_process import task
from tests.server_process import environment

DESCRIPTORS = 2_600
"""Those of the relay; it keeps 2,000 free for connections that it has not seen yet."""
DIALLED = 1_000
MODULE = "penstock.server.relay.process"


@contextmanager
def relay(given: RelayTask) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        ["sh", "-c", f'ulimit -Sn 64 && ulimit -Hn {DESCRIPTORS} && exec "$@"', "sh", sys.executable, "-m", MODULE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
    )
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(given) + b"\n")
    process.stdin.flush()
    try:
        yield process
    finally:
        process.stdin.close()
        process.wait(30)
        assert process.stdout is not None
        process.stdout.close()


def reports(process: subprocess.Popen[bytes]) -> Iterator[RelayReport]:
    """What it reports, until it ends."""
    assert process.stdout is not None
    while size := process.stdout.read(4):
        yield from decode(process.stdout.read(int.from_bytes(size, "big")))


@pytest.mark.promise("Relay", "more connections than its bound, or than it has descriptors, do not end the relay")
@pytest.mark.parametrize("connections_max", [32, 10_000])
def test_connections_above_the_bound_are_closed_and_subscribers_are_served(
    tmp_path: Path, connections_max: int
) -> None:
    path = tmp_path / "pub.sock"
    limits = RelayLimits(connections_max=connections_max)
    with relay(task(tmp_path, also_pub=f"ipc://{path}", limits=limits)) as process:
        told = reports(process)
        ready = next(told)
        assert isinstance(ready, RelayReady)
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == min(os.getpriority(os.PRIO_PROCESS, 0) + NICE, 19)
        host, _, port = ready.pub.removeprefix("tcp://").rpartition(":")
        with ExitStack() as peers:
            for number in range(DIALLED):
                kind, place = (socket.AF_INET, (host, int(port))) if number % 2 else (socket.AF_UNIX, str(path))
                peer = peers.enter_context(socket.socket(kind))
                peer.connect(place)
            cut = next(
                one
                for one in told
                if isinstance(one, RelayTotals) and one.peers_cut.get("connections", 0) > DIALLED // 4
            )
            assert cut.early == 0
        with zmq.Context[zmq.Socket[bytes]]() as context, context.socket(zmq.SUB) as subscriber:
            subscriber.linger = 0
            subscriber.connect(ready.pub)
            subscriber.subscribe(b"0" * 64)
            assert any(isinstance(one, RelayTotals) and one.early == 1 for one in told)
            assert process.poll() is None
