"""The relay's process: its commands, its reports, and what it drops instead of waiting."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.core.relay.bounds import RelayLimits
from penstock.server.relay import process
from penstock.server.relay.process import EXIT_UNABLE, FREE, RelayTask, ReportPipe
from penstock.server.relay.reports import (
    BindFailed,
    RelayReady,
    RelayReport,
    RelayStopped,
    RelayTotals,
    ResumeRequested,
    TopicRegistered,
    decode,
)
from tests.server_process import environment

ASKED = ResumeRequested("hash", True, 3)
FACT = TopicRegistered("hash", "signer", 5)
SECONDS = 30.0


def task(folder: Path, **more: Any) -> RelayTask:
    settings = {
        "pub": FREE,
        "pull": f"ipc://{folder}/pull.sock",
        "also_pub": None,
        "limits": RelayLimits(),
        "signers": {},
        "curve": None,
        "journal": "metadata",
        "check_links": False,
        "remembered": [],
    }
    return RelayTask(**{**settings, **more})


def run(given: RelayTask) -> tuple[int, list[RelayReport]]:
    """Run the process until it has read its task and the end of its input."""
    done = subprocess.run(
        [sys.executable, "-m", "penstock.server.relay.process"],
        input=msgspec.json.encode(given) + b"\n",
        capture_output=True,
        env=environment(),
        timeout=SECONDS,
        check=False,
    )
    told: list[RelayReport] = []
    data = done.stdout
    while data:
        size = int.from_bytes(data[:4], "big")
        told += decode(data[4 : 4 + size])
        data = data[4 + size :]
    return done.returncode, told


def test_it_opens_its_sockets_and_ends_with_its_input(tmp_path: Path) -> None:
    code, told = run(task(tmp_path))
    assert code == 0
    assert isinstance(told[0], RelayReady)
    assert told[0].pub.startswith("tcp://127.0.0.1:")
    assert RelayStopped(0, 0) in told
    assert isinstance(told[-1], RelayTotals)


def test_an_address_in_use_ends_it_unless_the_address_is_the_default(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        pub = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        code, told = run(task(tmp_path, pub=pub))
        assert code == EXIT_UNABLE
        assert isinstance(told[-1], BindFailed)
        assert "another process serves it" in told[-1].reason
        code, told = run(task(tmp_path, pub=pub, is_default=True))
        assert code == 0
        assert isinstance(told[0], RelayReady)
        assert told[0].pub != pub


def read_all(descriptor: int) -> list[RelayReport]:
    os.set_blocking(descriptor, False)
    data = b""
    try:
        while piece := os.read(descriptor, 1 << 20):
            data += piece
    except BlockingIOError:
        pass
    told: list[RelayReport] = []
    while data:
        size = int.from_bytes(data[:4], "big")
        told += decode(data[4 : 4 + size])
        data = data[4 + size :]
    return told


@pytest.mark.promise("Relay", "a server that does not read costs observations, never time of the relay's loop")
def test_a_server_that_does_not_read_costs_observations_before_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "WAITING_MAX", 1_000)
    monkeypatch.setattr(process, "FACTS_WAITING_MAX", 3_000)
    monkeypatch.setattr(process, "PIPE_SIZE", 4_096)
    reader, writer = os.pipe()
    watched: list[int] = []
    dropped: list[tuple[int, int]] = []
    outlet = ReportPipe(writer)
    outlet.watch = lambda descriptor, call, events: watched.append(events)
    outlet.on_dropped = lambda observations, facts: dropped.append((observations, facts))
    while not watched:  # fill the pipe
        outlet.send([ASKED] * 20)
    while not dropped:
        outlet.send([ASKED])
    assert dropped == [(1, 0)]
    while dropped[-1] == (1, 0):
        outlet.send([ASKED, FACT])
    assert dropped[-1] == (1, 1)
    told = read_all(reader)
    outlet.write()
    told += read_all(reader)
    assert told.count(FACT) == len(dropped) - 2
    assert watched[-1] == 0
    os.close(reader)
    gone: list[bool] = []
    outlet.on_gone = lambda: gone.append(True)
    outlet.send([FACT])
    assert gone == [True]
    os.close(writer)
