"""Code blocks of documents, run as a reader would run them.

Blocks marked `sh` and `python` run, top to bottom, in one directory with one server, which the commands find as a reader's would. Only
the port differs. A second word marks special blocks: `sh setup` does not run, `python spark` runs in a notebook's session, `sh spark`
runs with a pipeline, `sh background` keeps running while the rest of the README runs.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.paths import ROOT
from tests.server_process import ServerProcess, environment
from tests.server_template import run_command, shared

COMMAND_S = 300.0
"""A command may have to wait for Spark, on a machine that is busy with other tests."""
BLOCK = re.compile(r"^```(?P<language>[a-z]+)(?: (?P<mark>[a-z]+))?\n(?P<code>.*?)^```$", re.M | re.S)


def blocks(document: str, mark: str | None = None) -> list[tuple[str, str]]:
    """The language and the code of each block that has this mark, or none."""
    text = (ROOT / document).read_text()
    return [(match["language"], match["code"]) for match in BLOCK.finditer(text) if match["mark"] == mark]


def reader_environment() -> dict[str, str]:
    """What a reader's terminal knows: `penstock` and `python` are on the path. The first runs in a copy of a loaded process."""
    folders = shared().command_folder(), str(Path(sys.executable).parent), os.environ["PATH"]
    return environment(PATH=os.pathsep.join(folders))


def run_blocks(document: str, server: ServerProcess, seconds: float, mark: str | None = None) -> int:
    """Run every block that runs by itself, or the commands that have a mark; returns how many."""
    ran = 0
    for language, code in blocks(document, mark):
        if language not in (("sh", "python") if mark is None else ("sh",)):
            continue
        here = code.replace("localhost:8787", server.http.removeprefix("http://"))
        here = here.replace(".venv/bin/penstock", "penstock")
        # `-f` makes curl fail on an HTTP error, which a reader would see in the answer.
        command = ["bash", "-euo", "pipefail", "-c", here.replace("curl -s ", "curl -sf ")]
        if language == "python":
            done = run_command(["-c", here], server.folder, reader_environment(), None, seconds)
        else:
            done = subprocess.run(
                command,
                cwd=server.folder,
                env=reader_environment(),
                capture_output=True,
                text=True,
                timeout=seconds,
                check=False,
            )
        assert done.returncode == 0, f"{document}:\n{code}\n{done.stdout}{done.stderr}"
        ran += 1
    return ran


def penstock(server: ServerProcess, *words: str) -> str:
    """What a command prints in the server's directory."""
    done = subprocess.run(
        ["penstock", *words],
        cwd=server.folder,
        env=reader_environment(),
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
