"""Every command as a user runs it, against a real server."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.cli.conftest import ok
from tests.server_process import environment


@pytest.mark.parametrize("words", [["stats", "--bogus"], ["nonsense"], ["done"], ["done", "x", "--op", "eat"]])
def test_wrong_usage_is_exit_2(cli, words):
    done = cli(*words)
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.startswith("error: Usage: ")
    assert json.loads(cli(*words, "--json").stdout)["error"]["code"] == "Usage"


def test_a_server_on_the_data_directory_is_found_with_its_token(server):
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli", "stats", "--json"],
        capture_output=True,
        text=True,
        cwd=server.folder,
        env=environment(),
        timeout=60,
        check=False,
    )
    assert "streams" in json.loads(ok(done))


@pytest.mark.promise("SDK and command line", "`doctor` exits with code 3 on a problem and prints a hint")
def test_doctor_finds_the_server(server):
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli", "doctor", "--json"],
        capture_output=True,
        text=True,
        cwd=server.folder,
        env=environment(),
        timeout=60,
        check=False,
    )
    report = json.loads(ok(done))
    found = {check["check"]: check for check in report["checks"]}
    assert report["ok"] and found["server"]["status"] == "ok" and found["http port"]["status"] == "ok"


def test_stdio_answers_and_ends_with_its_input(cli):
    hello = '{"type":"hello","version":"v1"}\n{"type":"ping","reqId":"p"}\n'
    answers = [json.loads(line) for line in ok(cli("stdio", stdin=hello)).splitlines()]
    assert [answer["reqId"] for answer in answers] == ["hello", "p"]
