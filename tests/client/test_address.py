"""Finding the server's address, and which servers receive the operator token."""

from __future__ import annotations

import os

import msgspec
import pytest

from penstock.client import address
from penstock.core.errors import PenstockError


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("tcp://h:1", ("tcp", "tcp://h:1", "h", 1, "")),
        ("tcp://h", ("tcp", "tcp://h", "h", 9787, "")),
        ("tcp://[::1]:5", ("tcp", "tcp://[::1]:5", "::1", 5, "")),
        ("unix:/run/p", ("unix", "unix:/run/p", "", 0, "/run/p")),
        ("unix:///run/p", ("unix", "unix:/run/p", "", 0, "/run/p")),
        ("http://h:8787", ("ws", "ws://h:8787/v1/control", "", 0, "")),
        ("https://h/", ("ws", "wss://h/v1/control", "", 0, "")),
        ("ws://h/door", ("ws", "ws://h/door", "", 0, "")),
    ],
)
def test_urls(url, expected):
    assert tuple(address.parse(url)) == expected


@pytest.mark.parametrize("url", ["", "h:1", "ftp://h", "unix:", "tcp://", "tcp://h:port", "off"])
def test_what_is_no_url_is_refused(url):
    with pytest.raises(PenstockError) as caught:
        address.parse(url)
    assert caught.value.code == "InvalidRequest"


def _write(folder, data="penstock-data", **endpoints):
    run = folder / data / "run"
    run.mkdir(parents=True)
    file = run / "endpoints.json"
    file.write_bytes(msgspec.json.encode({"pid": os.getpid(), "version": "1", **endpoints}))
    return file


def test_discovery_goes_from_argument_to_environment_to_file_to_default(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert address.discover(None, {}) == address.DEFAULT_URL
    _write(tmp_path, control="unix:/s", http="http://h:1")
    assert address.discover(None, {}) == "unix:/s"
    assert address.discover(None, {"PENSTOCK_URL": "tcp://e:1"}) == "tcp://e:1"
    assert address.discover("tcp://a:1", {"PENSTOCK_URL": "tcp://e:1"}) == "tcp://a:1"


def test_what_only_http_has_is_found_behind_the_control_door_of_a_server_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert address.discover_http(None, {}) == address.DEFAULT_HTTP_URL
    assert address.discover_http(None, {"PENSTOCK_URL": "http://e:1"}) == "http://e:1"
    _write(tmp_path, control="unix:/s", http="http://h:1")
    assert address.discover_http(None, {}) == "http://h:1"
    assert address.discover_http(None, {"PENSTOCK_URL": "unix:/s"}) == "http://h:1"
    assert address.discover_http("http://a:1", {"PENSTOCK_URL": "unix:/s"}) == "http://a:1"
    assert address.discover_http("unix:/other", {}) == "unix:/other"  # refused where it is used


def test_without_a_control_door_http_is_used(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _write(tmp_path, control=None, http="http://h:1")
    assert address.discover(None, {}) == "http://h:1"


def test_the_file_of_a_dead_server_is_ignored(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    child = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(child, 0)
    _write(tmp_path, control="unix:/s", pid=child)
    assert address.discover(None, {}) == address.DEFAULT_URL


def test_the_operator_token_is_only_for_the_server_that_wrote_it(tmp_path):
    file = _write(tmp_path, control="tcp://127.0.0.1:1", http="http://127.0.0.1:2")
    assert address.operator_token("tcp://127.0.0.1:1", file) is None
    file.with_name("operator.token").write_text("secret\n")
    assert address.operator_token("tcp://127.0.0.1:1", file) == "secret"
    assert address.operator_token("http://127.0.0.1:2", file) == "secret"
    assert address.operator_token("tcp://elsewhere:1", file) is None


@pytest.mark.promise(
    "MEW gateway",
    "the gateway of a directory is found with its token, and its first page lists what it serves",
)
@pytest.mark.parametrize("data", ["penstock", ".mew/penstock"])
def test_a_gateway_that_was_started_here_is_found_with_its_token(tmp_path, monkeypatch, data):
    monkeypatch.chdir(tmp_path)
    _write(tmp_path, data, http="http://localhost:8080").with_name("operator.token").write_text("secret\n")
    assert address.discover_http(None, {}) == "http://localhost:8080"
    assert address.operator_token("http://localhost:8080") == "secret"
    assert address.operator_token("http://localhost:8081") is None
    assert address.discover(None, {}) == address.DEFAULT_URL  # Courier is not what a gateway is for
    _write(tmp_path, control=None, http="http://h:1")
    assert address.discover_http(None, {}) == "http://h:1"
