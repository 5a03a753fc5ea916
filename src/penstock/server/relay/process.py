"""The relay's process: `python -m penstock.server.relay.process` reads a task from stdin and writes reports to stdout.

It is a process of its own because a busy relay inside the event loop of the server delays that loop by milliseconds. It exits when
stdin closes, so it never outlives the server. Reports are written without blocking: when the server does not read them, the relay
drops and counts observations and keeps relaying.
"""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import signal
import sys
import time
from collections.abc import Callable

import msgspec
import zmq

from penstock.core.relay.bounds import MIB
from penstock.core.relay.topic import Remembered
from penstock.dialects.streamservice.relay_memory import UsedNonce
from penstock.dialects.streamservice.signatures import Registrar, TrustStore
from penstock.ipc.processor_share import yield_processor
from penstock.server.engine.admission import raise_descriptor_limit
from penstock.server.relay.guards import MemoryGuard
from penstock.server.relay.reports import FACTS, BindFailed, RelayReport, encode
from penstock.server.relay.service import StreamService
from penstock.server.relay.subscriptions import RelaySettings
from penstock.transports.zeromq import EndpointError, end_context

EXIT_UNABLE = 3
"""Exit code when the sockets cannot be bound; a retry does not help."""
EXIT_MEMORY = 4
"""Exit code when the memory stays above its bound; the server restarts the relay."""
WAITING_MAX = 8 * MIB
"""Bytes that the server has not read; above this, observations are dropped."""
FACTS_WAITING_MAX = 64 * MIB
"""Above this, facts are dropped too."""
FREE = "tcp://127.0.0.1:0"
PIPE_SIZE = 1 * MIB
NICE = 2
"""How far the relay yields to the server on a busy machine: it handles bursts, and the server single requests."""
GC_THRESHOLD = 100_000
"""Messages form no reference cycles, so the cycle collector runs rarely."""


class RelayTask(RelaySettings, frozen=True, kw_only=True):
    """Settings of one run."""

    signers: dict[str, str]
    """Public keys in hexadecimal, by name."""
    remembered: list[Remembered]
    nonces: tuple[UsedNonce, ...] = ()
    """Of registrations in earlier runs."""
    is_default: bool = False
    """`pub` is the default; if the port is in use, bind a free one."""


class ReportPipe:
    """The pipe to the server, written without blocking."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.watch: Callable[[int, Callable[[], None], int], None] = lambda descriptor, call, events: None
        """Calls a function while the pipe is writable."""
        self._waiting = bytearray()
        self._is_watched = False
        self.on_gone: Callable[[], None] = lambda: None
        self.on_dropped: Callable[[int, int], None] = lambda observations, facts: None
        os.set_blocking(descriptor, False)
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
        except (AttributeError, OSError):
            pass  # a smaller pipe works too

    def send(self, reports: list[RelayReport]) -> None:
        """Send reports now or later; drop them when too much waits."""
        if len(self._waiting) > WAITING_MAX:
            facts: list[RelayReport] = [each for each in reports if isinstance(each, FACTS)]
            is_full = len(self._waiting) > FACTS_WAITING_MAX
            self.on_dropped(len(reports) - len(facts), len(facts) if is_full else 0)
            reports = [] if is_full else facts
        if reports:
            data = encode(reports)
            self._waiting += len(data).to_bytes(4, "big") + data
            self.write()

    def write(self) -> None:
        """Write as much as the pipe accepts."""
        try:
            while self._waiting:
                del self._waiting[: os.write(self._descriptor, memoryview(self._waiting)[:PIPE_SIZE])]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self._waiting.clear()
            self.on_gone()
        if bool(self._waiting) != self._is_watched:
            self._is_watched = bool(self._waiting)
            self.watch(self._descriptor, self.write, zmq.POLLOUT if self._is_watched else 0)

    def finish(self) -> None:
        """Write the rest, and block until the server reads it."""
        os.set_blocking(self._descriptor, True)
        self.write()


def make_service(
    task: RelayTask, context: zmq.Context[zmq.Socket[bytes]], descriptor: int
) -> tuple[StreamService, ReportPipe]:
    """The relay of a task, and its pipe to the server."""
    keys = {name: bytes.fromhex(key) for name, key in task.signers.items()}
    registrar = Registrar(TrustStore(keys), lifetime_max_s=task.limits.lifetime_max_s)
    registrar.nonces.restore(task.nonces, time.time_ns() // 1_000_000)
    outlet = ReportPipe(descriptor)
    service = StreamService("relay", context, task, registrar, outlet.send)
    service.guard = MemoryGuard(task.limits.bytes_max + task.limits.resident_spare_max)
    outlet.watch, outlet.on_gone = service.watch, service.stop

    def dropped(observations: int, facts: int) -> None:
        service.stats.dropped += observations
        service.stats.facts_dropped += facts

    outlet.on_dropped = dropped
    service.remember(task.remembered)
    return service, outlet


def run(task: RelayTask, source: int, descriptor: int) -> int:
    """Relay until `source` closes; returns the exit code."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    service, outlet = make_service(task, context, descriptor)

    def on_input() -> None:
        if not os.read(source, 4_096):
            service.stop()

    service.watch(source, on_input)
    signal.signal(signal.SIGTERM, lambda number, frame: service.stop())
    try:
        service.run()
        if service.is_exhausted:
            outlet.finish()
            os._exit(EXIT_MEMORY)  # at once: a context ends only when its peers have read what waits for them
    except EndpointError as error:
        cause = error.__cause__
        if task.is_default and isinstance(cause, zmq.ZMQError) and cause.errno in (errno.EADDRINUSE, errno.EACCES):
            raise
        outlet.send([BindFailed(str(error))])
        outlet.finish()
        return EXIT_UNABLE
    finally:
        end_context(context)
    outlet.finish()
    return 0


def yield_to_others() -> None:
    """Let other processes run first on a busy machine. Then libzmq's thread wakes less often, for more messages at a time."""
    yield_processor(NICE)
    if sys.platform == "linux":
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def main() -> int:
    gc.set_threshold(GC_THRESHOLD)
    yield_to_others()
    raise_descriptor_limit()
    task = msgspec.json.decode(sys.stdin.buffer.readline(), type=RelayTask)
    gc.collect()
    gc.freeze()
    source, outlet = sys.stdin.fileno(), sys.stdout.fileno()
    try:
        return run(task, source, outlet)
    except EndpointError:  # the default address is in use; any other will do
        return run(msgspec.structs.replace(task, pub=FREE, is_default=False), source, outlet)


if __name__ == "__main__":
    sys.exit(main())
