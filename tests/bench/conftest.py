"""Runs `penstock bench` briefly: the run must succeed, account for everything and leave nothing behind. Nothing is timed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.server_process import environment

KEYS = {
    "schema", "bench", "startedAt", "machine", "versions", "options", "commands", "cells", "notes", "failures",
}  # fmt: skip


@pytest.fixture
def bench(tmp_path_factory):
    def run(*words, timeout=180):
        folder = tmp_path_factory.mktemp("b")  # short: paths of sockets are bounded
        done = subprocess.run(
            [sys.executable, "-m", "penstock", "bench", *words, "--json"],
            capture_output=True,
            text=True,
            env=environment(TMPDIR=str(folder)),
            timeout=timeout,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert list(folder.iterdir()) == [], "the run left files behind"
        found = json.loads(done.stdout)
        assert set(found) == KEYS and found["schema"] == "penstock.bench/1" and found["failures"] == []
        assert found["machine"]["cores"] >= 1 and "python" in found["versions"]
        return found

    return run
