"""The relay's process: `python -m penstock.server.relay.process`, a task on stdin, what passed on stdout.

Apart from the server, because a busy relay beside an event loop costs that loop milliseconds. It ends when its standard input does, so
it never outlives the server. What it tells is written without waiting: a server that does not read costs observations, which are
counted, and never the loop's time.
"""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import signal
import sys
from collections.abc import Callable

import msgspec
import zmq

from penstock.core.relay.limits import MIB, RelayLimits
from penstock.core.relay.topic import Remembered
from penstock.dialects.streamservice.signatures import Registrar, TrustStore
from penstock.server.config.relay_sections import JournalMode
from penstock.server.relay.reports import FACTS, BindFailed, RelayReport, encode
from penstock.server.relay.service import RelaySettings, StreamService
from penstock.transports.zeromq import CurveKeys, EndpointError

EXIT_UNABLE = 3
"""The sockets cannot be bound; trying again does not help."""
WAITING_MAX = 8 * MIB
"""Bytes that the server has not read, beyond which observations are dropped."""
FACTS_WAITING_MAX = 64 * MIB
"""Bytes beyond which facts are dropped too."""
FREE = "tcp://127.0.0.1:0"
PIPE_SIZE = 1 * MIB
GC_THRESHOLD = 100_000
"""Messages are no garbage that goes round in circles, so looking for such is seldom worth it."""


class RelayTask(msgspec.Struct):
    """What to relay, and by which rules."""

    pub: str
    pull: str
    also_pub: str | None
    limits: RelayLimits
    signers: dict[str, str]
    """Public keys in hexadecimal, by name."""
    curve: CurveKeys | None
    journal: JournalMode
    check_links: bool
    remembered: list[Remembered]
    is_default: bool = False
    """Nobody chose `pub`: where it is taken, a free port does."""


class ReportPipe:
    """The way to the server: a pipe that is written to without waiting."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.watch: Callable[[int, Callable[[], None], int], None] = lambda descriptor, call, events: None
        """Has something called while the pipe takes more."""
        self._waiting = bytearray()
        self._is_watched = False
        self.on_gone: Callable[[], None] = lambda: None
        self.on_dropped: Callable[[int, int], None] = lambda observations, facts: None
        os.set_blocking(descriptor, False)
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
        except (AttributeError, OSError):
            pass  # a smaller one does too

    def send(self, told: list[RelayReport]) -> None:
        """Tell the server, now or later, or not at all."""
        if len(self._waiting) > WAITING_MAX:
            facts: list[RelayReport] = [each for each in told if isinstance(each, FACTS)]
            is_full = len(self._waiting) > FACTS_WAITING_MAX
            self.on_dropped(len(told) - len(facts), len(facts) if is_full else 0)
            told = [] if is_full else facts
        if told:
            data = encode(told)
            self._waiting += len(data).to_bytes(4, "big") + data
            self.write()

    def write(self) -> None:
        """Write as much as the pipe takes."""
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
        """Write the rest, waiting for the server."""
        os.set_blocking(self._descriptor, True)
        self.write()


def make_service(
    task: RelayTask, context: zmq.Context[zmq.Socket[bytes]], descriptor: int
) -> tuple[StreamService, ReportPipe]:
    """The relay of a task, with its way to the server."""
    keys = {name: bytes.fromhex(key) for name, key in task.signers.items()}
    registrar = Registrar(TrustStore(keys), lifetime_max_s=task.limits.lifetime_max_s)
    settings = RelaySettings(
        task.pub, task.pull, task.limits, task.curve, task.journal, task.check_links, task.also_pub
    )
    outlet = ReportPipe(descriptor)
    service = StreamService("relay", context, settings, registrar, outlet.send)
    outlet.watch, outlet.on_gone = service.watch, service.stop

    def dropped(observations: int, facts: int) -> None:
        service.accounts.dropped += observations
        service.accounts.facts_dropped += facts

    outlet.on_dropped = dropped
    service.remember(task.remembered)
    return service, outlet


def run(task: RelayTask, source: int, descriptor: int) -> int:
    """Relay until the source ends; the exit code says how it went."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    service, outlet = make_service(task, context, descriptor)

    def heard() -> None:
        if not os.read(source, 4_096):
            service.stop()

    service.watch(source, heard)
    signal.signal(signal.SIGTERM, lambda number, frame: service.stop())
    try:
        service.run()
    except EndpointError as error:
        if task.is_default and _is_taken(error.__cause__):
            raise
        outlet.send([BindFailed(str(error))])
        outlet.finish()
        return EXIT_UNABLE
    finally:
        context.term()
    outlet.finish()
    return 0


def _is_taken(error: BaseException | None) -> bool:
    return isinstance(error, zmq.ZMQError) and error.errno in (errno.EADDRINUSE, errno.EACCES)


def main() -> int:
    gc.set_threshold(GC_THRESHOLD)
    task = msgspec.json.decode(sys.stdin.buffer.readline(), type=RelayTask)
    gc.collect()
    gc.freeze()
    source, outlet = sys.stdin.fileno(), sys.stdout.fileno()
    try:
        return run(task, source, outlet)
    except EndpointError:  # nobody chose the address, so any does
        return run(msgspec.structs.replace(task, pub=FREE, is_default=False), source, outlet)


if __name__ == "__main__":
    sys.exit(main())
