"""The relay's process: what it is told, what it tells, and what it drops rather than wait."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.core.clock import Now
from penstock.core.relay.limits import RelayLimits
from penstock.core.relay.machine import Relay, Totals
from penstock.core.relay.topic import Topic
from penstock.server.relay import process
from penstock.server.relay.process import EXIT_UNABLE, FREE, RelayTask, ReportPipe
from penstock.server.relay.reports import (
    BindFailed,
    MessageRelayed,
    RelayReady,
    RelayReport,
    RelayStopped,
    RelayTotals,
    ResumeRequested,
    TopicRegistered,
    decode,
    encode,
)
from penstock.server.relay.stats import BODIES_MAX, TopicStats
from penstock.server.relay.supervisor import RelayError, curve_keys, local_key
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


def test_an_address_that_is_taken_ends_it_unless_nobody_chose_it(tmp_path: Path) -> None:
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


@pytest.mark.promise("The relay", "a server that does not read costs observations, never the loop's time")
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


def accounts(**limits: Any) -> tuple[Relay, Topic, TopicStats, list[list[RelayReport]]]:
    relay = Relay(RelayLimits(**limits), lambda message: None)
    topic = relay.register(Now(1, 1), b"a" * 64, "s", 100)
    assert isinstance(topic, Topic)
    reports: list[list[RelayReport]] = []
    return relay, topic, TopicStats(relay, reports.append), reports


@pytest.mark.promise("The relay", "a server that does not read costs observations, never the loop's time")
def test_what_waits_for_a_report_is_bounded() -> None:
    _, topic, told, reports = accounts(observations_max=2, facts_max=1)
    for _ in range(3):
        told.tell(ASKED)
        told.tell(FACT)
    for _ in range(2):
        told.passed(topic, b"x" * (BODIES_MAX // 2 + 1), is_held=False)
    told.flush()
    assert [type(each) for each in reports[0]] == [
        ResumeRequested,
        TopicRegistered,
        ResumeRequested,
        RelayTotals,
    ]
    figures = reports[0][-1]
    assert isinstance(figures, RelayTotals)
    assert (figures.dropped, figures.facts_dropped) == (3, 2)
    told.passed(topic, b"t" * 64 + b"body", is_held=True)
    told.flush()
    assert isinstance(reports[1][0], MessageRelayed)
    assert reports[1][0].body == b"body"


def test_reports_survive_the_way() -> None:
    told: list[RelayReport] = [
        RelayReady("a", "b"),
        FACT,
        ASKED,
        RelayTotals(Totals(messages=3), 1, 2, 3, 4, refused={"signer": 2}),
        RelayStopped(1, 2),
    ]
    assert decode(encode(told)) == told


def test_a_publisher_on_this_machine_has_a_key_that_stays(tmp_path: Path) -> None:
    file = tmp_path / "publisher.key"
    public = local_key(file)
    assert local_key(file) == public
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_text("no key")
    with pytest.raises(RelayError, match="holds no key"):
        local_key(file)


def test_curve_keys_come_from_a_file_of_secret_keys(tmp_path: Path) -> None:
    from penstock.cli import main

    assert main(["token", "curve-keygen", "--out", str(tmp_path), "--json"]) == 0
    keys = curve_keys(tmp_path / "relay.key_secret", ("*",))
    assert len(keys.public) == len(keys.secret) == 40
    assert (tmp_path / "relay.key_secret").stat().st_mode & 0o777 == 0o600
    with pytest.raises(RelayError, match="no secret key"):
        curve_keys(tmp_path / "relay.key", ())
    with pytest.raises(RelayError, match="holds no CURVE keys"):
        curve_keys(tmp_path / "nothing", ())
    assert main(["token", "curve-keygen", "--out", str(tmp_path)]) == 1  # never over a key that is there


def test_a_signers_key_is_made_with_its_public_half(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from penstock.cli import main

    assert main(["token", "signer-keygen", "--out", str(tmp_path), "--json"]) == 0
    shown = msgspec.json.decode(capsys.readouterr().out)
    assert shown["public"] == local_key(Path(shown["secret_file"]))
