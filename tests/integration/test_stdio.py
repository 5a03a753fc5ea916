"""`penstock stdio`: a queue on the pipes of a child process."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import msgspec
import pytest

from tests.integration.serving import PATIENCE_S, encode, envelope
from tests.server_process import environment
from tests.server_template import shared

FRESH = [sys.executable, "-m", "penstock.cli", "stdio"]
"""The command as a person runs it."""


def command(*words: str) -> list[str]:
    """The same in a copy of a loaded process, which costs a fraction of the time."""
    return [f"{shared().command_folder()}/penstock", "stdio", *words]


@contextmanager
def child(*words: str, **env: str):
    process = subprocess.Popen(
        command(*words),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(**env),
        bufsize=0,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            pipe.close()


def exchange(data: bytes, **env: str) -> tuple[int, list[dict], bytes]:
    """The exit code, the frames and the log of a child that receives all input at once."""
    done = subprocess.run(
        command(), input=data, capture_output=True, timeout=PATIENCE_S, env=environment(**env), check=False
    )
    assert done.stdout == b"" or done.stdout.endswith(b"\n")
    return done.returncode, [msgspec.json.decode(line) for line in done.stdout.splitlines()], done.stderr


def lines(*frames: dict) -> bytes:
    return b"".join(encode(frame) + b"\n" for frame in frames)


@pytest.mark.promise("Queue protocols", "Control v1 works over TCP, Unix socket, stdio and WebSocket")
def test_a_conversation():
    with child() as process:

        def say(*frames):
            process.stdin.write(lines(*frames))

        def read():
            return msgspec.json.decode(process.stdout.readline())

        say({"type": "hello", "version": "v1"})
        hello = read()
        assert (hello["reqId"], hello["result"]["version"]) == ("hello", "v1")
        say({"type": "subscribe", "stream": "jobs", "credit": 2})
        say({"type": "enqueue", "to": "jobs", "env": envelope("a")})
        frames = [read(), read()]
        assert {"type": "ok", "reqId": "enqueue", "result": {"id": "a", "seq": 1}} in frames
        (delivery,) = [frame for frame in frames if frame["type"] == "deliver"]
        assert (delivery["env"]["id"], delivery["attempt"]) == ("a", 1)
        say({"type": "nack", "id": "a"})
        assert read()["attempt"] == 2
        say({"type": "ack", "id": "a", "reqId": 9})
        assert read() == {"type": "ok", "reqId": 9, "result": {"id": "a"}}
        say({"type": "eat"})
        assert read()["code"] == "UnknownOp"
        process.stdin.close()
        assert process.stdout.readline() == b""
        assert process.wait(PATIENCE_S) == 0
        assert process.stderr.read() == b""


def test_everything_asked_before_the_end_is_answered():
    count = 5000
    data = lines(*({"type": "enqueue", "to": "jobs", "env": envelope(str(n)), "reqId": n} for n in range(count)))
    code, frames, _ = exchange(data + lines({"type": "stats", "stream": "jobs", "reqId": "last"}))
    assert code == 0
    assert [frame["reqId"] for frame in frames] == [*range(count), "last"]
    assert [frame["result"]["seq"] for frame in frames[:-1]] == list(range(1, count + 1))
    assert frames[-1]["result"]["depth"] == count


def test_an_end_without_a_word_is_an_end():
    assert exchange(b"") == (0, [], b"")


def test_half_a_line_at_the_end_is_no_line():
    code, frames, _ = exchange(lines({"type": "ping", "reqId": 1}) + b'{"type":"ping","reqId":2')
    assert (code, [frame["reqId"] for frame in frames]) == (0, [1])


def test_chunks_may_be_cut_anywhere():
    data = lines(
        {"type": "hello", "version": "v1"},
        {"type": "enqueue", "to": "jobs", "env": envelope("é", {"text": "zwölf €\n"}), "reqId": 1},
    )
    with child() as process:
        for byte in data + lines({"type": "peek", "stream": "jobs", "reqId": 2}):
            process.stdin.write(bytes([byte]))
        process.stdin.close()
        frames = [msgspec.json.decode(line) for line in process.stdout]
        assert process.wait(PATIENCE_S) == 0
    assert [frame["reqId"] for frame in frames] == ["hello", 1, 2]
    assert frames[2]["result"]["rows"][0]["env"]["payload"] == {"text": "zwölf €\n"}


def test_several_lines_in_one_chunk_without_waiting():
    """Chunk boundaries mean nothing: whatever is piped in may arrive as one piece."""
    code, frames, _ = exchange(
        lines(
            {"type": "subscribe", "stream": "jobs"},
            {"type": "enqueue", "to": "jobs", "env": envelope("a")},
            {"type": "grant", "n": 1},
        )
    )
    assert code == 0
    assert sorted(frame["type"] for frame in frames) == ["deliver", "ok"]


def test_a_waiting_pull_does_not_keep_the_process_alive():
    code, frames, _ = exchange(lines({"type": "pull", "stream": "jobs", "waitMs": 60_000, "reqId": 1}))
    assert code == 0
    assert frames == [] or frames[0]["reqId"] == 1


def test_stdout_holds_frames_only_and_logs_go_to_stderr(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("logs: {level: debug, format: json}\nstreams: {defaultLeaseMs: 1000}\n")
    with child(COURIER_CONFIG=str(config)) as process:
        process.stdin.write(
            lines(
                {"type": "enqueue", "to": "jobs", "env": envelope("a")},
                {"type": "subscribe", "stream": "jobs", "credit": 2},
            )
        )
        first = [msgspec.json.decode(process.stdout.readline())["type"] for _ in range(2)]
        assert sorted(first) == ["deliver", "ok"]
        again = msgspec.json.decode(process.stdout.readline())  # the config counts: the lease was short
        assert again["attempt"] == 2
        process.stdin.close()
        assert process.stdout.read() == b""
        assert process.wait(PATIENCE_S) == 0
        for line in process.stderr.read().splitlines():
            assert "event" in msgspec.json.decode(line)


def test_a_wrong_config_is_a_usage_error_on_stderr(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("stream: {}\n")
    code, frames, stderr = exchange(b"", COURIER_CONFIG=str(config))
    assert (code, frames) == (2, [])
    assert b"stream" in stderr and b"Traceback" not in stderr


def test_a_reader_that_goes_away_ends_the_process():
    with child() as process:
        process.stdin.write(lines({"type": "ping", "reqId": 1}))
        assert process.stdout.readline()
        process.stdout.close()  # stdin stays open
        assert process.wait(PATIENCE_S) == 0
        assert process.stderr.read() == b""


def test_a_reader_that_is_slow_is_waited_for():
    """Unread answers stop the reading of requests; nothing is lost and no peer is disconnected."""
    text = "x" * 200_000
    count = 150  # of answers: more than any bound of an outbox

    with child() as process:
        process.stdin.write(lines({"type": "enqueue", "to": "jobs", "env": envelope("a", text), "reqId": "in"}))
        assert b'"seq":1' in process.stdout.readline()
        asked = threading.Event()

        def ask():
            for number in range(count):
                process.stdin.write(lines({"type": "peek", "stream": "jobs", "reqId": number, "pad": text}))
            process.stdin.close()
            asked.set()

        asking = threading.Thread(target=ask)
        asking.start()
        assert not asked.wait(1.0), "questions were read although no answer was taken"
        with io.BufferedReader(process.stdout) as answers:
            frames = [msgspec.json.decode(line) for line in answers]
        asking.join()
        assert [frame["reqId"] for frame in frames] == list(range(count))
        assert process.wait(PATIENCE_S) == 0


def test_files_will_do_for_pipes(tmp_path):
    asked, answered = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    asked.write_bytes(lines(*({"type": "ping", "reqId": number} for number in range(1000))))
    with asked.open("rb") as stdin, answered.open("wb") as stdout:
        done = subprocess.run(FRESH, stdin=stdin, stdout=stdout, timeout=PATIENCE_S, env=environment(), check=False)
    frames = [msgspec.json.decode(line) for line in answered.read_bytes().splitlines()]
    assert (done.returncode, [frame["reqId"] for frame in frames]) == (0, list(range(1000)))


def test_no_input_at_all_is_an_end():
    done = subprocess.run(
        command(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=PATIENCE_S,
        env=environment(),
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


# With a server


@pytest.mark.promise("Stream Kernel", "a topology node reaches the journal of a running server")
def test_a_node_joins_a_running_server(server, http, stream):
    with child("--server", server.control) as process:
        process.stdin.write(
            lines(
                {"type": "subscribe", "stream": stream, "credit": 1},
                {"type": "enqueue", "to": stream, "env": envelope("a"), "reqId": 1},
                {"type": "stats", "stream": stream, "reqId": 2},
            )
        )
        frames = [msgspec.json.decode(process.stdout.readline()) for _ in range(3)]
        assert sorted(frame["type"] for frame in frames) == ["deliver", "ok", "ok"]
        assert http.stats(stream)["inflight"] == 1
        process.stdin.write(lines({"type": "ack", "id": "a"}) + b'{"type":"ping","reqId":"half')
        process.stdin.close()
        assert process.stdout.read() == b""
        assert process.wait(PATIENCE_S) == 0
        assert process.stderr.read() == b""
    deadline = time.monotonic() + PATIENCE_S
    # An ack has no answer, and other tests use the id in their own streams.
    while "acked" not in [each.get("outcome") for each in _places(http, stream)]:
        assert time.monotonic() < deadline, "the ack did not arrive"
    assert http.stats(stream)["inflight"] == 0


def _places(http, stream):
    return [each for each in http.get("/v1/envelopes/a").json["places"] if each["stream"] == stream]


def test_much_is_carried_at_the_speed_of_the_reader(server, stream):
    count, text = 100, "x" * 100_000
    with child("--server", server.control) as process:
        process.stdin.write(lines({"type": "enqueue", "to": stream, "env": envelope("a", text)}))
        assert b'"seq":1' in process.stdout.readline()

        def ask():
            for number in range(count):
                process.stdin.write(lines({"type": "peek", "stream": stream, "reqId": number, "pad": text}))
            process.stdin.close()

        asking = threading.Thread(target=ask)
        asking.start()
        with io.BufferedReader(process.stdout) as answers:
            frames = [msgspec.json.decode(line) for line in answers]
        asking.join()
        assert [frame["reqId"] for frame in frames] == list(range(count))
        assert process.wait(PATIENCE_S) == 0


def test_a_token_is_needed_where_the_server_wants_one(start_server):
    token = "a-token-of-a-node-of-a-topology"
    server = start_server(config=f"auth: {{tokens: [{{token: {token}, scopes: ['streams:*:*']}}]}}")
    question = lines({"type": "enqueue", "to": "jobs", "env": envelope("a"), "reqId": 1})
    for env, kind in (({}, "error"), ({"PENSTOCK_TOKEN": token}, "ok")):
        with child("--server", server.control, **env) as process:
            process.stdin.write(question)
            assert msgspec.json.decode(process.stdout.readline())["type"] == kind


def test_a_server_that_is_gone_ends_the_node(start_server):
    server = start_server()
    with child("--server", server.control) as process:
        process.stdin.write(lines({"type": "ping", "reqId": 1}))
        assert process.stdout.readline()
        server.kill()
        assert process.wait(PATIENCE_S) == 1
        assert process.stderr.read().startswith(b"error: Unreachable")
    done = subprocess.run(
        command("--server", server.control), input=b"", capture_output=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 1 and b"Unreachable" in done.stderr


def test_a_reader_that_goes_away_ends_the_node_of_a_server(server):
    with child("--server", server.control) as process:
        process.stdin.write(lines({"type": "ping", "reqId": 1}))
        assert process.stdout.readline()
        process.stdout.close()
        assert process.wait(PATIENCE_S) == 0
