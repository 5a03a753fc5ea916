"""The code blocks of README and docs, executed against a real server, top to bottom.

Blocks marked `sh` and `python` run; `sh setup` and other languages do not. A document's blocks share one directory and
one server, which the commands find the way a reader's would. Only the port differs.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server_process import ServerProcess, environment

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    "README.md",
    "docs/tutorial/first-queue.md",
    "docs/how-to/history.md",
    "docs/how-to/simulate.md",
]
BLOCK = re.compile(r"^```(?P<language>[a-z]+)(?P<mark> [a-z]+)?\n(?P<code>.*?)^```$", re.M | re.S)
BLOCK_SECONDS = 60


def blocks(document: str) -> list[tuple[str, str]]:
    text = (ROOT / document).read_text()
    found = [(match["language"], match["code"]) for match in BLOCK.finditer(text) if not match["mark"]]
    return [(language, code) for language, code in found if language in ("sh", "python")]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[tuple[Path, ServerProcess]]:
    server = ServerProcess(tmp_path)
    yield tmp_path, server
    server.stop()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_block_of_a_document_runs(document: str, place: tuple[Path, ServerProcess]) -> None:
    directory, server = place
    scripts = Path(sys.executable).parent
    variables = environment(PATH=f"{scripts}{os.pathsep}{os.environ['PATH']}")
    ran = 0
    for language, code in blocks(document):
        here = code.replace("localhost:8787", server.http.removeprefix("http://"))
        here = here.replace(".venv/bin/penstock", "penstock")
        # `-f` makes curl tell of an HTTP error, which a reader would see in the answer.
        command = ["bash", "-euo", "pipefail", "-c", here.replace("curl -s ", "curl -sf ")]
        if language == "python":
            command = [sys.executable, "-c", here]
        done = subprocess.run(
            command,
            cwd=directory,
            env=variables,
            capture_output=True,
            text=True,
            timeout=BLOCK_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{document}:\n{code}\n{done.stdout}{done.stderr}"
        ran += 1
    assert ran >= 3, f"{document} has lost its examples"


def test_the_tutorial_tells_what_really_happens(place: tuple[Path, ServerProcess]) -> None:
    """The duplicate of the tutorial is answered as a duplicate."""
    _, server = place
    code = next(code for language, code in blocks("docs/tutorial/first-queue.md") if "img-3" in code)
    here = code.replace("localhost:8787", server.http.removeprefix("http://"))
    done = subprocess.run(
        ["bash", "-c", here], capture_output=True, text=True, timeout=BLOCK_SECONDS, check=True
    )
    assert '"duplicate":true' in done.stdout
