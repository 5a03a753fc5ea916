"""The memory of the relay's process stays under its bound: all peers are disconnected, then the process ends."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
import zmq
from nacl.signing import SigningKey

from penstock.core.relay.bounds import MIB, RelayLimits
from penstock.server.relay.guards import CALM_US, MemoryGuard
from penstock.server.relay.process import EXIT_MEMORY
from penstock.server.relay.reports import RelayReady, RelayTotals, decode
from tests.integration import token_peers as peers
from tests.server.relay.test_process import task
from tests.server_process import environment

KEY = SigningKey(b"k" * 32)
SPARE = 80 * MIB


class RelayProcess:
    """The real process, and its latest totals."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        self.process = process
        self._stdout = process.stdout
        self.totals: RelayTotals | None = None
        (first, *_) = self._read()
        assert isinstance(first, RelayReady)
        self.ready = first
        self.thread = threading.Thread(target=self._follow, daemon=True)
        self.thread.start()

    def _read(self) -> list[object]:
        head = self._stdout.read(4)
        return list(decode(self._stdout.read(int.from_bytes(head, "big")))) if head else []

    def _follow(self) -> None:
        while reports := self._read():
            self.totals = next((each for each in reversed(reports) if isinstance(each, RelayTotals)), self.totals)

    @property
    def resident(self) -> int:
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * 4_096


@contextmanager
def running(folder: Path, limits: RelayLimits) -> Iterator[RelayProcess]:
    command = [sys.executable, "-m", "penstock.server.relay.process"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()) as process:
        assert process.stdin is not None
        signers = {"us": KEY.verify_key.encode().hex()}
        process.stdin.write(msgspec.json.encode(task(folder, limits=limits, signers=signers)) + b"\n")
        process.stdin.flush()
        relay = RelayProcess(process)
        yield relay
        process.stdin.close()
        relay.thread.join(20)


@pytest.mark.promise(
    "Relay", "above a bound of resident memory the relay disconnects all peers, then restarts; both are counted"
)
def test_a_subscriber_that_does_not_read_costs_its_connection(tmp_path: Path) -> None:
    context = peers.Sockets()
    with running(tmp_path, RelayLimits(bytes_max=MIB, resident_spare_max=SPARE)) as relay:
        topic = peers.make_topic()
        publisher = peers.Publisher(context, relay.ready.pull, topic, b"m" * 32)
        publisher.register(KEY)
        paused = context.socket(zmq.SUB)
        paused.rcvhwm = 1
        paused.connect(relay.ready.pub)
        paused.subscribe(topic)
        peak, tick = 0, threading.Event()
        for _ in range(2_000):
            publisher.chunk(b"x" * 500_000)
            peak = max(peak, relay.resident)
            if relay.totals is not None and relay.totals.reopened:
                break
            tick.wait(0.002)
        assert relay.totals is not None and relay.totals.reopened
        assert peak < 3 * SPARE
        context.destroy(0)


@pytest.mark.promise(
    "Relay", "above a bound of resident memory the relay disconnects all peers, then restarts; both are counted"
)
def test_a_flood_of_forged_chunks_stays_under_the_bound_and_others_publish_after_it(tmp_path: Path) -> None:
    contexts = [peers.Sockets() for _ in range(2)]
    with running(tmp_path, RelayLimits(bytes_max=MIB, resident_spare_max=SPARE)) as relay:
        forged = peers.chunk(peers.make_topic(), b"x" * 900_000, b"m" * 32, b"")

        def flood(context: peers.Sockets) -> None:
            socket = context.socket(zmq.PUSH)
            socket.sndtimeo = 20_000
            socket.connect(relay.ready.pull)
            for _ in range(300):
                socket.send(forged, copy=False)

        threads = [threading.Thread(target=flood, args=(context,)) for context in contexts]
        for thread in threads:
            thread.start()
        peak = relay.resident
        while any(thread.is_alive() for thread in threads):
            peak = max(peak, relay.resident)
            threading.Event().wait(0.005)
        assert peak < 3 * SPARE
        for context in contexts:
            context.destroy(0)
        context = peers.Sockets()
        topic = peers.make_topic()
        publisher = peers.Publisher(context, relay.ready.pull, topic, b"m" * 32)
        reader = peers.Subscriber(context, relay.ready.pub, topic, b"m" * 32)
        publisher.register(KEY)
        frame = publisher.chunk(b"after the flood")
        assert reader.receive() == [topic + frame]
        context.destroy(0)


def test_memory_that_stays_above_the_bound_ends_the_process(tmp_path: Path) -> None:
    with running(tmp_path, RelayLimits(bytes_max=1, resident_spare_max=1)) as relay:
        assert relay.process.wait(20) == EXIT_MEMORY


def test_a_second_excess_within_the_calm_is_an_end() -> None:
    guard = MemoryGuard(1)
    assert [guard.check(0), guard.check(1), guard.check(CALM_US)] == ["reopen", "end", "reopen"]
    assert guard.reopened == 2
    assert MemoryGuard().check(0) == "continue"
