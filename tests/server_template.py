"""A process that has loaded all that a server needs, and servers and commands that are copies of it.

A server is up in a moment and spends most of a second of the processor on loading its code, which the tests would pay a hundred times.
So one process loads it once, and each `penstock up` is a fork of it with the directory, environment and output that it is given. Tests
of the start itself run the command as a person would.

The forked process is a keeper, which forks the server, waits for it, and sends its exit code through a pipe.

Commands that a shell runs, such as those of the docs, come to it through a `penstock` on the path that is only this request: `command_folder`.
"""

from __future__ import annotations

import atexit
import gc
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from functools import cache
from pathlib import Path
from typing import NoReturn

import msgspec

import penstock

SOURCE = str(Path(penstock.__file__).parents[1])
REQUEST_MAX = 1 << 18
NUMBER_BYTES = 8
"""A process id or an exit code, in a pipe."""

COMMAND = """#!{python} -IS
import json, os, signal, socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
    asking.connect("{address}")
    request = {{"words": sys.argv[1:], "folder": os.getcwd(), "env": dict(os.environ)}}
    socket.send_fds(asking, [json.dumps(request).encode()], [0, 1, 2])
    pid = int.from_bytes(asking.recv(8), sys.byteorder, signed=True)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: os.kill(pid, number))
    code = int.from_bytes(asking.recv(8), sys.byteorder, signed=True)
    sys.exit(code if code >= 0 else 128 - code)
"""


Done = subprocess.CompletedProcess[str]


class Request(msgspec.Struct):
    """The command to run, by its words; `-c` and a program run as Python would run them."""

    words: list[str]
    folder: str
    env: dict[str, str]


class Fork:
    """A server that is a copy of the template; the part of `subprocess.Popen` that the tests need."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self.returncode: int | None = None
        self.pid = self._number()

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._pipe], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("penstock up", timeout or 0)
            self.returncode = self._number()
            os.close(self._pipe)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _number(self) -> int:
        number = os.read(self._pipe, NUMBER_BYTES)
        assert len(number) == NUMBER_BYTES, "the template of the servers ended"
        return int.from_bytes(number, sys.byteorder, signed=True)


class Template:
    """The process that is copied; it ends with the one that started it."""

    def __init__(self, env: dict[str, str]) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._asking, asked = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(self._address)
        listener.listen(64)
        self._asking.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * REQUEST_MAX)
        with asked, listener:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.server_template", *map(str, (asked.fileno(), listener.fileno()))],
                cwd=Path(__file__).parents[1],
                env=env,
                pass_fds=[asked.fileno(), listener.fileno()],
            )

    @property
    def _address(self) -> str:
        return f"{self._folder.name}/address"

    def command_folder(self) -> str:
        """A folder for the path of a shell, with a `penstock` that runs in a copy of this template."""
        script = Path(self._folder.name) / "penstock"
        if not script.exists():
            script.write_text(COMMAND.format(python=sys.executable, address=self._address))
            script.chmod(0o755)
        return self._folder.name

    def start(self, request: Request, stdin: int, stdout: int, stderr: int) -> Fork:
        reading, writing = os.pipe()
        try:
            fds = [stdin, stdout, stderr, writing]
            socket.send_fds(self._asking, [msgspec.json.encode(request)], fds)
        finally:
            os.close(writing)
        return Fork(reading)

    def close(self) -> None:
        self._asking.close()
        self._process.wait()
        self._folder.cleanup()


def run_command(words: list[str], folder: Path, env: dict[str, str], stdin: str | None, timeout: float) -> Done:
    """Run a `penstock` command to its end in a copy of the template, as `subprocess.run` would run it."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        given.write((stdin or "").encode())
        given.seek(0)
        files = (given.fileno(), output.fileno(), errors.fileno())
        process = shared().start(Request(words, str(folder), env), *files)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        output.seek(0)
        errors.seek(0)
        return Done(words, code, output.read().decode(), errors.read().decode())


@cache
def shared() -> Template:
    """The template of this run of the tests, made for the first server."""
    made = Template({**os.environ, "PYTHONPATH": SOURCE})
    atexit.register(made.close)
    return made


def main(asked: socket.socket, listener: socket.socket) -> None:
    """Load the server, then copy this process for each that is asked for."""
    from penstock.hide_pandas import hide_pandas

    # Ctrl-C in a terminal is for the tests, which end what they started, and for the servers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hide_pandas()
    import uvloop  # noqa: F401 - loaded here once, for all copies

    import penstock.cli.ops.up
    import penstock.server.up  # noqa: F401

    gc.freeze()  # so that a copy does not go through what it shares
    while True:
        ready, _, _ = select.select([asked, listener], [], [])
        while _reap():
            pass
        asking = asked if asked in ready else listener.accept()[0]
        body, fds, _, _ = socket.recv_fds(asking, REQUEST_MAX, 4)
        if not body:
            if asking is asked:
                return
            continue
        if asking is not asked:
            fds.append(asking.detach())
        *streams, answers = fds
        if os.fork() == 0:
            asked.close()
            listener.close()
            _keep(msgspec.json.decode(body, type=Request), streams, answers)
        for fd in fds:
            os.close(fd)


def _reap() -> bool:
    """Take leave of a keeper that has ended."""
    try:
        return os.waitpid(-1, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return False


def _keep(request: Request, streams: list[int], answers: int) -> NoReturn:
    """Run the command in a child, and say who it is and how it ended."""
    server = os.fork()
    if server == 0:
        os.close(answers)
        _serve(request, streams)
    for fd in streams:
        os.close(fd)
    os.write(answers, server.to_bytes(NUMBER_BYTES, sys.byteorder, signed=True))
    _, status = os.waitpid(server, 0)
    os.write(answers, os.waitstatus_to_exitcode(status).to_bytes(NUMBER_BYTES, sys.byteorder, signed=True))
    os._exit(0)


def _serve(request: Request, streams: list[int]) -> NoReturn:
    """Become what `python -m penstock.cli` would be with these words."""
    from penstock.cli import main

    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
        os.close(fd)
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.env)
    sys.path[0] = request.folder
    sys.argv = ["penstock", *request.words]
    code = _run_program(request.words[1]) if request.words[0] == "-c" else main()
    for stream in (sys.stdout, sys.stderr):
        if not stream.closed:  # `stdio` leaves it to the event loop, which closes it
            stream.flush()
    os._exit(code)  # taking a loaded interpreter apart costs more than most commands


def _run_program(text: str) -> int:
    """Run a program as `python -c` would; returns its exit code."""
    try:
        exec(compile(text, "<string>", "exec"), {"__name__": "__main__"})
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    main(*(socket.socket(fileno=int(word)) for word in sys.argv[1:]))
