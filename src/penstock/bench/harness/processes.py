"""The processes of a run: servers and loads. They are started here and ended by pid, whatever happens."""

from __future__ import annotations

import http.client
import os
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

import penstock
from penstock.bench.harness.load import Board, Job, Line, Report
from penstock.bench.harness.result import BenchCell, BenchError, BenchResult
from penstock.cli.options import Output
from penstock.cli.output import print_note

START_S, STOP_S = 30.0, 10.0
SLACK_S = 60.0
"""Time that a load may take beyond its own seconds."""
ANSWER_S = 120.0
SPARE_FILES = 200
"""Descriptors that a process needs in addition to its connections."""
SOURCE = Path(penstock.__file__).parents[1]
HOST = "127.0.0.1"


def cpu_s(pid: int) -> float | None:
    """CPU seconds of a process, user and kernel; None when it does not exist."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_bytes(pid: int) -> int:
    """Resident memory of a process."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def make_environment(source: Path | None = SOURCE) -> dict[str, str]:
    """An environment that imports Penstock from `source`, without the user's own Penstock settings."""
    kept = {key: text for key, text in os.environ.items() if not key.startswith(("PENSTOCK_", "COURIER_"))}
    if source is None:
        kept.pop("PYTHONPATH", None)
        return kept
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, [str(source), kept.get("PYTHONPATH")]))
    return kept


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


class LoadProcess:
    """A load at work."""

    def __init__(self, role: str, job: Job, log: Path | None = None) -> None:
        self._role, self._seconds = role.partition(":")[2], job.seconds
        command = [sys.executable, "-m", "penstock.bench.harness.load", role]
        with log.open("wb") if log is not None else open(os.devnull, "wb") as errors:
            self.process = subprocess.Popen(
                [*command, msgspec.json.encode(job).decode()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=None if log is None else errors,
                env=make_environment() | ({} if log is None else {"TMPDIR": str(log.parent)}),
            )

    def read_line(self, timeout_s: float) -> Line:
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], timeout_s)[0]:
            raise BenchError(f"the load `{self._role}` was silent for {timeout_s:.0f} s")
        text = self.process.stdout.readline()
        if not text:
            raise BenchError(f"the load `{self._role}` ended with code {self.process.wait()}")
        line = msgspec.json.decode(text, type=Line)
        if line.report is not None and line.report.error is not None:
            raise BenchError(f"{self._role}: {line.report.error}")
        return line

    def report(self, on_cell: Callable[[BenchCell], object] | None = None) -> Report:
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
    """A server on a free port of the loopback interface."""

    port = http_port = 0

    def __init__(self, folder: Path, command: list[str], environment: dict[str, str] | None = None) -> None:
        folder.mkdir()
        self.folder, self.command = folder, command
        # Without a data directory the server puts its run files into TMPDIR.
        variables = (environment or make_environment()) | {"TMPDIR": str(folder)}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, cwd=folder, env=variables, stdout=log, stderr=subprocess.STDOUT
            )
        self.pid = self.process.pid

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def words(self) -> str:
        """The command, with the names of files instead of their paths."""
        names = [Path(word).name if "/" in word and "://" not in word else word for word in self.command]
        return " ".join(name or "''" for name in names)

    def is_ready(self) -> bool:
        return True

    def wait(self) -> None:
        def is_ready() -> bool:
            if self.process.poll() is not None:
                raise BenchError(explain())
            return self.is_ready()

        def explain() -> str:
            log = self.log.read_text(errors="replace")[-500:]
            return f"`{' '.join(self.command[:4])}` did not start: {log}"

        wait_until(is_ready, START_S, explain)

    def stop(self) -> None:
        end(self.process)

    def cpu_s(self) -> float:
        return cpu_s(self.pid) or 0.0

    def rss_bytes(self) -> int:
        return rss_bytes(self.pid)


class PenstockServer(ServerProcess):
    """`penstock up`, and requests to it."""

    pub = pull = ""

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
        """`relay` is the transport of its relay, `ipc` or `tcp`; `python` and `source` choose another version."""
        words = ["-m", "penstock", "up", "--data", "data" if durable else "none"]
        words += ["--http", f"{HOST}:0", "--control", f"{HOST}:0"]
        words += [] if has_pipeline else ["--no-pipeline"]
        if relay is None:
            words += ["--no-relay"]
        for name in ("pub", "pull") if relay is not None else ():
            words += [f"--{name}", f"ipc://{folder / name}" if relay == "ipc" else f"tcp://{HOST}:0"]
        if config is not None:
            file = folder.with_suffix(".yaml")
            file.write_bytes(msgspec.json.encode(config))  # JSON is YAML, and quicker to parse
            words += ["--config", str(file)]
        super().__init__(folder, [python, *words], make_environment(source))
        self.data = folder / "data"
        self._has_relay = relay is not None

    def is_ready(self) -> bool:
        found = next(self.folder.glob("**/endpoints.json"), None)
        if found is None:
            return False
        self._run = found.parent
        ends = msgspec.json.decode(found.read_bytes())
        self.port, self.http_port = (int(ends[name].rpartition(":")[2]) for name in ("control", "http"))
        self.pub, self.pull = ends.get("pub") or "", ends.get("pull") or ""
        return not self._has_relay or self.relay_pid() is not None

    def relay_pid(self) -> int | None:
        """The process of its relay, which is a child of the server."""
        for path in Path(f"/proc/{self.pid}/task").glob("*/children"):
            for pid in path.read_text().split():
                if b"relay" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return int(pid)
        return None

    def token(self) -> str:
        return (self._run / "operator.token").read_text().strip()

    def get(self, path: str) -> bytes:
        connection = http.client.HTTPConnection(HOST, self.http_port, timeout=ANSWER_S)
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        if answer.status != 200:
            raise BenchError(f"GET {path} was answered {answer.status}")
        return body

    def metric(self, name: str) -> float:
        """The sum of a metric of `GET /metrics` over its labels."""
        lines = [line.split() for line in self.get("/metrics").decode().splitlines() if line[:1] != "#"]
        return sum(float(value) for label, value in lines if label.partition("{")[0] == name)

    def counts(self, prefix: str) -> dict[str, int]:
        """The counters of the streams with this prefix, summed, by their names in `metrics`."""
        with socket.create_connection((HOST, self.port), START_S) as sock:
            sock.sendall(b'{"type":"metrics","reqId":1}\n')
            answer = msgspec.json.decode(sock.makefile("rb").readline())
        total: dict[str, int] = {}
        for entry in answer["result"]["streams"]:
            if entry["id"].startswith(prefix):
                for name, count in entry["q"].items():
                    total[name] = total.get(name, 0) + count
        return total

    def check_held(self, prefix: str, count: int) -> None:
        """Every envelope was enqueued once and is still there."""
        found = self.counts(prefix)
        if not found.get("q.in") == found.get("q.depth") == count:
            raise BenchError(f"{count} envelopes were sent and the server counts {found}")

    def check_counts(self, stream: str, count: int) -> None:
        """Every envelope was enqueued once, acked once, and none is left."""

        def is_settled() -> bool:
            now = self.counts(stream)
            return now.get("q.in") == now.get("q.ack") == count and now["q.depth"] == now["q.if"] == 0

        explain = lambda: f"{count} envelopes were sent and the server counts {self.counts(stream)}"  # noqa: E731 - short
        wait_until(is_settled, STOP_S, explain)


P = TypeVar("P", bound=ServerProcess)


class ProcessGroup:
    """A temporary folder and every process of one run."""

    def __init__(self, *, durable: bool = False) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
        self.durable = durable
        self._loads: list[LoadProcess] = []
        self._servers: list[ServerProcess] = []
        self._boards = 0

    def __enter__(self) -> Self:
        # SIGTERM of the parent must end its children too.
        self._before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for load in self._loads:
            end(load.process)
        for server in self._servers:
            server.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
        signal.signal(signal.SIGTERM, self._before)

    def start(self, make: Callable[[Path], P]) -> P:
        """Start a server in a folder of its own and wait until it accepts."""
        server = make(self.folder / f"server-{len(self._servers)}")
        self._servers.append(server)
        server.wait()
        return server

    def penstock(self, config: dict[str, Any] | None = None, relay: str | None = None) -> PenstockServer:
        make = lambda folder: PenstockServer(folder, durable=self.durable, config=config, relay=relay)  # noqa: E731 - short
        return self.start(make)

    def board(self) -> str:
        """A file with fresh counters."""
        self._boards += 1
        path = self.folder / f"board-{self._boards}"
        Board.create(path)
        return str(path)

    def load(
        self, role: str, job: Job, *, is_announced: bool = False, log: Path | None = None
    ) -> LoadProcess:
        """Start a load; with `is_announced`, wait until it is ready."""
        load = LoadProcess(role, job, log)
        self._loads.append(load)
        if is_announced:
            load.read_line(START_S)
        return load

    def flow(
        self, server: ServerProcess, sender: tuple[str, Job], receiver: tuple[str, Job]
    ) -> tuple[Report, Report]:
        """Run a sender with its receiver; a sender that does not read the server's CPU gets it from here."""
        receiving = self.load(*receiver, is_announced=True)
        before_s = server.cpu_s()
        try:
            sent = self.load(*sender).report()
        except BenchError:
            if receiving.process.poll() is not None:
                receiving.report()  # a receiver that gave up knows why; the sender only saw it leave
            raise
        received = receiving.report()
        sent.server_cpu_s = sent.server_cpu_s or server.cpu_s() - before_s
        return sent, received

    def run(self, result: BenchResult, work: Callable[[Self], None], output: Output) -> int:
        """Do the work, end every process and print the result."""
        with self:
            try:
                work(self)
            except BenchError as error:
                result.failures.append(str(error))
        return result.show(output)
