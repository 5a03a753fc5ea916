"""`penstock space …` against a scripted gateway."""

from __future__ import annotations

import asyncio
import json
import signal
import sys

import pytest

from penstock.cli import main
from tests.client.scripted_gateway import gateway
from tests.client.scripted_peer import PATIENCE_S, run
from tests.server_process import environment


@pytest.fixture
def command(monkeypatch, capsys):
    """Runs a command in a thread: gives its exit code, and what it printed."""

    async def finish(*words):
        code = await asyncio.to_thread(main, ["space", *words])
        return code, *capsys.readouterr()

    def start(server, *words):
        for name, value in variables(server).items():
            monkeypatch.setenv(name, value)
        return asyncio.ensure_future(finish(*words))

    return start


def variables(server):
    return {"PENSTOCK_URL": server.url, "PENSTOCK_TOKEN": "secret", "PENSTOCK_SPACE": "demo"}


async def child_of(server, *words):
    """The same as a child with a standard input."""
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "penstock.cli", "space", *words),
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        env=environment(**variables(server)),
    )


async def piped(server, stdin, *words):
    child = await child_of(server, *words)
    async with asyncio.timeout(3 * PATIENCE_S):
        out, err = await child.communicate(stdin)
    return child.returncode, out.decode(), err.decode()


@pytest.mark.promise("Space client", "`penstock space ls|tail|send|open-stream|invite|kick` work")
def test_send_says_text_or_an_envelope_of_any_kind(command):
    async def go():
        async with gateway() as server:
            running = command(server, "send", "hello", "--to", "jen,kim")
            seat = await server.accept()
            envelope = await seat.read("chat")
            assert (envelope["payload"], envelope["to"]) == ({"text": "hello"}, ["jen", "kim"])
            await seat.echo(envelope)
            code, out, _ = await running
            assert code == 0 and out.startswith(f"sent: chat {envelope['id']} from cli-")
            (join,) = server.joins
            assert (join["space"], join["token"]) == ("demo", "secret")

            running = command(server, "send", "mcp/request", '{"method": "x"}', "--wait", "20", "--json")
            seat = await server.accept()
            envelope = await seat.read("mcp/request")
            assert envelope["payload"] == {"method": "x"}
            await seat.echo(envelope)
            await seat.say("mcp/response", {"n": 7}, **{"from": "jen", "correlation_id": [envelope["id"]]})
            code, out, _ = await running
            assert code == 0 and json.loads(out)["payload"] == {"n": 7}

    run(go())


def test_a_refusal_is_exit_1_with_a_code_and_a_hint(command):
    async def go():
        async with gateway() as server:
            running = command(server, "send", "hello", "--as", "sam", "--json")
            seat = await server.accept()
            await seat.refuse(await seat.read("chat"), "capability_violation", attempted_kind="chat")
            code, out, err = await running
            assert code == 1 and json.loads(out)["error"]["code"] == "Forbidden"
            assert err.startswith("error: Forbidden: ") and "\nhint: " in err
            assert server.joins[0]["participantId"] == "sam"

    run(go())


@pytest.mark.parametrize("words", [["send"], ["tail", "--bogus"], ["open-stream", "x"]])
def test_wrong_usage_is_exit_2(words, capsys):
    assert main(["space", *words]) == 2
    assert capsys.readouterr().err.startswith("error: Usage: ")


@pytest.mark.promise("Space client", "`penstock space ls|tail|send|open-stream|invite|kick` work")
def test_tail_prints_envelopes_and_frames_in_order(command):
    async def go():
        async with gateway() as server:
            for words in ([], ["--json"]):
                running = command(server, "tail", "--kind", "chat", "--count", "4", *words)
                seat = await server.accept()
                await seat.say("chat", {"text": "one\x1b"}, **{"from": "jen"})
                await seat.say("mcp/request", {}, **{"from": "jen"})
                await seat.frame("stream-1", b"two")
                await seat.frame("stream-1", b"\xff\x00")
                await seat.say("chat", {"text": "four"}, **{"from": "jen"})
                code, out, _ = await running
                lines = out.splitlines()
                assert code == 0 and len(lines) == 4
                if words:
                    first, *frames, _ = map(json.loads, lines)
                    assert (first["kind"], first["from"]) == ("chat", "jen")
                    assert frames == [
                        {"stream_id": "stream-1", "bytes": 3, "text": "two"},
                        {"stream_id": "stream-1", "bytes": 2, "base64": "/wA="},
                    ]
                else:
                    assert lines[0].startswith("00:00:00.000  chat  jen  ") and "\x1b" not in out
                    assert lines[1:3] == ["#stream-1  3 bytes  two", "#stream-1  2 bytes  (binary)"]

    run(go())


@pytest.mark.promise("Space client", "`penstock space ls|tail|send|open-stream|invite|kick` work")
def test_open_stream_sends_lines_or_blocks_and_closes():
    async def go():
        async with gateway() as server:
            for words, stdin, expected in (
                (["--target", "agg"], b"one\r\n\ntwo\nthree", [b"one", b"two", b"three"]),
                (["--block", "4", "--lossless", "--target", "agg"], b"123456\n", [b"1234", b"56\n"]),
            ):
                finished = asyncio.ensure_future(piped(server, stdin, "open-stream", *words, "--json"))
                seat = await server.accept()
                request = await seat.open(target=["agg"])
                assert request["payload"]["target"] == ["agg"]
                assert request["payload"].get("overflow") == ("wait" if "--block" in words else None)
                assert [await seat.read_frame() for _ in expected] == [b"#stream-1#" + one for one in expected]
                await seat.echo(await seat.read("stream/close"))
                code, out, _ = await finished
                size = sum(map(len, expected))
                told = {"stream_id": "stream-1", "target": ["agg"], "frames": len(expected), "bytes": size}
                assert code == 0 and json.loads(out) == told

    run(go())


@pytest.mark.promise("Space client", "the client detects a gateway without targets before it sends a frame")
def test_open_stream_sends_nothing_through_a_gateway_without_targets():
    async def go():
        async with gateway() as server:
            finished = asyncio.ensure_future(piped(server, b"secret\n", "open-stream", "--target", "agg"))
            seat = await server.accept()
            await seat.open()
            await seat.echo(await seat.read("stream/close"))
            code, _, err = await finished
            assert code == 1 and "does not support targets" in err and seat.arrived.empty()

    run(go())


def test_ctrl_c_closes_the_stream_and_is_quiet():
    async def go():
        async with gateway() as server:
            child = await child_of(server, "open-stream", "--json")
            child.stdin.write(b"one\n")
            seat = await server.accept()
            await seat.open()
            assert await seat.read_frame() == b"#stream-1#one"
            child.send_signal(signal.SIGINT)
            envelope = await seat.read("stream/close")
            assert envelope["payload"]["reason"] == "interrupted"
            await seat.echo(envelope)
            out, err = await child.communicate()
            assert (child.returncode, out, err) == (130, b"", b"")

    run(go())


@pytest.mark.promise("Space client", "`penstock space ls|tail|send|open-stream|invite|kick` work")
def test_invite_prints_the_token_and_kick_puts_out(command):
    async def go():
        async with gateway() as server:
            words = ["--capability", "chat", "--capability", '{"kind": "mcp/*", "payload": {"method": "x"}}']
            running = command(server, "invite", "jen", *words)
            seat = await server.accept()
            envelope = await seat.read("space/invite")
            assert envelope["payload"]["initial_capabilities"] == [
                {"kind": "chat"},
                {"kind": "mcp/*", "payload": {"method": "x"}},
            ]
            told = {"status": "created", "participant_id": "jen", "token": "t0k", "connection_url": "ws://h/"}
            await seat.say("space/invite-ack", told, correlation_id=[envelope["id"]])
            code, out, _ = await running
            assert code == 0 and "t0k" in out and "ws://h/" in out

            running = command(server, "kick", "jen", "--json")
            seat = await server.accept()
            await seat.echo(await seat.read("space/kick"))
            code, out, _ = await running
            assert (code, json.loads(out)) == (0, {"kicked": "jen"})

    run(go())


def test_ls_says_how_to_add_a_space_where_there_is_none(server, capsys):
    token = (server.data / "run" / "operator.token").read_text().strip()
    assert main(["space", "ls", "--url", server.http, "--token", token]) == 0
    assert "add them in the config section `spaces`" in capsys.readouterr().out
