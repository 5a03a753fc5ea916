"""The real server, and commands as a user runs them, for the tests of this folder."""

import subprocess
import sys

import pytest

from tests.server_process import environment, server, start_server, stream

__all__ = ["server", "start_server", "stream"]


@pytest.fixture
def cli(server, tmp_path):
    def run(*words, stdin=None, url=True, **more):
        return subprocess.run(
            [sys.executable, "-m", "penstock.cli", *words],
            input=stdin,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment(**({"PENSTOCK_URL": server.control} if url else {}), **more),
            timeout=60,
            check=False,
        )

    return run


def ok(done):
    assert done.returncode == 0, done.stderr
    return done.stdout
