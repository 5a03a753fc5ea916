"""`penstock stdio` in process: what it refuses before it serves. `tests/integration/test_stdio.py` runs the process."""

from __future__ import annotations

import socket

import pytest

from penstock.client.address import parse
from penstock.core.errors import PenstockError
from penstock.server import stdio


def test_a_wrong_config_is_named_on_stderr(tmp_path, capsys):
    config = tmp_path / "config.yaml"
    config.write_text("limits: {links_max: many}\n")
    assert stdio.main(config) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("error: ") and "links_max" in captured.err


def test_a_server_that_does_not_listen_is_unreachable():
    with socket.socket() as taken:  # bound and not listening: the port refuses connections while this test runs
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(PenstockError) as caught:
            stdio.main(server=parse(f"tcp://127.0.0.1:{port}"))
    assert caught.value.code == "Unreachable" and str(port) in str(caught.value)
