"""The real server, and commands as a user runs them, for the tests of this folder."""

import pytest

from tests.server_process import environment, server, start_server, stream
from tests.server_template import run_command

__all__ = ["server", "start_server", "stream"]


@pytest.fixture
def cli(server, tmp_path):
    def run(*words, stdin=None, url=True, **more):
        env = environment(**({"PENSTOCK_URL": server.control} if url else {}), **more)
        return run_command([*map(str, words)], tmp_path, env, stdin, timeout=60)

    return run


def ok(done):
    assert done.returncode == 0, done.stderr
    return done.stdout
