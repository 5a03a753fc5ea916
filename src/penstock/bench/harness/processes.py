"""The processes of a run: servers and loads. They are started here and ended by pid, whatever happens."""

from __future__ import annotations

import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec

import penstock
from penstock.bench.harness.drive import HOST
from penstock.bench.harness.load import Board, LoadJob, LoadLine, LoadReport
from penstock.bench.harness.result import BenchCell, BenchError, BenchResult, BenchRound, Side
from penstock.cli.options import Output
from penstock.cli.output import print_note

START_S, STOP_S, ANSWER_S = 30.0, 10.0, 120.0
SLACK_S = 60.0  # time that a load may take beyond its own seconds
SPARE_FILES = 200  # descriptors that a process needs in addition to its connections
SOURCE = Path(penstock.__file__).parents[1]


def read_proc(pid: int, name: str) -> str:
    """A file of a process in /proc; empty when the process has ended."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return ""


def read_children(pid: int) -> list[int]:
    """The processes that the threads of a process have started."""
    texts = [read_proc(pid, f"task/{path.name}/children") for path in Path(f"/proc/{pid}/task").glob("*")]
    return [int(child) for text in texts for child in text.split()]


def cpu_s(pid: int) -> float | None:
    """CPU seconds of a process, user and kernel; None when it does not exist."""
    fields = read_proc(pid, "stat").rpartition(")")[2].split()  # after the program's name
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else None


def threads_cpu_s(pid: int) -> float:
    """The same over the running threads, in nanosecond steps: a clock tick is too coarse for slow loads."""
    threads = [path.parent.name for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(int((read_proc(pid, f"task/{thread}/schedstat") or "0").split()[0]) for thread in threads) / 1e9


def rss_bytes(pid: int) -> int:
    """Resident memory of a process."""
    fields = read_proc(pid, "statm").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if fields else 0


def make_environment(source: Path | None = SOURCE) -> dict[str, str]:
    """An environment that imports Penstock from `source`, without the user's own Penstock settings."""
    dropped = ("PENSTOCK_", "COURIER_", "PYTHONPATH")
    kept = {key: text for key, text in os.environ.items() if not key.startswith(dropped)}
    return kept | ({} if source is None else {"PYTHONPATH": str(source)})


def allow_files(wanted: int) -> int:
    """Raise the limit of open files as far as allowed; returns how many connections fit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = wanted + SPARE_FILES if hard == resource.RLIM_INFINITY else min(wanted + SPARE_FILES, hard)
    if soft == resource.RLIM_INFINITY or soft >= need:
        return wanted
    resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))
    return min(wanted, need - SPARE_FILES)


def end(process: subprocess.Popen[Any], wait_s: float = STOP_S) -> None:
    """End a process that we started: SIGTERM, then SIGKILL."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(wait_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def wait_until(is_done: Callable[[], bool], wait_s: float, explain: Callable[[], str]) -> None:
    """Poll until it is done; a BenchError with the explanation when time is up."""
    deadline = time.monotonic() + wait_s
    while not is_done():
        if time.monotonic() > deadline:
            raise BenchError(explain())
        time.sleep(0.02)


def to_round(pid: int, sent: LoadReport, taken: LoadReport | None = None, count: int | None = None) -> BenchRound:
    """What a server with this pid did for a sender and its receiver; `count` is of deliveries."""
    spent_s = {"server": sent.server_cpu_s, "producer": sent.cpu_s}
    spent_s |= {} if taken is None else {"consumer": taken.cpu_s}
    times = {"latency_ms": (taken and taken.latencies) or sent.latencies, "late_ms": sent.late}
    return BenchRound.timed(sent.count if count is None else count, sent.seconds, rss_bytes(pid), spent_s, **times)


class LoadProcess:
    """A load at work. Its stderr goes to `log`, if given."""

    def __init__(self, role: str, job: LoadJob, log: Path | None = None) -> None:
        self._role, self._seconds = role.partition(":")[2], job.seconds
        words = [sys.executable, "-m", "penstock.bench.harness.load", role, msgspec.json.encode(job).decode()]
        environment = make_environment() | ({} if log is None else {"TMPDIR": str(log.parent)})
        pipe = subprocess.PIPE
        with nullcontext(None) if log is None else log.open("wb") as errors:
            self.process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=errors, env=environment)

    def read_line(self, timeout_s: float) -> LoadLine:
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], timeout_s)[0]:
            raise BenchError(f"the load `{self._role}` was silent for {timeout_s:.0f} s")
        text = self.process.stdout.readline()
        if not text:
            raise BenchError(f"the load `{self._role}` ended with code {self.process.wait()}")
        line = msgspec.json.decode(text, type=LoadLine)
        if line.report is not None and line.report.error is not None:
            raise BenchError(f"{self._role}: {line.report.error}")
        return line

    def report(self, on_cell: Callable[[BenchCell], object] | None = None) -> LoadReport:
        """Wait for the report. Stdin is closed first: a load that holds connections waits for that."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        while (line := self.read_line(self._seconds + SLACK_S)).report is None:
            if line.note is not None:
                print_note(f"{self._role}: {line.note}")
            if line.cell is not None and on_cell is not None:
                on_cell(line.cell)
        self.process.wait(STOP_S)
        return line.report


class ServerProcess:
    """A server on free ports of the loopback interface."""

    start_s = START_S
    port = http_port = 0
    pub = pull = ""  # the endpoints of a relay

    def __init__(self, folder: Path, command: list[str], source: Path | None = SOURCE) -> None:
        folder.mkdir()
        self.folder, self.command = folder, command
        self.log = folder / "log"
        # Without a data directory the server puts its run files into TMPDIR.
        environment = make_environment(source) | {"TMPDIR": str(folder)}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT)
        self.pid = self.relay_pid = self.process.pid

    @property
    def words(self) -> str:
        """The command, with the names of files instead of their paths."""
        return " ".join(Path(word).name if "/" in word else word or "''" for word in self.command)

    def is_ready(self) -> bool:
        return True

    def wait(self) -> None:
        def explain() -> str:
            return f"`{' '.join(self.command[:4])}` did not start: {self.log.read_text(errors='replace')[-500:]}"

        wait_until(lambda: self.process.poll() is not None or self.is_ready(), self.start_s, explain)
        if self.process.poll() is not None:
            raise BenchError(explain())

    def stop(self) -> None:
        end(self.process)

    def cpu_s(self) -> float:
        return cpu_s(self.pid) or 0.0

    def rss_bytes(self) -> int:
        return rss_bytes(self.pid)


class PeerServer(ServerProcess):
    """A peer that prints its endpoints as one JSON line: `port`, or `pub` and `pull`."""

    def is_ready(self) -> bool:
        line, newline, _ = self.log.read_bytes().partition(b"\n")
        if newline:
            try:
                vars(self).update(msgspec.json.decode(line, type=dict[str, Any]))
            except msgspec.DecodeError:
                raise BenchError(f"the peer did not start: {line[:200]!r}") from None
            self.http_port = self.port
        return bool(newline)


class PenstockServer(ServerProcess):
    """`penstock up`, and requests to it."""

    def __init__(
        self,
        folder: Path,
        *,
        durable: bool = False,
        config: dict[str, Any] | None = None,
        relay: str | None = None,
        has_pipeline: bool = False,
        python: str = sys.executable,
        source: Path | None = SOURCE,
    ) -> None:
        """`relay` is the transport of its relay, `ipc` or `tcp`; `python` and `source` choose a version."""
        words = ["-m", "penstock", "up", "--data", "data" if durable else "none", "--http", f"{HOST}:0"]
        words += ["--control", f"{HOST}:0", *([] if has_pipeline else ["--no-pipeline"])]
        words += ["--no-relay"] if relay is None else []
        for name in ("pub", "pull") if relay is not None else ():
            words += [f"--{name}", f"ipc://{folder / name}" if relay == "ipc" else f"tcp://{HOST}:0"]
        if config is not None:
            file = folder.with_suffix(".yaml")
            file.write_bytes(msgspec.json.encode(config))  # JSON is YAML, and quicker to parse
            words += ["--config", str(file)]
        super().__init__(folder, [python, *words], source)
        self.data, self._has_relay, self.relay_pid = folder / "data", relay is not None, 0

    def is_ready(self) -> bool:
        found = next(self.folder.glob("**/endpoints.json"), None)
        if found is None:
            return False
        self._run = found.parent
        ends = msgspec.json.decode(found.read_bytes())
        self.port, self.http_port = (int(ends[name].rpartition(":")[2]) for name in ("control", "http"))
        self.pub, self.pull = ends.get("pub") or "", ends.get("pull") or ""
        for pid in read_children(self.pid) if self._has_relay else ():
            if "relay" in read_proc(pid, "cmdline"):
                self.relay_pid = pid
        return bool(self.relay_pid) or not self._has_relay

    def token(self) -> str:
        return (self._run / "operator.token").read_text().strip()

    def get(self, path: str, *, may_miss: bool = False) -> bytes:
        """The answer to a GET; with `may_miss`, 404 is an empty answer."""
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self.http_port}{path}", timeout=ANSWER_S) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            if may_miss and error.code == HTTPStatus.NOT_FOUND:
                return b""
            raise BenchError(f"GET {path} was answered {error.code}") from None

    def metric(self, name: str) -> float:
        """The sum of a metric of `GET /metrics` over its labels."""
        lines = [line.split() for line in self.get("/metrics").decode().splitlines() if line[:1] != "#"]
        return sum(float(value) for label, value in lines if label.partition("{")[0] == name)

    def counts(self, prefix: str) -> dict[str, int]:
        """The counters of the streams with this prefix, summed, by their names in `metrics`."""
        total: Counter[str] = Counter()
        for entry in msgspec.json.decode(self.get("/v1/metrics"))["streams"]:
            total.update(entry["q"] if entry["id"].startswith(prefix) else {})
        return total

    def check_counts(self, prefix: str, count: int, *, is_held: bool = False) -> None:
        """Every envelope was enqueued once and acked once; with `is_held`, every one is still queued."""
        acked, depth = (0, count) if is_held else (count, 0)
        wanted = {"q.in": count, "q.ack": acked, "q.depth": depth, "q.if": 0}
        wait_until(
            lambda: wanted.items() <= self.counts(prefix).items(),
            0.0 if is_held else STOP_S,
            lambda: f"{count} envelopes were sent and the server counts {self.counts(prefix)}",
        )


P = TypeVar("P", bound=ServerProcess)


class ProcessGroup:
    """The result of a run, its temporary folder and all its processes."""

    def __init__(self, result: BenchResult, *, durable: bool = False) -> None:
        self.result, self.durable = result, durable
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
        self._loads: list[LoadProcess] = []
        self._servers: list[ServerProcess] = []
        self._boards = 0

    def __enter__(self) -> Self:
        # SIGTERM of the parent must end its children too.
        self._before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        return self

    def __exit__(self, *_error: object) -> None:
        for load in self._loads:
            end(load.process)
        for server in self._servers:
            server.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
        signal.signal(signal.SIGTERM, self._before)

    def start(self, make: Callable[[Path], P], name: str | None = None) -> P:
        """Start a server in a folder of its own and wait until it accepts; note its command under `name`."""
        server = make(self.folder / f"server-{len(self._servers)}")
        self._servers.append(server)
        server.wait()
        if name is not None:
            self.result.commands.setdefault(name, server.words)
        return server

    def penstock(self, config: dict[str, Any] | None = None, relay: str | None = None) -> PenstockServer:
        return self.start(partial(PenstockServer, durable=self.durable, config=config, relay=relay), "penstock")

    def peer(self, name: str, *command: str) -> Side:
        return Side(name, self.start(lambda folder: PeerServer(folder, list(command)), name))

    def board(self) -> str:
        """A file with fresh counters."""
        self._boards += 1
        path = self.folder / f"board-{self._boards}"
        Board.create(path)
        return str(path)

    def load(self, role: str, job: LoadJob, *, is_announced: bool = False, log: Path | None = None) -> LoadProcess:
        """Start a load; with `is_announced`, wait until it is ready."""
        load = LoadProcess(role, job, log)
        self._loads.append(load)
        if is_announced:
            load.read_line(START_S)
        return load

    def alone(self, role: str, job: LoadJob, rounds: int) -> list[BenchRound]:
        """Rounds of a load that needs no server."""
        reports = [self.load(role, job).report() for _ in range(rounds)]
        return [BenchRound.timed(report.count, report.seconds) for report in reports]

    def measure(
        self, pid: int, role: str, job: LoadJob, read_cpu_s: Callable[[int], float | None] = cpu_s
    ) -> LoadReport:
        """Run a load that announces its start; the report has the CPU of the server from then on."""
        load = self.load(role, job, is_announced=True)
        before_s = read_cpu_s(pid) or 0.0
        report = load.report()
        report.server_cpu_s = (read_cpu_s(pid) or 0.0) - before_s
        return report

    def flow(
        self, pid: int, sender: str, job: LoadJob, receiver: str, receiver_job: LoadJob | None = None
    ) -> tuple[LoadReport, LoadReport]:
        """Run a sender with its receiver; the report of the sender has the CPU of the server."""
        receiving = self.load(receiver, receiver_job or job, is_announced=True)
        try:
            sent = self.measure(pid, sender, job)
        except BenchError:
            if receiving.process.poll() is not None:
                receiving.report()  # a receiver that gave up knows why; the sender only saw it leave
            raise
        return sent, receiving.report()

    def run(self, work: Callable[[Self], None], output: Output) -> int:
        """Do the work, end every process and print the result."""
        with self:
            try:
                work(self)
            except BenchError as error:
                self.result.failures.append(str(error))
        return self.result.show(output)
