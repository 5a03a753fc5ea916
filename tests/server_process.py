"""A real server as a child process, for tests that talk to it from outside.

Import the fixtures into a `conftest.py`: a session shares `server`; `start_server` starts one with its own options.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.server_template import SOURCE, Fork, Request, shared

START_S = 20.0
"""How long a server may take to open its doors on a busy machine."""
STOP_S = 15.0


def environment(**more: str) -> dict[str, str]:
    """The environment of a child: this checkout importable, nothing of the developer's settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PENSTOCK_", "COURIER_"))}
    # The tests use no TLS, and loading the machine's certificates takes a good part of a short run.
    return {**kept, "PYTHONPATH": SOURCE, "SSL_CERT_FILE": os.devnull, **more}


class ServerProcess:
    """A running `penstock up`: a copy of a process that has the code loaded, or a `fresh` one that loads it."""

    def __init__(
        self,
        folder: Path,
        *words: str,
        config: str | None = None,
        env: dict[str, str] | None = None,
        fresh: bool = False,
        descriptors: int | None = None,
    ) -> None:
        self.folder = folder
        self._descriptors = descriptors
        """The hard limit of open files, if a test needs a low one."""
        self.data = folder / "penstock-data"
        command = ["up", *words]
        if "--data" not in words:
            command += ["--data", str(self.data)]
        for flag in ("--http", "--control"):
            if flag not in words:
                command += [flag, "127.0.0.1:0"]
        if "--pipeline" in words:  # Spark takes seconds and a gigabyte: only for those who ask
            command.remove("--pipeline")
            fresh = True  # the start is cheap by comparison, and this is how users run the pipeline
        else:
            command.append("--no-pipeline")
        if "--relay" in words:  # a process more: only for those who ask
            command.remove("--relay")
            command += [] if "--pub" in words else ["--pub", "tcp://127.0.0.1:0"]
        else:
            command.append("--no-relay")
        if config is not None:
            file = folder / "config.yaml"
            file.write_text(config)
            command += ["--config", str(file)]
        self._output = (folder / "server.log").open("ab")
        self._file = self.data / "run" / "endpoints.json"
        self._file.unlink(missing_ok=True)
        self.process = self._start(command, environment(**(env or {})), fresh)
        self.endpoints: dict[str, Any] = self._ready()

    @property
    def control(self) -> str:
        return str(self.endpoints["control"])

    @property
    def http(self) -> str:
        return str(self.endpoints["http"])

    def kill(self) -> None:
        """As a crash would."""
        self.process.kill()
        self.process.wait(STOP_S)
        self._output.close()

    def stop(self) -> int:
        """As an operator would; returns the exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            code = self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            self._output.close()
        return code

    def log(self) -> str:
        return (self.folder / "server.log").read_text(errors="replace")

    def _start(self, words: list[str], env: dict[str, str], fresh: bool) -> Fork | subprocess.Popen[bytes]:
        if not fresh and self._descriptors is None:
            return shared().start(
                Request(words, str(self.folder), env), 0, self._output.fileno(), self._output.fileno()
            )
        command = [sys.executable, "-m", "penstock.cli", *words]
        if self._descriptors is not None:
            command = ["sh", "-c", f'ulimit -n {self._descriptors} && exec "$@"', "sh", *command]
        return subprocess.Popen(command, cwd=self.folder, env=env, stdout=self._output, stderr=subprocess.STDOUT)

    def _ready(self) -> dict[str, Any]:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            try:
                return dict(msgspec.json.decode(self._file.read_bytes()))
            except (OSError, msgspec.DecodeError):
                pass
            try:
                code = self.process.wait(0.02)
            except subprocess.TimeoutExpired:
                continue
            self._output.close()
            raise AssertionError(f"the server ended with code {code}:\n{self.log()}")
        self.kill()
        raise AssertionError(f"the server did not open its doors:\n{self.log()}")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for all tests that only need their own streams."""
    process = ServerProcess(tmp_path_factory.mktemp("server"))
    yield process
    process.kill()  # a drain would wait for the leases that tests leave behind


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., ServerProcess]]:
    """Makes servers that end with the test."""
    started: list[ServerProcess] = []

    def start(*words: str, **options: Any) -> ServerProcess:
        started.append(ServerProcess(tmp_path, *words, **options))
        return started[-1]

    yield start
    for process in started:
        if process.process.poll() is None:
            process.kill()


@pytest.fixture
def stream(request: pytest.FixtureRequest) -> str:
    """A stream that no other test uses."""
    return f"tests/{request.node.name}".translate({ord("["): "-", ord("]"): None, ord(":"): "-"})
