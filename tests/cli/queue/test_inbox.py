"""Commands that receive and settle messages of an agent and deliveries of a stream."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from tests.cli.conftest import ok
from tests.server_process import environment


@pytest.mark.promise("SDK and command line", "`send`, `inbox` and `done` work")
def test_send_inbox_done(cli, stream):
    name = stream.replace("/", "-")
    done = cli("send", name, "hello", "--as", "sam", "--id", f"{name}-1")
    assert ok(done) == f"accepted {name}-1 in agents/{name}/inbox as seq 1\n", "a line for the state"
    assert "has never connected" in done.stderr
    done = cli("send", name, '{"n": 1}', "--type", "note", "--json")
    assert "connected before" not in done.stderr and "the message stays queued" in done.stderr
    sent = json.loads(ok(done))
    assert (sent["to"], sent["state"]) == (f"agents/{name}/inbox", "accepted")
    shown = ok(cli("inbox", "--as", name))
    assert "hello" in shown and "from sam" in shown and f"penstock done {sent['id']} --lease" in shown
    assert f" {name} (pull " in ok(cli("where", sent["id"])), "the agent holds it, not the operator"
    assert "done" in ok(cli("done", sent["id"], "--as", name))
    again = cli("done", sent["id"], "--as", name)
    assert again.returncode == 1 and again.stderr.startswith("error: AlreadyAcked:")
    assert json.loads(ok(cli("stats", "--stream", f"agents/{name}/inbox", "--json")))["inflight"] == 1


def test_inbox_acks_and_prints_json_lines(cli, stream):
    name = stream.replace("/", "-")
    for number in range(3):
        ok(cli("send", name, str(number)))
    rows = [json.loads(line) for line in ok(cli("inbox", "--as", name, "--ack", "--json")).splitlines()]
    assert [row["deliver"]["payload"] for row in rows] == [0, 1, 2]
    empty = cli("inbox", "--as", name, "--wait", "0.1")
    assert (empty.returncode, empty.stdout) == (0, "") and "nothing" in empty.stderr


def test_done_with_other_verbs(cli, stream):
    name = stream.replace("/", "-")
    sent = json.loads(ok(cli("send", name, "x", "--json")))
    row = json.loads(ok(cli("inbox", "--as", name, "--json")))
    ok(cli("done", sent["id"], "--lease", row["leaseId"], "--op", "extend", "--ms", "60000"))
    ok(cli("done", sent["id"], "--lease", row["leaseId"], "--op", "term", "--reason", "no"))
    dead = json.loads(ok(cli("peek", f"agents/{name}/inbox", "--state", "dead", "--json")))
    assert [entry["env"]["id"] for entry in dead["rows"]] == [sent["id"]]
    assert json.loads(ok(cli("redrive", f"agents/{name}/inbox", "--json")))["moved"] == 1


@pytest.mark.promise("SDK and command line", "`enqueue` and `subscribe` work")
def test_subscribe_prints_and_acks(cli, stream):
    for number in range(3):
        ok(cli("enqueue", "--to", stream, "--type", "t", "--payload", str(number)))
    ok(cli("subscribe", stream, "--max", "3"))
    rows = ok(cli("subscribe", "--stream", stream, "--max", "3", "--ack", "--json")).splitlines()
    assert [json.loads(row)["deliver"]["payload"] for row in rows] == [0, 1, 2]
    assert json.loads(ok(cli("stats", stream, "--json")))["depth"] == 0


def _subscriber(server, stream, tmp_path):
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "penstock.cli",
            "subscribe",
            stream,
            "--ack",
            "--json",
            "--url",
            server.control,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env=environment(),
    )


def test_ctrl_c_is_quiet(server, cli, stream, tmp_path):
    ok(cli("enqueue", "--to", stream, "--type", "t", "--payload", "1"))
    with _subscriber(server, stream, tmp_path) as child:
        assert child.stdout.readline()
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=20)
        assert (child.returncode, errors) == (130, b"")


def test_a_reader_that_leaves_is_no_error(server, cli, stream, tmp_path):
    ok(cli("enqueue", "--to", stream, "--type", "t", "--payload", "1"))
    with _subscriber(server, stream, tmp_path) as child:
        assert child.stdout.readline()
        child.stdout.close()
        ok(cli("enqueue", "--to", stream, "--type", "t", "--payload", "2"))
        errors = child.stderr.read()
        assert (child.wait(20), errors) == (0, b"")
