"""The tutorial of the first cluster, command by command: three nodes with NATS servers of their own, and one of them killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.server.ops.cluster.local_servers import free_ports
from tests.docs.documents import BLOCK, ROOT, blocks, reader_environment
from tests.nats_servers import start_child
from tests.server_process import environment

TUTORIAL = "docs/tutorial/first-cluster.md"
PORTS = (8787, 8788, 8789, 9787, 9788, 9789)
START_S = 120.0
BLOCK_S = 120.0
POLL_S = 0.05


@pytest.fixture
def ports() -> dict[str, str]:
    """A free port for each address of the page."""
    found = zip(PORTS, free_ports(len(PORTS)), strict=True)
    return {f"127.0.0.1:{port}": f"127.0.0.1:{free}" for port, free in found}


class Nodes:
    """The terminals in which nodes run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[tuple[subprocess.Popen[bytes], Path]] = []

    def start(self, code: str) -> None:
        log = self._folder / f"node-{len(self._processes)}.log"
        with log.open("wb") as output:
            process = start_child(
                ["/usr/bin/env", "bash", "-c", f"exec {code}"],
                cwd=self._folder,
                env=environment(PATH=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])),
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._processes.append((process, log))

    def wait(self) -> None:
        """Until each has said where it is."""
        end = time.monotonic() + START_S
        for process, log in self._processes:
            while b" is up" not in log.read_bytes():
                assert process.poll() is None and time.monotonic() < end, log.read_text()
                time.sleep(POLL_S)

    def stop(self) -> None:
        """The first node last, because the NATS servers are its own."""
        for process, _ in reversed(self._processes):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                try:
                    process.wait(BLOCK_S)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    found = Nodes(tmp_path)
    try:
        yield found
    finally:
        found.stop()


def run(code: str, folder: Path) -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", code],
        cwd=folder,
        env=reader_environment(),
        capture_output=True,
        text=True,
        timeout=BLOCK_S,
        check=False,
    )
    assert done.returncode == 0, f"{code}\n{done.stdout}{done.stderr}"
    return done.stdout


def follow(text: str, folder: Path, ports: dict[str, str], nodes: Nodes) -> tuple[int, str]:
    """Run what a reader would; returns how many blocks ran, and what they printed."""
    printed, started, ran = "", 0, 0
    for match in BLOCK.finditer(text):
        code = match["code"]
        for address, free in ports.items():
            code = code.replace(address, free)
        if match["mark"] == "background":
            nodes.start(code)
            started += 1
            if started == 1:
                nodes.wait()  # the others need its NATS servers
        elif match["mark"] == "files":
            (folder / "work.py").write_text(code)
        elif match["mark"] is None:
            nodes.wait()
            printed += run(code, folder)
            ran += 1
    assert started == 3
    return ran, printed


def test_the_first_half_of_the_first_cluster_runs(tmp_path: Path, ports: dict[str, str], nodes: Nodes) -> None:
    text, found, _ = (ROOT / TUTORIAL).read_text().partition("## Kill one")
    ran, printed = follow(text, tmp_path, ports, nodes)
    assert found and ran == 3
    assert "`c` owns shard 3" in printed


@pytest.mark.more
@pytest.mark.promise("Documentation", "the tutorial of the first cluster works: three nodes, one killed, nothing lost")
def test_every_command_of_the_first_cluster_runs(tmp_path: Path, ports: dict[str, str], nodes: Nodes) -> None:
    ran, printed = follow((ROOT / TUTORIAL).read_text(), tmp_path, ports, nodes)
    assert ran == 6
    assert "400 confirmed, 400 received" in printed
    assert "`c` owns shard 3" in printed and "`c` owns no shard" in printed


def test_the_commands_of_the_guide_that_need_no_cluster_run(tmp_path: Path) -> None:
    [(_, code)] = [block for block in blocks("docs/how-to/cluster-broker.md") if block[0] == "sh"]
    assert "sync_interval: always" in run(code, tmp_path)
