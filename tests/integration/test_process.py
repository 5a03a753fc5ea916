"""`penstock up` as a process: its files, exit codes, signals and authentication."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.integration.serving import PATIENCE_S, Http, connected, envelope, run, sockets, until
from tests.server_process import ServerProcess, environment
from tests.server_template import shared

DOORS = ("--no-relay", "--http", "127.0.0.1:0", "--control", "127.0.0.1:0", "--no-pipeline")
SEED_SAMPLE = """\
streams:
  defaultLeaseMs: 30000
  maxDepth: 100000
  perStreamCaps: { "agents/*": { maxDepth: 50000 } }
triggers:
  - { id: trig.jen.log.notify.architect, when: {type: sprint.log, from: agents/Jen/outbox}, do: [{action: notify, to: agents/architect/inbox}] }
auth:
  tokens:
    - { token: "dev-local", scopes: ["streams:*:enqueue","streams:*:subscribe","views:*:read"] }
"""


def up(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A start that is expected to fail, in a copy of a loaded process."""
    command = [f"{shared().command_folder()}/penstock", "up", *words]
    if "--data" not in words:
        command += ["--data", str(folder / "data")]
    return subprocess.run(
        command,
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


# Files


@pytest.mark.promise("Foundations", "`penstock up` starts a server and writes `run/endpoints.json`")
def test_endpoints_are_written_when_the_doors_are_open_and_removed_at_the_end(tmp_path):
    run_dir = tmp_path / "penstock-data" / "run"
    server = ServerProcess(tmp_path)
    try:
        # The first look that found the file found it whole, and both doors open.
        assert server.endpoints["pid"] == server.process.pid
        assert re.fullmatch(r"http://127\.0\.0\.1:[1-9]\d*", server.http)
        assert re.fullmatch(r"tcp://127\.0\.0\.1:[1-9]\d*", server.control)
        health = Http(server.http).get("/health").json
        assert health["version"] == server.endpoints["version"]
        with connected(server.control) as peer:
            peer.ping()
        assert sorted(path.name for path in run_dir.iterdir()) == ["endpoints.json", "operator.token"]
        until(lambda: "is up" in server.log(), "the doors are printed")
        assert server.http in server.log() and server.control in server.log()
    finally:
        code = server.stop()
    assert code == 0
    assert not (run_dir / "endpoints.json").exists()


def test_what_was_said_is_for_its_owner_only(start_server):
    server = start_server()
    Http(server.http).enqueue("jobs", "private")
    operator = Http(server.http, (server.data / "run" / "operator.token").read_text().strip())
    assert operator.post("/v1/journal/seal", None).json["sealedRows"] > 0
    for folder in (server.data, server.data / "journal", server.data / "lake", server.data / "run"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder


@pytest.mark.promise("Security", "operator routes need the operator token, and only its owner can read it")
def test_the_operator_token_is_for_its_owner_only(start_server):
    server = start_server()
    path = server.data / "run" / "operator.token"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    http = Http(server.http, path.read_text().strip())
    http.enqueue("jobs", "a")
    assert http.post("/v1/purge", {"stream": "jobs"}).json == {"purged": 1}


def test_without_data_a_temporary_folder_is_printed_and_taken_away(tmp_path):
    command = [sys.executable, "-m", "penstock.cli", "up", "--data", "none", *DOORS]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment(TMPDIR=str(tmp_path)), stdout=subprocess.PIPE, text=True
    )
    try:
        lines = iter(process.stdout.readline, "")
        folder = Path(next(line for line in lines if line.strip().startswith("run")).split()[1])
        assert folder.parent == tmp_path and stat.S_IMODE(folder.stat().st_mode) == 0o700
        endpoints = msgspec.json.decode((folder / "endpoints.json").read_bytes())
        assert Http(endpoints["http"]).get("/health").status == 200
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
        assert list(tmp_path.iterdir()) == []
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_as_json_the_doors_are_one_object(tmp_path):
    command = [sys.executable, "-m", "penstock.cli", "up", "--data", str(tmp_path), *DOORS, "--json"]
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE)
    try:
        printed = msgspec.json.decode(process.stdout.readline())
        written = msgspec.json.decode((tmp_path / "run" / "endpoints.json").read_bytes())
        assert {key: printed[key] for key in written} == written
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_crash_leaves_nothing_that_stops_the_next_start(tmp_path):
    path = tmp_path / "c.sock"
    first = ServerProcess(tmp_path, "--control", f"unix:{path}")
    token = (first.data / "run" / "operator.token").read_text()
    first.kill()
    assert path.is_socket() and (first.data / "run" / "endpoints.json").exists()
    # The fixture would take the stale file for the new one, so it goes by its pid instead.
    command = [
        sys.executable,
        "-m",
        "penstock.cli",
        "up",
        "--no-pipeline",
        "--no-relay",
        "--data",
        str(first.data),
    ]
    command += ["--http", "127.0.0.1:0"]
    second = subprocess.Popen(
        [*command, "--control", f"unix:{path}"],
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:

        def endpoints():
            found = msgspec.json.decode((first.data / "run" / "endpoints.json").read_bytes())
            return found if found["pid"] == second.pid else None

        found = until(endpoints, "the new endpoints")
        assert Http(found["http"]).get("/health").status == 200
        with connected(found["control"]) as peer:
            peer.ping()
        assert (first.data / "run" / "operator.token").read_text() != token
        second.terminate()
        assert second.wait(PATIENCE_S) == 0
    finally:
        second.kill()
        second.wait()


def test_on_a_terminal_no_progress_bar_outlives_the_reading_of_the_journal(tmp_path):
    """A journal without a segment once left its bar on the screen, drawn again over every log line."""
    for start in ("a new journal", "one that was closed"):
        ours, theirs = os.openpty()
        command = [sys.executable, "-m", "penstock.cli", "up", "--data", str(tmp_path / "data"), *DOORS]
        with subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=theirs, stderr=theirs) as server:
            os.close(theirs)
            shown = b""
            while b"  run  " not in shown:
                shown += os.read(ours, 4096)
            server.terminate()
            with contextlib.suppress(OSError):  # EIO: the terminal is gone
                while part := os.read(ours, 4096):
                    shown += part
            assert server.wait(PATIENCE_S) == 0
        os.close(ours)
        after = shown.partition(b"is up")[2]
        assert b"server.stop" in after and b"reading the journal" not in after, start


# Starts that fail


def test_a_port_in_use_is_an_error_with_a_hint_and_leaves_the_other_server_alone(start_server):
    server = start_server()
    token = (server.data / "run" / "operator.token").read_text().strip()
    for words in (
        ("--http", server.http.removeprefix("http://"), "--control", "off"),
        ("--http", "127.0.0.1:0", "--control", server.control.removeprefix("tcp://")),
    ):
        done = up(server.folder, "--data", str(server.folder / "other"), *words)
        assert done.returncode == 1
        assert "hint: another program listens there" in done.stderr and "Traceback" not in done.stderr
        assert "`--http " in done.stderr and "`--control " in done.stderr and "Errno" not in done.stderr
        assert "is up" not in done.stdout
    done = up(server.folder, "--data", str(server.data), "--http", "127.0.0.1:0", "--control", "off")
    assert done.returncode == 1
    assert "another process writes" in done.stderr and "hint: stop it" in done.stderr
    # The same data, the same token, still there for the command line.
    assert (server.data / "run" / "operator.token").read_text().strip() == token
    assert Http(server.http, token).get("/v1/metrics").status == 200
    assert msgspec.json.decode((server.data / "run" / "endpoints.json").read_bytes())["pid"] == server.process.pid


def test_a_unix_socket_in_use_is_not_taken_over(tmp_path, start_server):
    path = tmp_path / "c.sock"
    server = start_server("--control", f"unix:{path}")
    done = up(tmp_path, "--http", "127.0.0.1:0", "--control", f"unix:{path}")
    assert done.returncode == 1 and "already" in done.stderr
    with connected(server.control) as peer:
        peer.ping()


def test_a_wrong_config_lists_every_problem(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(
        "streams: {maxDept: 5, defaultLeaseMs: soon}\n"
        "listen: {http: nowhere}\n"
        'auth: {tokens: [{token: t, scopes: ["streams:*:eat"]}]}\n'
        "limits: {batch_max: 0}\n"
    )
    done = up(tmp_path, "--config", str(config), *DOORS)
    assert done.returncode == 2 and done.stdout == ""
    for words in (
        ["maxDept", "maxDepth"],
        ["defaultLeaseMs"],
        ["listen.http"],
        ["scopes", "eat"],
        ["batch_max"],
    ):
        assert any(all(word in line for word in words) for line in done.stderr.splitlines()), (
            words,
            done.stderr,
        )
    *problems, hint = done.stderr.splitlines()
    assert all(line.startswith("error: ") for line in problems) and hint.startswith("hint: ")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("--config", "absent.yaml"),
        ("--http", "nowhere"),
        ("--http", "127.0.0.1:99999"),
        ("--control", "unix:"),
        ("--log-level", "loud"),
        ("--nonsense",),
    ],
)
def test_wrong_words_are_a_usage_error(tmp_path, words):
    done = up(tmp_path, *words)
    assert done.returncode == 2
    assert "error" in done.stderr.lower() and "Traceback" not in done.stderr


@pytest.mark.promise("Security", "anonymous access works on loopback only")
@pytest.mark.parametrize("words", [("--http", "0.0.0.0:0"), ("--http", "127.0.0.1:0", "--control", "0.0.0.0:0")])
def test_strangers_are_not_served_by_accident(tmp_path, words):
    done = up(tmp_path, *words)
    assert done.returncode == 2
    assert "auth.tokens" in done.stderr and "allowAnonymous" in done.stderr


def test_with_tokens_every_address_may_be_served(start_server):
    config = 'auth: {tokens: [{token: t, scopes: ["streams:*:*"]}]}'
    server = start_server("--http", "0.0.0.0:0", config=config)
    port = server.http.rpartition(":")[2]
    url = f"http://127.0.0.1:{port}"
    assert Http(url).get("/v1/metrics").status == 401
    # With tokens the Host may be any name: a proxy has its own.
    assert Http(url, "t").get("/v1/metrics", headers={"Host": "queue.example"}).status == 200


def test_localhost_is_both_loopback_addresses(start_server):
    server = start_server("--http", "localhost:0")
    assert server.http.startswith("http://localhost:")
    port = int(server.http.rpartition(":")[2])
    served = []
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with contextlib.closing(socket.socket(family)) as probe:
            probe.settimeout(PATIENCE_S)
            probe.connect((host, port))
            probe.sendall(b"GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n")
            served.append(probe.recv(15))
    assert served in ([b"HTTP/1.0 200 OK"] * 2, [b"HTTP/1.1 200 OK"] * 2)


# The end


@pytest.mark.promise("Foundations", "a stopping server drains")
def test_a_drain_lets_leases_settle_and_takes_nothing_new(start_server):
    server = start_server(config="limits: {drain_ms: 60000}")
    http = Http(server.http)
    http.enqueue("jobs", "a", "b", "c")
    (pulled,) = http.pull("jobs")

    async def go():
        async with sockets(server.http) as ways:
            peer = await ways.subscribe("jobs", "credit=1&confirm=1")
            await peer.deliveries(1)
            server.process.terminate()
            until(lambda: http.get("/health").status == 503, "the drain begins")
            health = http.get("/health")
            assert (health.json["ok"], health.json["status"]) == (False, "draining")
            assert health.headers["Retry-After"]
            refused = http.post("/v1/enqueue", {"to": "jobs", "envelope": envelope("d")})
            assert (refused.status, refused.code) == (503, "Draining") and refused.headers["Retry-After"]
            assert http.post("/v1/pull", {"stream": "jobs"}).code == "Draining"
            # Nothing more is delivered, but what is held may be settled and looked at.
            await peer.say({"credit": 5}, {"ack": "b"})
            assert (await peer.read())["settled"] == "b"
            assert http.stats("jobs")["depth"] == 1
            assert server.process.poll() is None
            assert http.settle("a", "ack", leaseId=pulled["leaseId"]).json["settled"] is True
            error = await peer.error()
            assert error["code"] == "Draining"
            assert await peer.closed() == 1001

    run(go())
    assert server.process.wait(PATIENCE_S) == 0
    server.stop()
    assert logged(server, "server.stop") == [{"abandoned": 0}]


def logged(server: ServerProcess, event: str) -> list[dict]:
    """The fields of every such event in the log."""
    rows = [msgspec.json.decode(line) for line in server.log().splitlines() if line.startswith("{")]
    return [
        {key: value for key, value in row.items() if key not in ("ts", "level", "event")}
        for row in rows
        if row["event"] == event
    ]


def test_leases_unsettled_at_the_drain_limit_are_abandoned(start_server):
    server = start_server(config="limits: {drain_ms: 300}")
    http = Http(server.http)
    http.enqueue("jobs", "a", "b")
    http.pull("jobs", max=2)
    server.process.terminate()
    assert server.process.wait(PATIENCE_S) == 0
    server.stop()
    assert logged(server, "server.drain") == [{"leased": 2}]
    assert logged(server, "server.stop") == [{"abandoned": 2}]


@pytest.mark.promise("Foundations", "a stopping server drains")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_it_at_once(start_server, number):
    server = start_server(config="limits: {drain_ms: 600000}")
    http = Http(server.http)
    http.enqueue("jobs", "a")
    http.pull("jobs")
    server.process.send_signal(number)
    until(lambda: http.get("/health").status == 503, "the drain begins")
    server.process.send_signal(number)
    assert server.process.wait(PATIENCE_S) == 1
    server.stop()
    assert logged(server, "server.exit")


def test_a_signal_with_the_first_light_drains_too(tmp_path):
    """A process that waits for the endpoints may stop the server as soon as they appear."""
    for _ in range(3):
        server = ServerProcess(tmp_path)
        assert server.stop() == 0
        assert not (server.data / "run" / "endpoints.json").exists()


def test_a_waiting_pull_is_answered_when_the_server_stops(start_server):
    server = start_server()
    http = Http(server.http)
    with connected(server.http.replace("http:", "tcp:")) as connection:
        body = b'{"stream":"jobs","wait_ms":60000}'
        connection.write(
            b"POST /v1/pull HTTP/1.1\r\nHost: %b\r\nContent-Length: %d\r\n\r\n%b"
            % (http.host.encode(), len(body), body)
        )
        until(lambda: http.get("/v1/stats", stream="jobs").json.get("consumers"), "the pull waits")
        server.process.terminate()
        answer = connection.rest()
    assert answer.startswith((b"HTTP/1.1 200", b"HTTP/1.1 503")), answer
    assert server.process.wait(PATIENCE_S) == 0
    server.stop()


# Who may do what


TOKENS = """\
auth:
  tokens:
    - {token: give-7f3a, name: giver, scopes: ["streams:jobs/*:enqueue"]}
    - {token: take-7f3a, name: taker, scopes: ["streams:jobs/*:subscribe"]}
    - {token: look-7f3a, name: looker, scopes: ["streams:jobs/*:read"]}
    - {token: rule-7f3a, name: ruler, scopes: ["admin:*"]}
    - {token: sam-7f3a, agent: sam, scopes: ["streams:*:*"]}
"""
HOLDERS = {"nobody": None, "stranger": "guess-7f3a", "giver": "give-7f3a", "taker": "take-7f3a"}
HOLDERS |= {"looker": "look-7f3a", "ruler": "rule-7f3a"}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    process = ServerProcess(tmp_path_factory.mktemp("guarded"), "--log-level", "debug", config=TOKENS)
    Http(process.http, "rule-7f3a").enqueue("jobs/1", "a")
    yield process
    process.kill()


REQUESTS = {
    "enqueue": ("POST", "/v1/enqueue", {"to": "jobs/1", "envelope": envelope("a", "a")}, "giver"),
    "send": ("POST", "/v1/send", {"to": "jobs/1", "type": "t", "payload": 1, "id": "s"}, "giver"),
    "pull": ("POST", "/v1/pull", {"stream": "jobs/2"}, "taker"),
    "settle": ("POST", "/v1/settle", {"id": "a", "op": "ack", "stream": "jobs/1"}, "taker"),
    "stats": ("GET", "/v1/stats?stream=jobs/1", None, "looker"),
    "peek": ("GET", "/v1/peek?stream=jobs/1", None, "looker"),
    "explain": ("GET", "/v1/streams/jobs/1/explain", None, "looker"),
    "redrive": ("POST", "/v1/redrive", {"stream": "jobs/1"}, None),
    "purge": ("POST", "/v1/purge", {"stream": "jobs/9"}, None),
}


@pytest.mark.promise("Security", "tokens have scopes and are stored as hashes")
@pytest.mark.parametrize("name", REQUESTS)
def test_each_scope_opens_its_own_routes(guarded, name):
    method, path, body, allowed = REQUESTS[name]
    for holder, token in HOLDERS.items():
        answer = Http(guarded.http, token).ask(method, path, body)
        if token is None or holder == "stranger":
            assert (answer.status, answer.code) == (401, "Unauthorized"), holder
        elif holder in (allowed, "ruler"):
            assert answer.status not in (401, 403), (holder, answer)
        else:
            assert (answer.status, answer.code) == (403, "Forbidden"), (holder, answer)


def test_another_stream_needs_another_scope(guarded):
    answer = Http(guarded.http, "give-7f3a").post("/v1/enqueue", {"to": "other", "envelope": envelope("a")})
    assert (answer.status, answer.error["ref"]) == (403, "streams:other:enqueue")


def test_lists_show_only_what_the_token_may_read(guarded):
    Http(guarded.http, "rule-7f3a").enqueue("private", "only-private")
    looker, giver = Http(guarded.http, "look-7f3a"), Http(guarded.http, "give-7f3a")
    assert set(looker.counters()) == {name for name in looker.counters() if name.startswith("jobs/")} != set()
    assert giver.counters() == {}
    assert b"private" not in looker.get("/metrics", streams=1).body
    assert looker.get("/v1/envelopes/only-private").code == "UnknownEnvelope"
    assert Http(guarded.http, "rule-7f3a").get("/v1/envelopes/only-private").status == 200


def test_open_routes_need_no_token(guarded):
    for path in ("/health", "/openapi.json", "/"):
        assert Http(guarded.http).get(path).status == 200


@pytest.mark.promise("Security", "a token can carry an agent's identity")
def test_an_agents_token_fills_and_verifies_from(guarded):
    sam = Http(guarded.http, "sam-7f3a")
    sam.post("/v1/enqueue", {"to": "box", "envelope": envelope("filled")})
    sam.post("/v1/enqueue", {"to": "box", "envelope": envelope("own", **{"from": "agents/sam/outbox"})})
    sam.post("/v1/send", {"to": "box/x", "type": "t", "payload": 1})
    for body in (
        {"to": "box", "envelope": envelope("forged", **{"from": "kim"})},
        {"to": "box", "envelope": envelope("forged", **{"from": "agents/samuel/outbox"})},
    ):
        refused = sam.post("/v1/enqueue", body)
        assert (refused.status, refused.code) == (403, "Forbidden")
    forged = sam.post("/v1/send", {"to": "box/x", "type": "t", "payload": 1, "from": "kim"})
    assert forged.status == 403
    assert [one["deliver"]["from"] for one in sam.pull("box", max=9)] == ["sam", "agents/sam/outbox"]
    assert [one["deliver"]["from"] for one in sam.pull("box/x", max=9)] == ["sam"]


def test_a_lease_of_one_holder_is_not_settled_by_another(guarded):
    ruler, taker = Http(guarded.http, "rule-7f3a"), Http(guarded.http, "take-7f3a")
    ruler.enqueue("jobs/lease", "mine")
    (delivery,) = taker.pull("jobs/lease")
    answer = Http(guarded.http, "sam-7f3a").settle("mine", "ack", leaseId=delivery["leaseId"])
    assert (answer.status, answer.code) == (409, "NotLeaseHolder")
    assert taker.settle("mine", "ack", leaseId=delivery["leaseId"]).status == 200


@pytest.mark.promise("Foundations", "logs are structured and never contain a token")
def test_no_token_is_ever_logged(guarded):
    """Every way to show a token, right or wrong, at the level that says most."""

    async def go():
        async with sockets(guarded.http) as ways:
            for token in ("take-7f3a", "guess-7f3a"):
                await ways.refused("/v1/subscribe?stream=:", headers={"Authorization": f"Bearer {token}"})
                await ways.refused(f"/v1/subscribe?stream=jobs/1&access_token={token}")
                peer = await ways.subscribe("jobs/1", "softAuth=1", protocols=(f"bearer.{token}",))
                await peer.ws.close()

    run(go())
    for token in ("sam-7f3a", "guess-7f3a"):
        with connected(guarded.control) as peer:
            peer.say({"type": "hello", "version": "v1", "token": token})
            peer.frame()
            peer.say({"type": "hello", "token": token, "version": token})
            peer.rest()
    http = Http(guarded.http, "give-7f3a")
    http.enqueue("jobs/log", "logged")
    http.get("/v1/stat", headers={"Cookie": "session=give-7f3a"})
    log = until(lambda: "logged" in guarded.log() and guarded.log(), "the enqueue is in the log")
    operator = (guarded.data / "run" / "operator.token").read_text().strip()
    # The link to the console is printed once for the user that started the server; the log never has it.
    assert "7f3a" not in log and log.count(operator) == log.count(f"/#token={operator}\n") <= 1
    assert '"who":"taker"' in log  # names are, so that a line can be traced


def test_a_token_may_come_from_the_environment(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text('auth: {tokens: [{token: "env:QUEUE_TOKEN", scopes: ["streams:*:read"]}]}')
    assert "QUEUE_TOKEN" in up(tmp_path, "--config", str(config), *DOORS).stderr
    command = [
        sys.executable,
        "-m",
        "penstock.cli",
        "up",
        "--data",
        "none",
        "--config",
        str(config),
        *DOORS,
        "--json",
    ]
    env = environment(QUEUE_TOKEN="from-outside", TMPDIR=str(tmp_path))
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE)
    try:
        url = msgspec.json.decode(process.stdout.readline())["http"]
        assert Http(url, "from-outside").get("/v1/metrics").status == 200
        assert Http(url, "env:QUEUE_TOKEN").get("/v1/metrics").status == 401
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.promise("Foundations", "the sample config of the design document loads unchanged")
def test_the_sample_of_the_document_starts_a_server(start_server):
    server = start_server(config=SEED_SAMPLE)
    assert Http(server.http).post("/v1/enqueue", {}).status == 401
    http = Http(server.http, "dev-local")
    http.enqueue("agents/Jen/inbox", "a")
    assert len(http.pull("agents/Jen/inbox")) == 1
    assert http.settle("a", "ack", stream="agents/Jen/inbox").status == 200
