"""The shipped topology is valid, and its commands work."""

from __future__ import annotations

import copy
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from penstock.kernel import topology_problems
from tests.paths import ROOT
from tests.server_process import environment

FILE = ROOT / "examples/mkolbol/topology.yml"
PATIENCE_S = 20.0


def document() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(FILE.read_text())
    return loaded


def node(id_: str) -> dict[str, Any]:
    (found,) = [one for one in document()["nodes"] if one["id"] == id_]
    return dict(found)


def reader_environment() -> dict[str, str]:
    """`penstock` is on the path, as the host needs it."""
    return environment(PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


def command(id_: str) -> list[str]:
    params = node(id_)["params"]
    return [params["command"], *params["args"]]


@pytest.mark.promise("Stream Kernel", "the shipped topology is valid, and its node does what the host needs")
def test_the_file_is_sound() -> None:
    assert topology_problems(document()) == []
    assert topology_problems({"topology": document()}) == [], "the wrapper is allowed"
    courier = node("courier")
    assert (courier["module"], courier["params"]["ioMode"]) == ("ExternalProcess", "stdio")
    assert command("courier") == ["penstock", "stdio"]


def changed(path: str, value: Any) -> dict[str, Any]:
    """The file with one value replaced, or removed by None."""
    whole = copy.deepcopy(document())
    *way, last = [int(word) if word.isdigit() else word for word in path.split("/")]
    place: Any = whole
    for word in way:
        place = place[word]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return whole


@pytest.mark.promise("Stream Kernel", "the shipped topology is valid, and its node does what the host needs")
@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("nodes", [], "nodes: expected"),
        ("nodes/1/id", "feed", "nodes[1].id: `feed` is also the id of nodes[0]"),
        ("nodes/0/id", "fe.ed", "nodes[0].id"),
        ("nodes/0/id", None, "nodes[0].id"),
        ("nodes/2/module", None, "nodes[2].module"),
        ("nodes/1/runMode", "thread", "nodes[1].runMode"),
        ("nodes/1/params", [], "nodes[1].params"),
        ("nodes/1/params/command", None, "nodes[1].params.command"),
        ("nodes/1/params/args", "stdio", "nodes[1].params.args"),
        ("nodes/1/params/args", [1], "nodes[1].params.args"),
        ("nodes/1/params/env", {"A": 1}, "nodes[1].params.env"),
        ("nodes/1/params/ioMode", "tty", "nodes[1].params.ioMode"),
        ("nodes/1/params/restart", "sometimes", "nodes[1].params.restart"),
        ("nodes/1/params/maxRestarts", -1, "nodes[1].params.maxRestarts"),
        ("nodes/1/params/comand", "x", "nodes[1].params.comand"),
        ("nodes/1/params/healthCheck/type", "tcp", "nodes[1].params.healthCheck.type"),
        ("nodes/1/params/healthCheck/command", None, "nodes[1].params.healthCheck.command"),
        ("nodes/1/params/healthCheck/retries", "3", "nodes[1].params.healthCheck.retries"),
        ("connections/0/to", "courier", "connections[0].to: expected `node.terminal`"),
        ("connections/0/to", "courier.input.more", "connections[0].to: expected `node.terminal`"),
        ("connections/0/to", ".input", "connections[0].to: expected `node.terminal`"),
        ("connections/1/from", "nobody.output", "connections[1].from: there is no node `nobody`"),
        ("connections/1/type", "fork", "connections[1].type"),
    ],
)
def test_each_rule_bites(path: str, value: Any, told: str) -> None:
    problems = topology_problems(changed(path, value))
    assert problems and problems[0].startswith(told), problems


@pytest.mark.parametrize("nothing", [None, [], "x", {"nodes": {}}, {"nodes": [1], "connections": 1}])
def test_what_is_no_topology_at_all(nothing: Any) -> None:
    assert topology_problems(nothing)


def test_the_health_check_passes() -> None:
    check = node("courier")["params"]["healthCheck"]
    words = shlex.split(check["command"])
    done = subprocess.run(words, env=reader_environment(), timeout=PATIENCE_S, check=False, capture_output=True)
    assert done.returncode == 0


@pytest.mark.promise("Stream Kernel", "the shipped topology is valid, and its node does what the host needs")
def test_the_nodes_joined_as_the_host_joins_them() -> None:
    """What the feed writes goes to the courier in chunks of no meaning; the end of the feed is the end of both."""
    fed = subprocess.run(command("feed"), cwd=FILE.parent, capture_output=True, timeout=PATIENCE_S, check=True).stdout
    courier = subprocess.Popen(
        command("courier"),
        env=reader_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    )
    assert courier.stdin and courier.stdout and courier.stderr
    try:
        for start in range(0, len(fed), 7):
            courier.stdin.write(fed[start : start + 7])
        courier.stdin.close()
        output = courier.stdout.read()
        said = [msgspec.json.decode(line) for line in output.splitlines()]
        assert courier.wait(PATIENCE_S) == 0
        assert courier.stderr.read() == b""
    finally:
        courier.kill()
        courier.wait()
        courier.stdout.close()
        courier.stderr.close()
    assert said[0]["reqId"] == "hello"
    assert [frame["env"]["id"] for frame in said if frame["type"] == "deliver"] == ["e-1", "e-2"]
    assert [frame["result"]["seq"] for frame in said if frame.get("reqId") == "enqueue"] == [1, 2]
    assert_console_shows_text(output)


def assert_console_shows_text(output: bytes) -> None:
    """The host's console shows a chunk as text only if it has at most 100 bytes, all of them printable."""
    reader = subprocess.Popen(
        command("readable"),
        cwd=FILE.parent,
        env=reader_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    )
    assert reader.stdin and reader.stdout
    with reader:
        reader.stdin.write(output)
        reader.stdin.write(b'{"type":"error","reqId":"r","code":"X","detail":"%b"}\n' % ("\u00e9" * 300).encode())
        reader.stdin.close()
        shown = reader.stdout.read().splitlines(keepends=True)
    assert reader.returncode == 0
    for line in shown:
        assert len(line) <= 100 and all(0x20 <= byte <= 0x7E for byte in line.rstrip(b"\n")), line
    assert b'e-2 to agents/jen/inbox: note {"text": "good morning"}\n' in shown
    assert shown[-1].startswith(b"r failed: X, ???")
