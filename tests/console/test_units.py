"""The console's own unit tests and type checks, run by its own tools if they are installed."""

import subprocess

import pytest

from tests.paths import ROOT

CONSOLE = ROOT / "console"

pytestmark = pytest.mark.usefixtures("console_tools")


def run(script: str) -> None:
    command = ["npm", "run", "--silent", script]
    done = subprocess.run(command, cwd=CONSOLE, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-8_000:] + done.stderr[-2_000:]


@pytest.mark.promise(
    "Console",
    "it shows only what the chain proves, in both formats and suites, and reports errors",
)
@pytest.mark.promise(
    "Console",
    "numbers equal `/metrics` exactly, rates survive restarts, history is bounded, conversations are trees, the tail pauses and counts what it missed, and an unreachable server gets one probe",
)
def test_the_console_unit_tests_pass() -> None:
    run("test")
