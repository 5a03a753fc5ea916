"""`penstock pipe`: kernel pipes from outside, with a peer written from the description of the format."""

from __future__ import annotations

import json
import signal
import socket
import struct
import subprocess
import sys
import time
from contextlib import contextmanager
from urllib.parse import urlsplit

import aiohttp
import msgspec
import pytest

from penstock.cli import main
from tests.integration.serving import PATIENCE_S, encode, envelope, run
from tests.server.ops.kernel.piped import HELLO, framed, said
from tests.server_process import environment

PIPE = [sys.executable, "-m", "penstock.cli", "pipe", "--json"]


class Host:
    """The other end of a pipe."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(PATIENCE_S)
        self.socket = connection
        self._bytes = b""

    def say(self, *frames) -> None:
        self.socket.sendall(said(*frames))

    def frame(self):
        """The next frame: metadata and payload; None at the end."""
        while True:
            if len(self._bytes) >= 8:
                first, second = struct.unpack(">II", self._bytes[:8])
                end = 8 + first + second
                if len(self._bytes) >= end:
                    metadata = json.loads(self._bytes[8 : 8 + first])
                    payload, self._bytes = self._bytes[8 + first : end], self._bytes[end:]
                    return metadata, payload
            data = self.socket.recv(65_536)
            if not data:
                assert self._bytes == b"", "the pipe ended within a frame"
                return None
            self._bytes += data

    def lines(self, count: int):
        """That many control frames, however many pipe frames they take."""
        got = []
        while len(got) < count:
            metadata, payload = self.frame()
            assert metadata["type"] == "data" and payload.endswith(b"\n"), (metadata, payload[-100:])
            got += [msgspec.json.decode(line) for line in payload.splitlines()]
        assert len(got) == count, got
        return got

    def ends(self) -> None:
        """Nothing more comes but the goodbye."""
        metadata, payload = self.frame()
        assert (metadata["type"], payload) == ("close", b"")
        assert self.frame() is None
        self.close()

    def close(self) -> None:
        self.socket.close()


class PipeProcess:
    """A running `penstock pipe`."""

    def __init__(self, *words: str, **env: str) -> None:
        self.process = subprocess.Popen(
            [*PIPE, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(**env)
        )
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        self.at = json.loads(line)

    def dial(self, number: int = 0) -> Host:
        parts = urlsplit(self.at["listen"][number])
        return Host(socket.create_connection((parts.hostname, parts.port), PATIENCE_S))

    def ended(self) -> tuple[int, str]:
        code = self.process.wait(PATIENCE_S)
        return code, self.process.stderr.read().decode()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.process.stderr.close()


@contextmanager
def piping(*words: str, **env: str):
    process = PipeProcess(*words, **env)
    try:
        yield process
    finally:
        process.stop()


@pytest.fixture(scope="module")
def pipes(server):
    """One process with a TCP and a WebSocket listener for all tests that need no other."""
    words = ["--listen", "tcp://127.0.0.1:0", "--listen", "ws://127.0.0.1:0/courier"]
    with piping(*words, "--server", server.control) as process:
        yield process


@pytest.fixture
def refused(capsys):
    """What a start that must fail says: its code and its error."""

    def start(*words: str) -> tuple[int, dict]:
        code = main(["pipe", "--json", *words])
        return code, json.loads(capsys.readouterr().out)["error"]

    return start


@pytest.mark.promise("Stream Kernel", "pipe frames match byte by byte; each end numbers from 0")
def test_a_conversation_in_frames_cut_anywhere(pipes, stream):
    host = pipes.dial()
    before_ms = time.time() * 1000
    lines = b"".join(
        encode(frame) + b"\n"
        for frame in (
            HELLO,
            {"type": "subscribe", "stream": stream, "credit": 1, "subId": "s"},
            {"type": "enqueue", "to": stream, "env": envelope("é", {"text": "zwölf €\n"}), "reqId": 7},
        )
    )
    data = b"".join(framed("data", lines[start : start + 5], sequenceId=start) for start in range(0, len(lines), 5))
    for start in range(0, len(data), 11):  # neither frames nor lines begin where chunks do
        host.socket.sendall(data[start : start + 11])
    hello, *rest = host.lines(3)
    assert (hello["type"], hello["reqId"]) == ("ok", "hello")
    (delivery,) = [frame for frame in rest if frame["type"] == "deliver"]
    assert delivery["env"]["payload"] == {"text": "zwölf €\n"}
    host.say({"type": "ack", "id": "é", "reqId": 8})
    metadata, payload = host.frame()
    assert json.loads(payload) == {"type": "ok", "reqId": 8, "result": {"id": "é"}}
    assert set(metadata) == {"type", "timestamp", "sequenceId"}
    assert 1 <= metadata["sequenceId"] <= 3, "numbered from 0, one a data frame"
    assert before_ms - 1 <= metadata["timestamp"] <= time.time() * 1000 + 1
    host.close()


@pytest.mark.promise(
    "Stream Kernel",
    "a pipe skips ping, close and unknown frames over TCP, and accepts any split of frames over WebSocket",
)
def test_over_tcp_ping_close_and_what_is_unknown_are_passed_over(pipes):
    host = pipes.dial()
    passed_over = framed("ping") + framed("close") + framed("resize", b"80x25")
    host.socket.sendall(passed_over + said({"type": "ping", "reqId": 1}))
    assert host.lines(1) == [{"type": "ok", "reqId": 1, "result": {}}]
    host.close()


@pytest.mark.promise("Stream Kernel", "a pipe ends with the peer, the host, the server, or a signal")
def test_everything_asked_before_the_end_is_answered(pipes, stream):
    count = 2000
    host = pipes.dial()
    host.say(
        *({"type": "enqueue", "to": stream, "env": envelope(str(n)), "reqId": n} for n in range(count)),
        {"type": "stats", "stream": stream, "reqId": "last"},
    )
    host.socket.sendall(framed("data", b'{"type":"ping","reqId":"half a line', sequenceId=1))
    host.socket.shutdown(socket.SHUT_WR)
    assert [frame["reqId"] for frame in host.lines(count + 1)] == [*range(count), "last"]
    host.ends()


@pytest.mark.promise("Stream Kernel", "an invalid frame is reported and ends only its own pipe")
@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "TooLarge"),
        (struct.pack(">II", 60, 11 * 1024 * 1024), "TooLarge"),
        (struct.pack(">II", 3, 0) + b"???", "InvalidRequest"),
    ],
)
def test_an_invalid_frame_gets_an_error_and_a_close_and_others_go_on(pipes, data, code):
    good, bad = pipes.dial(), pipes.dial()
    bad.socket.sendall(data)
    (error,) = bad.lines(1)
    assert (error["type"], error["code"]) == ("error", code) and error["hint"]
    bad.ends()
    good.say({"type": "ping", "reqId": 1})
    assert good.lines(1)[0]["reqId"] == 1
    good.close()


def test_a_line_longer_than_the_server_takes_is_refused_by_it(pipes):
    host = pipes.dial()
    host.socket.sendall(framed("data", b'{"type":"ping","pad":"' + b"x" * (9 * 1024 * 1024)))
    (error,) = host.lines(1)
    assert error["code"] == "TooLarge"
    host.socket.sendall(framed("data", b'"}\n'))  # the server has dropped the line up to here
    host.say({"type": "ping", "reqId": 1})
    assert host.lines(1) == [{"type": "ok", "reqId": 1, "result": {}}]
    host.close()


def test_a_pipe_that_breaks_gives_back_its_leases(pipes, http, stream):
    http.enqueue(stream, "a")
    host = pipes.dial()
    host.say({"type": "subscribe", "stream": stream, "credit": 1})
    assert host.lines(1)[0]["env"]["id"] == "a"
    host.close()
    second = pipes.dial()
    second.say({"type": "subscribe", "stream": stream, "credit": 1})
    (again,) = second.lines(1)
    assert (again["env"]["id"], again["attempt"]) == ("a", 2)
    second.close()


@pytest.mark.promise(
    "Stream Kernel",
    "a pipe skips ping, close and unknown frames over TCP, and accepts any split of frames over WebSocket",
)
@pytest.mark.promise("Stream Kernel", "chunks, frames and lines may be split anywhere")
def test_over_a_websocket_frames_and_messages_need_not_agree(pipes, stream):
    url = pipes.at["listen"][1]
    data = (
        said(HELLO)
        + framed("ping")
        + said({"type": "enqueue", "to": stream, "env": envelope("a")})
        + said({"type": "ping", "reqId": "last"})
    )

    async def go():
        async with aiohttp.ClientSession() as session:
            ws = await session.ws_connect(url)
            whole, byte_by_byte = data, [data[n : n + 1] for n in range(len(data))]
            for messages in ([whole], [data[:30], b"", data[30:]], byte_by_byte):
                for message in messages:
                    await ws.send_bytes(message)
                kinds, answers = [], []
                while not answers or answers[-1]["reqId"] != "last":
                    message = await ws.receive(PATIENCE_S)
                    assert message.type is aiohttp.WSMsgType.BINARY
                    first, second = struct.unpack(">II", message.data[:8])
                    assert len(message.data) == 8 + first + second, "one whole frame a message"
                    kinds.append(json.loads(message.data[8 : 8 + first])["type"])
                    answers += [json.loads(line) for line in message.data[8 + first :].splitlines()]
                assert kinds.count("pong") == 1
                assert [answer["reqId"] for answer in answers] == ["hello", "enqueue", "last"]
            await ws.send_bytes(framed("close"))
            message = await ws.receive(PATIENCE_S)
            assert b'"close"' in message.data
            assert (await ws.receive(PATIENCE_S)).type is aiohttp.WSMsgType.CLOSE
            await ws.close()

    run(go())


def test_a_text_message_is_no_frame(pipes):
    async def go():
        async with aiohttp.ClientSession() as session:
            ws = await session.ws_connect(pipes.at["listen"][1])
            await ws.send_str(encode(HELLO).decode())
            assert b"TooLarge" in (await ws.receive(PATIENCE_S)).data
            await ws.close()

    run(go())


@pytest.mark.promise("Stream Kernel", "a pipe ends with the peer, the host, the server, or a signal")
def test_sigterm_says_goodbye_and_exits_with_zero(server):
    with piping("--listen", "tcp://127.0.0.1:0", "--server", server.control) as process:
        host = process.dial()
        host.say({"type": "ping", "reqId": 1})
        host.lines(1)
        process.process.send_signal(signal.SIGTERM)
        host.ends()
        assert process.ended() == (0, "")
        host.close()


@pytest.mark.promise("Stream Kernel", "a pipe ends with the peer, the host, the server, or a signal")
def test_without_its_server_it_ends_and_says_so(start_server):
    server = start_server()
    with piping("--listen", "tcp://127.0.0.1:0", "--server", server.http) as process:  # over its WebSocket
        host = process.dial()
        host.say({"type": "ping", "reqId": 1})
        host.lines(1)
        server.kill()
        host.ends()
        code, error = process.ended()
        assert code == 1
        assert error.startswith("error: Unreachable: ") and "hint: " in error


@pytest.mark.promise("Stream Kernel", "only authorised clients may open a pipe")
@pytest.mark.parametrize(
    ("words", "code"),
    [
        ([], "InvalidRequest"),
        (["--listen", "udp://127.0.0.1:1"], "InvalidRequest"),
        (["--listen", "tcp://127.0.0.1"], "InvalidRequest"),
        (["--listen", "tcp://127.0.0.1:0/path"], "InvalidRequest"),
        (["--listen", "tcp://0.0.0.0:0"], "Forbidden"),
        (["--listen", "tcp://127.0.0.1:0"], "Unreachable"),
    ],
)
def test_what_cannot_work_is_said_at_the_start(refused, words, code):
    exit_code, error = refused(*words, "--server", "tcp://127.0.0.1:1")
    assert (exit_code, error["code"]) == (1, code)
    assert error["hint"]


@pytest.mark.promise("Stream Kernel", "only authorised clients may open a pipe")
def test_where_tokens_are_needed(start_server, refused):
    server = start_server(
        config="auth:\n  tokens:\n"
        "    - {token: all, scopes: ['streams:*:*']}\n"
        "    - {token: little, scopes: ['streams:other:read']}\n"
    )
    words = ["--listen", "tcp://127.0.0.1:0", "--server", server.control]
    assert refused(*words, "--token", "wrong")[1]["code"] == "Unauthorized"
    assert refused(*words, "--tap", "jobs")[1]["code"] == "Unauthorized"
    assert refused(*words, "--tap", "jobs", "--token", "little")[1]["code"] == "Forbidden"
    ask = {"type": "enqueue", "to": "jobs", "env": envelope("a")}
    with piping(*words, PENSTOCK_TOKEN="all") as process:  # all have the process's
        host = process.dial()
        host.say(ask)
        assert host.lines(1)[0]["result"] == {"id": "a", "seq": 1}
        host.close()
