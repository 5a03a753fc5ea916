"""Every command as a user runs it, against a real server."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys

import pytest

from penstock.cli import main
from tests.server_process import environment


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


@pytest.mark.promise("SDK and command line", "`send`, `inbox`, `done`")
def test_send_inbox_done(cli, stream):
    name = stream.replace("/", "-")
    assert "never seen" in ok(cli("send", name, "hello", "--as", "sam"))
    sent = json.loads(ok(cli("send", name, '{"n": 1}', "--type", "note", "--json")))
    assert sent["to"] == f"agents/{name}/inbox"
    shown = ok(cli("inbox", "--as", name))
    assert "hello" in shown and "from sam" in shown and f"penstock done {sent['id']} --lease" in shown
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


@pytest.mark.promise("SDK and command line", "`enqueue`, `subscribe`")
def test_enqueue_from_arguments_files_and_stdin(cli, stream, tmp_path):
    one = ok(cli("enqueue", "--to", stream, "--type", "t", "--id", "one", "--payload", '{"n": 1}'))
    assert one == f"stored: one in {stream} as seq 1\n"
    (tmp_path / "many.json").write_text(
        json.dumps([{"id": f"a{n}", "type": "t", "payload": n} for n in range(3)], indent=1)
    )
    assert "stored 3" in ok(cli("enqueue", "--to", stream, "--file", "many.json"))
    lines = "\n".join(
        json.dumps({"id": f"l{n}", "to": stream, "type": "t", "payload": n}) for n in range(600)
    )
    assert "stored 600" in ok(cli("enqueue", "--file", "-", stdin=lines))
    assert json.loads(ok(cli("stats", stream, "--json")))["depth"] == 604
    bad = cli("enqueue", "--to", stream, "--file", "-", stdin='{"id":"x","type":"t","payload":1}\n{oops\n')
    assert bad.returncode == 1 and "error: InvalidJSON: line 2" in bad.stderr


@pytest.mark.promise("SDK and command line", "`stats`, `peek`, `where`")
def test_looking(cli, stream):
    ok(cli("enqueue", "--to", stream, "--type", "t", "--id", stream, "--payload", "hi [red]you"))
    (line,) = [line for line in ok(cli("stats")).splitlines() if line.startswith(f"{stream} ")]
    assert re.search(r" \d+s ago$", line.rstrip())
    assert "hi [red]you" in ok(cli("peek", stream))
    assert "ready" in ok(cli("where", stream))
    assert "not flowing" in ok(cli("explain", stream))
    assert json.loads(ok(cli("explain", stream, "--json")))["flowing"] is False
    for words in (["stats"], ["peek", stream], ["where", stream], ["explain", stream]):
        assert "\x1b" not in ok(cli(*words, FORCE_COLOR="1"))


@pytest.mark.promise("SDK and command line", "`enqueue`, `subscribe`")
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


@pytest.mark.promise("Ground", "one error table for HTTP, WebSocket, CLI and docs")
def test_refusals_have_a_code_a_message_and_a_hint(cli):
    done = cli("stats", "tests/nothing-here")
    assert (done.returncode, done.stdout) == (1, "")
    first, second = done.stderr.splitlines()
    assert first.startswith("error: UnknownStream: ") and second.startswith("hint: ")
    done = cli("stats", "tests/nothing-here", "--json")
    assert json.loads(done.stdout)["error"]["code"] == "UnknownStream" and done.returncode == 1


def test_nobody_there(cli):
    done = cli("stats", "--url", "tcp://127.0.0.1:1")
    assert done.returncode == 1 and done.stderr.startswith("error: Unreachable:")
    assert "nobody listens there" in done.stderr and "Errno" not in done.stderr


def test_the_http_port_taken_for_the_control_port_is_told_so(cli, server):
    done = cli("stats", "--url", server.http.replace("http://", "tcp://"))
    assert done.returncode == 1 and "`http://HOST:PORT`" in done.stderr


def test_no_dead_letters_to_redrive_is_said_in_these_words(cli, stream):
    ok(cli("enqueue", "--to", stream, "--type", "t", "--payload", "1"))
    done = cli("redrive", stream)
    assert done.returncode == 1 and "there are no dead letters" in done.stderr


@pytest.mark.parametrize(
    "words", [["stats", "--bogus"], ["nonsense"], ["done"], ["done", "x", "--op", "eat"]]
)
def test_wrong_usage_is_exit_2(cli, words):
    done = cli(*words)
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.startswith("error: Usage: ")
    assert json.loads(cli(*words, "--json").stdout)["error"]["code"] == "Usage"


def test_a_server_on_the_data_directory_is_found_with_its_token(server):
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli", "stats", "--json"],
        capture_output=True,
        text=True,
        cwd=server.folder,
        env=environment(),
        timeout=60,
        check=False,
    )
    assert "streams" in json.loads(ok(done))


@pytest.mark.promise(
    "SDK and command line", "`doctor`: what is wrong fails with exit code 3, and says the cure"
)
def test_doctor_finds_the_server(server):
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli", "doctor", "--json"],
        capture_output=True,
        text=True,
        cwd=server.folder,
        env=environment(),
        timeout=60,
        check=False,
    )
    report = json.loads(ok(done))
    found = {check["check"]: check for check in report["checks"]}
    assert report["ok"] and found["server"]["status"] == "ok" and found["http port"]["status"] == "ok"


def test_stdio_answers_and_ends_with_its_input(cli):
    hello = '{"type":"hello","version":"v1"}\n{"type":"ping","reqId":"p"}\n'
    answers = [json.loads(line) for line in ok(cli("stdio", stdin=hello)).splitlines()]
    assert [answer["reqId"] for answer in answers] == ["hello", "p"]


@pytest.mark.promise("Schemas, skills and seeing", "`schema.validate`, `/v1/schemas`, `penstock schema`")
def test_schemas_are_checked_without_a_server(cli, tmp_path):
    (tmp_path / "schemas/a").mkdir(parents=True)
    good = tmp_path / "schemas/a/b@v1.json"
    good.write_text('{"type": "integer"}')
    assert json.loads(ok(cli("schema", "check", "schemas", "--json")))["schemas"] == ["a/b@v1"]
    for payload, code in (("1", 0), ('"x"', 3)):
        envelope = f'{{\n"schema": "a/b@v1.7",\n"payload": {payload}}}\n'
        done = cli("schema", "validate", "-", "--dir", "schemas", "--json", stdin=envelope)
        assert (done.returncode, json.loads(done.stdout)["ok"]) == (code, code == 0)
    good.write_text("{")
    done = cli("schema", "check", "schemas")
    assert done.returncode == 3 and "problem: `a/b@v1.json` is not JSON" in done.stdout.replace("`:", "`")
    assert cli("schema", "validate", "no-such-file").stderr.startswith("error: InvalidRequest:")


def test_a_server_without_schemas_says_so(cli):
    assert json.loads(ok(cli("schema", "ls", "--json"))) == {"schemas": []}
    done = cli("schema", "validate", "-", stdin='{"schema": "a/b@v1", "payload": 1}\n')
    assert done.returncode == 1 and done.stderr.startswith("error: UnknownSchema:")


def test_a_rule_file_that_is_not_there_or_is_no_yaml_is_answered_with_the_cure(tmp_path, capsys):
    (tmp_path / "bad.yaml").write_text("{: :")
    for name in ("absent.yaml", "bad.yaml"):
        assert main(["trigger", "put", str(tmp_path / name)]) == 1
        assert "docs/how-to/triggers.md" in capsys.readouterr().err
