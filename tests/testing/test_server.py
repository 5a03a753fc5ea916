"""`penstock.testing.serve()`: a server in a test that leaves the test's process unchanged."""

from __future__ import annotations

import gc
import os
import threading
import time
from pathlib import Path

import pytest

import penstock
from penstock.core.errors import PenstockError
from penstock.core.limits import Limits
from penstock.server.files.yaml_tree import ConfigError
from penstock.testing import serve


@pytest.mark.promise(
    "SDK and command line", "`penstock.testing.serve()` runs a server in a test and leaves nothing behind"
)
def test_nothing_is_left_behind():
    before = (
        threading.active_count(),
        gc.get_threshold(),
        gc.get_freeze_count(),
        len(os.listdir("/proc/self/fd")),
    )
    with serve(spaces={"lab": ["ann"]}) as server:
        run_dir = server._service.run_dir
        with server.connect_sync("sam") as client:
            client.send("jen", 1)
        assert run_dir.exists()
    assert not run_dir.exists()
    after = (
        threading.active_count(),
        gc.get_threshold(),
        gc.get_freeze_count(),
        len(os.listdir("/proc/self/fd")),
    )
    assert after == before


def test_a_lease_that_a_test_leaves_behind_holds_nothing_up():
    with serve() as server, server.connect_sync("sam") as client:
        client.send("jen", 1)
        assert client.pull("agents/jen/inbox", renew=False)
        began = time.monotonic()
        server.close()
        assert time.monotonic() - began < Limits().drain_ms / 1000


@pytest.mark.promise(
    "SDK and command line", "`penstock.testing.serve()` runs a server in a test and leaves nothing behind"
)
def test_the_environment_and_files_around_do_not_count(monkeypatch, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("nonsense: true\n")
    monkeypatch.setenv("COURIER_CONFIG", str(file))
    monkeypatch.setenv("COURIER_PORT", "1")
    monkeypatch.chdir(tmp_path)
    with serve() as server, server.connect_sync() as client:
        client.ping()
    assert [path.name for path in Path(tmp_path).iterdir()] == ["config.yaml"]


@pytest.mark.promise(
    "SDK and command line", "`penstock.testing.serve()` runs a server in a test and leaves nothing behind"
)
def test_the_config_counts_and_two_servers_never_meet():
    with serve({"streams": {"maxDepth": 1}}) as small, serve() as other:
        with small.connect_sync() as client:
            client.enqueue("jobs", {"type": "job", "payload": 1})
            with pytest.raises(PenstockError) as caught:
                client.enqueue("jobs", {"type": "job", "payload": 2})
            assert caught.value.code == "StreamFull"
        with other.connect_sync() as client:
            assert client.pull("jobs") == []


def test_a_mistake_in_the_config_is_reported_and_leaves_no_thread():
    before = threading.active_count()
    with pytest.raises(ConfigError, match="maxDepht"):
        serve({"streams": {"maxDepht": 1}}).start()
    assert threading.active_count() == before


def test_tokens_and_the_operator():
    config = {"auth": {"tokens": [{"name": "t", "token": "sesame", "scopes": ["streams:*:*"]}]}}
    with serve(config) as server:
        with pytest.raises(PenstockError, match="Unauthorized"), server.connect_sync() as client:
            client.ping()
        for token in ("sesame", server.operator_token):
            with server.connect_sync(token=token) as client:
                client.ping()


def test_a_cut_loses_every_connection_and_everybody_comes_back():
    with serve() as server, server.connect_sync("sam") as client, client.inbox() as inbox:
        client.send("sam", 1)
        held = next(inbox)
        server.cut()
        assert client.send("sam", 2).seq == 2
        with pytest.raises(penstock.LeaseLost):
            held.ack()
        seen = set()
        while seen != {1, 2}:
            note = next(inbox)
            seen.add(note.payload)
            note.ack()


def test_what_is_not_there_says_how_to_get_it():
    with pytest.raises(PenstockError, match="with serve"):
        _ = serve().url
    with serve() as server, pytest.raises(PenstockError, match="relay=True"):
        _ = server.relay
