"""The processes of a run: servers and loads, started here and ended by their id, whatever happens."""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

import penstock
from penstock.bench.jobs import Job, Report

START_S = 30.0
STOP_S = 10.0
SLACK_S = 60.0
"""What a load may take beyond its own time before it is given up."""


class BenchError(Exception):
    """A run that proves nothing: something was lost, refused or never came."""


def cpu_s(pid: int) -> float | None:
    """CPU seconds a process has used, in user and kernel mode; None where the kernel does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_bytes(pid: int) -> int | None:
    """Memory of a process that is in RAM."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_bytes().split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def _environment() -> dict[str, str]:
    """This very package importable, and none of the user's own settings."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PENSTOCK_", "COURIER_"))
    }
    source = str(Path(penstock.__file__).parents[1])
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, [source, kept.get("PYTHONPATH")]))
    return kept


class Load:
    """A load process at work."""

    def __init__(self, job: Job, *, is_announced: bool = False) -> None:
        words = [sys.executable, "-m", "penstock.bench.roles", msgspec.json.encode(job).decode()]
        self._job = job
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=_environment()
        )
        if is_announced:
            self._line(START_S)

    def _line(self, timeout_s: float) -> bytes:
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], timeout_s)[0]:
            raise BenchError(f"the {self._job.role} process said nothing for {timeout_s:.0f} s")
        line = self.process.stdout.readline()
        if not line:
            raise BenchError(f"the {self._job.role} process ended with code {self.process.wait()}")
        return line

    def report(self) -> Report:
        """Wait for the end and the figures; stdin ends first, for the role that waits for that."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        report = msgspec.json.decode(self._line(self._job.seconds + SLACK_S), type=Report)
        self.process.wait(STOP_S)
        if report.error is not None:
            raise BenchError(f"{self._job.role}: {report.error}")
        return report

    def end(self) -> None:
        end(self.process)


def end(process: subprocess.Popen[Any]) -> None:
    """End a process that we started, politely first."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


class Stage:
    """A folder for one run and every process in it."""

    def __init__(self, *, durable: bool = False) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
        self._durable = durable
        self._loads: list[Load] = []
        self._servers: list[Server] = []

    def __enter__(self) -> Self:
        # A polite end of the parent must be the end of its children too.
        self._before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for load in self._loads:
            load.end()
        for server in self._servers:
            server.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
        signal.signal(signal.SIGTERM, self._before)

    def load(self, job: Job, *, is_announced: bool = False) -> Load:
        load = Load(job, is_announced=is_announced)
        self._loads.append(load)
        return load

    def penstock(
        self, profile: Path | None = None, *, config: str | None = None, has_relay: bool = False
    ) -> Penstock:
        folder = self.folder / f"server-{len(self._servers)}"
        server = Penstock(folder, profile, durable=self._durable, config=config, has_relay=has_relay)
        self._servers.append(server)
        server.wait()
        return server

    def redis(self) -> Redis:
        server = Redis(self.folder / f"server-{len(self._servers)}", durable=self._durable)
        self._servers.append(server)
        server.wait()
        return server


class Server:
    """A server of our own, on a free port of the loopback."""

    command: list[str]
    port: int

    def __init__(self, folder: Path, command: list[str], *, is_told: bool = False) -> None:
        """One that is told its task on stdin says on stdout what it does, and nothing else may be among it."""
        folder.mkdir()
        self.folder = folder
        self.command = command
        self._log = (folder / "log").open("wb")
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env={**_environment(), "TMPDIR": str(folder)},  # without a data directory its run files go there
            stdin=subprocess.PIPE if is_told else None,
            stdout=self._log,
            stderr=None if is_told else subprocess.STDOUT,
        )
        self.pid = self.process.pid

    def is_ready(self) -> bool:
        return True

    def wait(self) -> None:
        deadline = time.monotonic() + START_S
        while not self.is_ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                log = (self.folder / "log").read_text(errors="replace")[-500:]
                raise BenchError(f"`{' '.join(self.command[:4])}` did not start: {log}")
            time.sleep(0.02)

    def stop(self) -> None:
        end(self.process)
        self._log.close()

    def cpu_s(self) -> float:
        return cpu_s(self.pid) or 0.0

    def rss_bytes(self) -> int:
        return rss_bytes(self.pid) or 0


class Penstock(Server):
    """`penstock up`, and a control connection to ask it."""

    def __init__(
        self,
        folder: Path,
        profile: Path | None,
        *,
        durable: bool,
        config: str | None = None,
        has_relay: bool = False,
    ) -> None:
        entry = ["-m", "penstock"]
        data = "data" if durable else "none"
        words = [
            "up",
            "--no-pipeline",
            *([] if has_relay else ["--no-relay"]),
            "--data",
            data,
            "--http",
            "127.0.0.1:0",
            "--control",
            "127.0.0.1:0",
        ]
        if profile is not None:
            entry, words = ["-m", "penstock.bench.roles", "serve", str(profile)], words[1:]
        if config is not None:
            file = folder.with_suffix(".yaml")
            file.write_text(config)
            words += ["--config", str(file)]
        super().__init__(folder, [sys.executable, *entry, *words])
        self.port = self.http_port = 0

    def is_ready(self) -> bool:
        found = next(self.folder.glob("**/endpoints.json"), None)
        if found is None:
            return False
        self._run = found.parent
        ends = msgspec.json.decode(found.read_bytes())
        self.port = int(ends["control"].rpartition(":")[2])
        self.http_port = int(ends["http"].rpartition(":")[2])
        return True

    def token(self) -> str:
        return (self._run / "operator.token").read_text().strip()

    def counts(self, prefix: str) -> dict[str, int]:
        """The counters of the streams that begin so, summed, by the names of `metrics`."""
        with socket.create_connection(("127.0.0.1", self.port), START_S) as sock:
            sock.sendall(b'{"type":"metrics","reqId":1}\n')
            answer = msgspec.json.decode(sock.makefile("rb").readline())
        total: dict[str, int] = {}
        for entry in answer["result"]["streams"]:
            if entry["id"].startswith(prefix):
                for name, count in entry["q"].items():
                    total[name] = total.get(name, 0) + count
        return total

    def check_held(self, prefix: str, count: int) -> None:
        """Every envelope came in once and is still there."""
        found = self.counts(prefix)
        if not found.get("q.in") == found.get("q.depth") == count:
            raise BenchError(f"{count} envelopes were sent and the server counts {found}")

    def check_counts(self, stream: str, count: int) -> None:
        """Every envelope came in once, was acked once, and none is left."""
        deadline = time.monotonic() + STOP_S
        while True:
            now = self.counts(stream)
            if now.get("q.in") == now.get("q.ack") == count and now["q.depth"] == now["q.if"] == 0:
                return
            if time.monotonic() > deadline:
                raise BenchError(f"{count} envelopes were sent and the server counts {now}")
            time.sleep(0.02)


class Redis(Server):
    """redis-server without persistence; durable means its log, synced every second."""

    def __init__(self, folder: Path, *, durable: bool) -> None:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            self.port = sock.getsockname()[1]
        super().__init__(
            folder,
            [
                "redis-server",
                "--port",
                str(self.port),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--appendonly",
                "yes" if durable else "no",
            ],
        )

    @staticmethod
    def missing() -> str | None:
        """Why there is no peer on this machine."""
        if shutil.which("redis-server") is None:
            return "redis-server is not installed"
        absent = [name for name in ("redis", "hiredis") if find_spec(name) is None]
        return f"its Python client is not installed: {', '.join(absent)}" if absent else None

    def is_ready(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1.0) as sock:
                sock.sendall(b"PING\r\n")
                return sock.recv(16).startswith(b"+PONG")
        except OSError:
            return False

    def forget(self) -> None:
        """Drop everything, so that one cell does not weigh on the next."""
        with socket.create_connection(("127.0.0.1", self.port), START_S) as sock:
            sock.sendall(b"FLUSHALL\r\n")
            sock.recv(16)

    def check_counts(self, stream: str, count: int) -> None:
        """Every entry was added and acked, and none is pending."""
        with socket.create_connection(("127.0.0.1", self.port), START_S) as sock:
            file = sock.makefile("rb")
            sock.sendall(f"XPENDING {stream} bench\r\n".encode())
            assert file.readline() == b"*4\r\n"
            pending = int(file.readline()[1:])
        if pending:
            raise BenchError(f"redis has {pending} entries pending of {count}")
