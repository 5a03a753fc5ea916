"""The code blocks of docs that need a server and nothing else."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.documents import blocks, run_blocks
from tests.server_process import ServerProcess

DOCUMENTS = [
    "docs/tutorial/first-queue.md",
    "docs/how-to/history.md",
    "docs/how-to/kernel.md",
    "docs/how-to/limits.md",
    "docs/how-to/relay.md",
    "docs/how-to/reload.md",
    "docs/how-to/order-and-priority.md",
    "docs/how-to/simulate.md",
    "docs/how-to/tokens.md",
    "docs/how-to/triggers.md",
    "docs/how-to/views.md",
]
CONFIGURED = [
    "docs/how-to/schemas.md",
    "docs/how-to/skills.md",
    "docs/how-to/events.md",
    "docs/how-to/tenants.md",
    "docs/how-to/gateway.md",
    "docs/how-to/join-a-space.md",
    "docs/tutorial/first-space.md",
]
"""Documents with a server of their own: blocks marked `files` come before it, the one marked `server` is its config."""
RELAYED = ["docs/how-to/token-streams.md"]
"""Documents whose server has a relay."""
BLOCK_SECONDS = 60


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path)
    yield process
    process.kill()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_block_of_a_document_runs(document: str, server: ServerProcess) -> None:
    assert run_blocks(document, server, BLOCK_SECONDS) >= 3, f"{document} has lost its examples"


def test_the_tutorial_tells_what_really_happens(server: ServerProcess) -> None:
    """The duplicate of the tutorial is answered as a duplicate."""
    code = next(code for _, code in blocks("docs/tutorial/first-queue.md") if "img-3" in code)
    here = code.replace("localhost:8787", server.http.removeprefix("http://"))
    done = subprocess.run(
        ["bash", "-c", here], capture_output=True, text=True, timeout=BLOCK_SECONDS, check=True
    )
    assert '"duplicate":true' in done.stdout


@pytest.mark.parametrize("document", RELAYED)
def test_every_block_of_a_document_runs_beside_a_relay(document: str, tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, "--relay")
    try:
        assert run_blocks(document, server, BLOCK_SECONDS) >= 3, f"{document} has lost its examples"
    finally:
        server.stop()


@pytest.mark.parametrize("document", CONFIGURED)
def test_every_block_of_a_document_with_its_own_config_runs(document: str, tmp_path: Path) -> None:
    for _, code in blocks(document, "files"):
        subprocess.run(
            ["bash", "-euo", "pipefail", "-c", code], cwd=tmp_path, timeout=BLOCK_SECONDS, check=True
        )
    ((_, config),) = blocks(document, "server")
    server = ServerProcess(tmp_path, config=config)
    try:
        assert run_blocks(document, server, BLOCK_SECONDS) >= 2, f"{document} has lost its examples"
    finally:
        server.stop()
