"""The findings of `penstock doctor` and its exit codes."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import socket
import time
from pathlib import Path
from typing import NoReturn

import pytest

import penstock
from penstock.cli import main
from penstock.cli.ops.doctor import _check
from penstock.core.json_checks import IS_NATIVE
from penstock.server.engine.admission import connections_of, descriptor_limit
from tests.server_process import ServerProcess

FREE = "listen: {http: 'localhost:0', control: 'off'}\nrelay: {enabled: false}\n"
Found = dict[str, tuple[str, str]]


@pytest.fixture
def report(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """The exit code, and what each check said."""
    monkeypatch.delenv("PENSTOCK_URL", raising=False)
    monkeypatch.delenv("PENSTOCK_TOKEN", raising=False)

    def run(data: Path, text: str = FREE) -> tuple[int, Found]:
        file = tmp_path / "config.yaml"
        file.write_text(text)
        code = main(["doctor", "--data", str(data), "--config", str(file), "--json"])
        checks = json.loads(capsys.readouterr().out)["checks"]
        return code, {check["check"]: (check["status"], check["detail"]) for check in checks}

    return run


@pytest.fixture
def left(server: ServerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """The data directory of a server that is gone."""
    assert main(["send", "doctor-reader", "hello", "--as", "ann", "--url", server.http]) == 0
    capsys.readouterr()
    data = tmp_path / "left"
    shutil.copytree(server.data, data, ignore=shutil.ignore_patterns("run"))
    return data


@pytest.mark.promise("SDK and command line", "`doctor` exits with code 3 on a problem and prints a hint")
def test_a_machine_without_a_server_is_sound(tmp_path: Path, report) -> None:
    code, found = report(tmp_path / "nothing")
    assert code == 0, found
    assert found["journal"][0] == found["server"][0] == "info"
    assert "pyarrow" in found["versions"][1]
    assert found["relay port"] == ("info", "off")
    assert found["console"][0] in ("ok", "info")
    assert found["penstock_native"][0] == ("ok" if IS_NATIVE else "info")


@pytest.mark.promise("Delivery", "`redelivery.hot` names an envelope that fails again and again")
def test_an_envelope_that_fails_again_and_again_is_named(server: ServerProcess, report) -> None:
    with penstock.connect_sync(server.control) as client:
        client.send("doctor/poison", 1, id="poison-1")
        for _ in range(6):
            [job] = client.pull("doctor/poison", wait_ms=5_000)
            job.nack(delay_ms=0, reason="no such file", confirm=True)
        code, found = report(server.data)
        assert code == 3
        assert found["redeliveries"][0] == "failed"
        assert found["redeliveries"][1].startswith("doctor/poison: `poison-1` failed 6 times, last: no such file; ")
        [job] = client.pull("doctor/poison", wait_ms=5_000)
        job.ack()
    assert report(server.data)[1]["redeliveries"][0] == "ok"


@pytest.mark.promise("SDK and command line", "`doctor` exits with code 3 on a problem and prints a hint")
def test_a_running_server_answers_and_has_the_same_time(server: ServerProcess, report) -> None:
    code, found = report(server.data)
    assert code == 0, found
    assert {found[name][0] for name in ("server", "clock and server", "journal", "http port")} == {"ok"}
    assert found["relay port"] == ("info", f"off in process {server.process.pid}")


def test_an_unfinished_erasure_fails(left: Path, report) -> None:
    (left / "journal" / "erase.json").write_text('{"agent":["sam"]}')
    code, found = report(left)
    assert code == 3 and found["erasure"][0] == "failed"
    assert "run `penstock lake erase`" in found["erasure"][1] and "sam" not in found["erasure"][1]


@pytest.mark.promise("SDK and command line", "`doctor` exits with code 3 on a problem and prints a hint")
def test_a_journal_that_cannot_be_read_fails(left: Path, report) -> None:
    assert report(left)[1]["journal"][0] == "ok"
    [segment] = (left / "journal").glob("log-*.seg")
    content = bytearray(segment.read_bytes())
    middle = content.index(b"doctor-reader")
    content[middle] ^= 0xFF
    segment.write_bytes(content)
    code, found = report(left)
    assert (code, found["journal"][0]) == (3, "failed")
    assert "`penstock log check`" in found["journal"][1]


@pytest.mark.promise("SDK and command line", "`doctor` exits with code 3 on a problem and prints a hint")
def test_a_clock_behind_the_journal_fails(left: Path, report, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s - 3_600)
    code, found = report(left)
    assert (code, found["clock and journal"][0]) == (3, "failed")
    assert "ahead; set the clock" in found["clock and journal"][1]


@pytest.mark.promise("SDK and command line", "`doctor` exits with code 3 on a problem and prints a hint")
def test_a_port_in_use_fails_with_the_setting_to_change(tmp_path: Path, report) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        code, found = report(tmp_path, FREE.replace("'off'", f"'127.0.0.1:{port}'"))
    assert (code, found["control port"][0]) == (3, "failed")
    assert "`listen.control`" in found["control port"][1]


@pytest.mark.promise("SDK and command line", "`doctor` exits with code 3 on a problem and prints a hint")
def test_a_library_that_is_missing_fails(tmp_path: Path, report, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(_: str) -> NoReturn:
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(importlib.metadata, "version", absent)
    code, found = report(tmp_path)
    assert (code, found["versions"][0]) == (3, "failed")
    assert "missing: aiohttp" in found["versions"][1]


def test_a_part_that_is_sound_again_still_shows_its_last_failure() -> None:
    failure = {"at": "2026-01-01T00:00:00Z", "reason": "a client showed a revoked or mistyped token"}
    part = {"state": "ok", "since": "2026-01-01T00:00:00Z", "reason": "0 connections", "lastFailure": failure}
    assert _check("doors", part).status == "info"
    assert _check("doors", part | {"lastFailure": None}).status == "ok"


@pytest.mark.promise("Hold under hostile conditions", "`doctor` says when open files do not suffice for `links_max`")
def test_the_limit_of_open_files_is_compared_with_the_connections_of_the_config(tmp_path: Path, report) -> None:
    room = connections_of(descriptor_limit(raised=True))
    text = "limits: {{unauthenticated_per_address_max: 1, links_max: {}}}\n"
    _, found = report(tmp_path / "nothing", FREE + text.format(room))
    assert found["descriptors"][0] == "ok" and f"allow {room} connections" in found["descriptors"][1]
    code, found = report(tmp_path / "nothing", FREE + text.format(room + 1))
    status, detail = found["descriptors"]
    assert (code, status) == (0, "info")
    assert f"`limits.links_max` is {room + 1}" in detail and "raise the hard limit" in detail
