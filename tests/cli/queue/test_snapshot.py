"""`penstock snapshot`: the rows of a view as a table or JSON, and its changes."""

from __future__ import annotations

import msgspec
import pytest

from penstock.cli import main
from tests.integration.serving import Http


@pytest.fixture
def command(server, capsys):
    """Run a command on the server, in this process; what it printed."""

    def run(*words: str, code: int = 0) -> str:
        capsys.readouterr()
        assert main([*words, "--url", server.control]) == code
        return capsys.readouterr().out

    return run


@pytest.mark.promise("Views", "`client.live` and `penstock snapshot --live` continue across a restart")
def test_the_command_prints_and_follows_a_view(server, command):
    Http(server.http).enqueue("agents/shell/inbox", "a")
    words = ("snapshot", "--view", "latestPerAgent", "--addr", "agents/shell/*")
    found = msgspec.json.decode(command(*words, "--json"))
    assert found["rows"][0]["env"]["id"] == "a"
    assert "agents/shell/inbox" in command(*words)
    (line,) = command(*words, "--live", "--max", "1").splitlines()
    assert msgspec.json.decode(line).items() >= {"op": "add", "addr": "agents/shell/inbox"}.items()


def test_each_view_has_its_columns(server, command, stream):
    http = Http(server.http)
    http.enqueue(stream, "a", "b")
    [delivery] = http.pull(stream, max=1)
    header, line = command("snapshot", "--view", "inflight", "--addr", stream).splitlines()
    assert header.split() == ["lease", "id", "attempt", "holder", "leaseExpiresAt"]
    assert line.split()[0].startswith(stream) and line.split()[1:3] == ["a", "1"]
    http.settle("a", "ack", leaseId=delivery["leaseId"])
    header, line = command("snapshot", "--view", "metrics:streams", "--addr", stream).splitlines()
    assert header.split()[:4] == ["stream", "depth", "inflight", "delayed"]
    assert line.split()[:4] == [stream, "1", "0", "0"]
    assert command("snapshot", "--view", "views/metrics:streams", "--addr", stream).splitlines()[0] == header


def test_a_view_without_rows_says_so_on_stderr_and_json_stays_json(server, command, capsys):
    words = ["snapshot", "--addr", "agents/nobody-here/*", "--url", server.control]
    assert main(words) == 0
    shown = capsys.readouterr()
    assert shown.out == "" and "latestPerAgent has no rows" in shown.err
    assert msgspec.json.decode(command(*words[:3], "--json"))["rows"] == []


def test_following_prints_one_change_a_line_up_to_the_maximum(server, command):
    for name in ("x", "y", "z"):
        Http(server.http).enqueue(f"agents/follow-{name}/inbox", name)
    lines = command("snapshot", "--addr", "agents/follow-*", "--live", "--max", "2", "--json").splitlines()
    assert [msgspec.json.decode(line)["addr"] for line in lines] == ["agents/follow-x/inbox", "agents/follow-y/inbox"]
    assert command("snapshot", "--live", "--max", "0") == ""


def test_an_unknown_view_is_refused(server, command, capsys):
    assert main(["snapshot", "--view", "nope", "--url", server.control, "--json"]) == 1
    assert msgspec.json.decode(capsys.readouterr().out)["error"]["code"] == "UnknownView"
    command("snapshot", "--view", "nope", "--live", code=1)
