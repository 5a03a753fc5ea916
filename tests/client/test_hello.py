"""The hello-world program of each protocol runs."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.paths import ROOT
from tests.server_process import ServerProcess, environment

HELLO = ROOT / "examples" / "hello"
SAID = {
    "queue": ["hello, queue"],
    "space": ["hello, everybody", "hello, bob"],
    "tokens": ["hello, tokens"],
}
LINES_MAX = 12
"""Of what a reader has to understand: neither imports nor the docstring nor what starts the program."""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    config = (HELLO / "config.yaml").read_text()
    process = ServerProcess(tmp_path_factory.mktemp("hello"), "--relay", config=config)
    yield process
    process.kill()


@pytest.mark.promise("SDK and command line", "each protocol has a hello-world example of about ten lines")
@pytest.mark.parametrize("door", SAID)
def test_hello(door, up):
    done = subprocess.run(
        [sys.executable, "-W", "always::ResourceWarning", str(HELLO / f"hello_{door}.py")],
        cwd=up.folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout.splitlines(), done.stderr) == (0, SAID[door], "")


@pytest.mark.promise("SDK and command line", "each protocol has a hello-world example of about ten lines")
@pytest.mark.parametrize("door", SAID)
def test_hello_is_about_ten_lines(door):
    text = (HELLO / f"hello_{door}.py").read_text()
    functions = [node for node in ast.parse(text).body if isinstance(node, ast.AsyncFunctionDef)]
    lines = sum(node.end_lineno - node.lineno + 1 for node in functions)
    assert lines <= LINES_MAX, f"hello_{door}.py has {lines}"


def test_every_hello_is_run():
    assert {file.stem.removeprefix("hello_") for file in HELLO.glob("*.py")} == set(SAID)
