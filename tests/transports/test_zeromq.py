"""Sockets whose path is too long for the system get a short path that clients find; contexts end in a bounded time."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path

import pytest
import zmq

from penstock.transports import zeromq
from penstock.transports.zeromq import IPC_MAX, bind, short_ipc


@pytest.mark.promise("Benchmarks and robustness", "a socket whose path is too long gets a short path")
@pytest.mark.parametrize("depth", [0, 12])
def test_a_path_that_is_too_long_has_a_short_one_whatever_the_temporary_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    deep = Path(tempfile.mkdtemp(dir=tmp_path)).joinpath(*["directory"] * depth)
    deep.mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    path = tmp_path / ("x" * IPC_MAX)
    short = short_ipc(path)
    assert len(str(short)) <= IPC_MAX and short == short_ipc(path) != short_ipc(path / "y")
    context = zmq.Context()
    try:
        socket = context.socket(zmq.PULL)
        assert bind(socket, f"ipc://{path}", None) == f"ipc://{short}"
        assert short.stat().st_mode & 0o777 == 0o600
    finally:
        context.destroy(0)
        short.unlink(missing_ok=True)


def test_the_end_of_a_context_that_never_ends_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zeromq, "LINGER_MS", 1)
    context = zmq.Context()
    stuck = context.socket(zmq.PAIR)
    zeromq.end_context(context)
    (ending,) = [thread for thread in threading.enumerate() if thread.name == "zmq-term"]
    assert ending.is_alive()
    stuck.close(0)
    ending.join(10)
    assert not ending.is_alive()
