"""Token streams through the relay of a real server, and the examples: a killed relay, a lost connection."""

from __future__ import annotations

import asyncio
import hmac
import os
import re
import secrets
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nacl.signing
import pytest

import penstock
from penstock.dialects.streamservice.keys import StreamKeys
from tests.client.scripted_peer import run
from tests.integration import token_peers
from tests.integration.token_peers import Body
from tests.paths import ROOT
from tests.server_process import ServerProcess, environment

EXAMPLES = ROOT / "examples" / "tokens"
WAIT_S = 60.0
SPACE = """\
spaces:
  - space: {id: demo}
    participants:
      writer: {tokens: [writer-token], capabilities: [{kind: "tokens/*"}]}
      reader: {tokens: [reader-token], capabilities: [{kind: "tokens/*"}]}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path_factory.mktemp("tokens"), "--relay", config=SPACE)
    yield process
    process.kill()


def relay_pid(server: ServerProcess) -> int | None:
    """The process of the relay, a child of the server."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            words = (entry / "cmdline").read_bytes()
        except (OSError, ValueError, IndexError):
            continue
        if parent == server.process.pid and b"penstock.server.relay.process" in words:
            return int(entry.name)
    return None


class Cable:
    """A TCP connection that can be cut; what connects afterwards gets through again."""

    def __init__(self, endpoint: str) -> None:
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        self._there = host, int(port)
        self._writers: list[asyncio.StreamWriter] = []
        self.endpoint = ""
        self.links = 0

    async def open(self) -> asyncio.Server:
        server = await asyncio.start_server(self._link, "127.0.0.1", 0)
        self.endpoint = f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return server

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.links += 1
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._there)
        except OSError:
            writer.close()
            return
        self._writers += [writer, far_writer]
        await asyncio.gather(_pass_on(reader, far_writer), _pass_on(far_reader, writer))

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def start(server: ServerProcess, script: str, *words: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, str(EXAMPLES / script), *words),
        cwd=server.folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


async def read_until(child: asyncio.subprocess.Process, enough: int) -> bytes:
    assert child.stdout is not None
    text = b""
    while len(text) < enough:
        more = await child.stdout.read(1 << 16)
        assert more, text.decode()
        text += more
    return text


def story(prompt: str, count: int) -> str:
    sys.path.insert(0, str(EXAMPLES))
    try:
        from story import tokens
    finally:
        sys.path.remove(str(EXAMPLES))
    return "".join(tokens(prompt, count))


@pytest.mark.promise("Token streams: publisher and reader", "a killed relay and a lost connection lose nothing")
def test_the_example_survives_a_killed_relay_and_a_cut_connection(server: ServerProcess) -> None:
    async def go() -> None:
        wanted = story("a storm", 600)
        cable = Cable(str(server.endpoints["pub"]))
        async with asyncio.timeout(WAIT_S), await cable.open():
            writer = await start(server, "writer.py", "--pace", "0.002")
            assert writer.stdout is not None and (await writer.stdout.readline()).startswith(b"ready")
            reader = await start(server, "reader.py", "a storm", "--count", "600", "--plain", "--pub", cable.endpoint)
            assert reader.stdout is not None
            try:
                text = await read_until(reader, 200)
                cable.cut()
                text += await read_until(reader, 300)
                pid = relay_pid(server)
                assert pid is not None
                os.kill(pid, signal.SIGKILL)
                text += await reader.stdout.read()
                assert await reader.wait() == 0, text.decode()
                assert text.decode().startswith(wanted + "\nverified: 600 tokens, 0 forged, finish length")
                assert cable.links >= 2
                assert relay_pid(server) not in (None, pid)
                assert b"600 tokens" in await writer.stdout.readline()
            finally:
                for child in (writer, reader):
                    if child.returncode is None:
                        child.kill()
                        await child.communicate()

    run(go())


@pytest.mark.promise(
    "Token streams: publisher and reader",
    "keys are agreed on over Courier or a space, and a swapped key is rejected",
)
def test_the_reader_shows_a_badge(server: ServerProcess) -> None:
    async def go() -> None:
        async with asyncio.timeout(WAIT_S):
            writer = await start(server, "writer.py", "--pace", "0")
            assert writer.stdout is not None and (await writer.stdout.readline()).startswith(b"ready")
            reader = await start(server, "reader.py", "--count", "40")
            out, _ = await reader.communicate()
            writer.terminate()
            await writer.communicate()
        assert reader.returncode == 0, out.decode()
        assert re.search(r"✔ verified: \d+ messages", out.decode()) and "complete" in out.decode()

    run(go())


@pytest.mark.promise(
    "Token streams: publisher and reader",
    "keys are agreed on over Courier or a space, and a swapped key is rejected",
)
def test_keys_are_agreed_on_in_a_space(server: ServerProcess) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "space.py"), server.http],
        cwd=server.folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(story("a mill", 50)) and "verified: " in done.stdout


@pytest.mark.promise(
    "Token streams: publisher and reader", "only the reader cancels, and each cancel message works once"
)
def test_a_reader_stops_the_writer_through_the_relay(server: ServerProcess) -> None:
    relay = penstock.local_relay(server.data)
    offer = penstock.StreamOffer()
    answer = penstock.answer_offer(offer.text, relay.pub, signer=relay.signer)
    agreed = offer.accept(answer.text, signer=relay.signer.public)

    async def go() -> None:
        publisher = penstock.TokenPublisher(relay.push, agreed.keys, signer=relay.signer, pub=relay.pub)
        stream = penstock.TokenStream(relay.pub, agreed.keys, push=relay.push)
        async with asyncio.timeout(WAIT_S), stream, publisher:
            await publisher.send("a")
            assert await anext(stream) == "a"
            await stream.cancel()
            with pytest.raises(penstock.StreamFailed) as failed:
                await anext(stream)
            assert failed.value.failure.code == "cancelled" and publisher.is_cancelled

    run(go())


def made_up_keys() -> StreamKeys:
    """What two ends of any make would have agreed on."""
    secret = secrets.token_bytes
    return StreamKeys("sha256", secret(32).hex(), secret(32), secret(32).hex(), secret(32), secret(32))


@pytest.mark.parametrize("form", ["chunk", "block"])
def test_a_publisher_of_another_make_is_read(server: ServerProcess, form: str) -> None:
    relay, keys = penstock.local_relay(server.data), made_up_keys()
    seed = (server.data / "run" / "publisher.key").read_text().strip()
    complete = Body(struct.pack("<Q", 1), "s", Body(struct.pack("<IfQff", 3, 0, 0, 0, 0), "eos"))
    with token_peers.Sockets() as context:
        theirs = token_peers.Publisher(context, relay.push, keys.topic.encode(), keys.mac_key)
        theirs.register(nacl.signing.SigningKey(bytes.fromhex(seed)))
        if form == "chunk":
            for text in ("one", "two", "three"):
                theirs.chunk(token_peers.token(text))
            theirs.chunk(token_peers.framed(complete))
        else:
            theirs.block(["one"])
            theirs.block(["two", "three"])
            frame = token_peers.framed(Body(b"", theirs.mac, [complete]))
            mac = hmac.digest(keys.mac_key, theirs.mac + frame, "sha256")[:16]
            theirs.socket.send_multipart([theirs.topic, frame, mac])
        with penstock.SyncTokenStream(relay.pub, keys) as stream:
            assert list(stream) == ["one", "two", "three"]
        assert stream.stats is not None and stream.stats.finish_reason == "eos"
        context.destroy(0)


def test_a_reader_of_another_make_follows_the_chain(server: ServerProcess) -> None:
    relay, keys = penstock.local_relay(server.data), made_up_keys()
    with token_peers.Sockets() as context:
        theirs = token_peers.Subscriber(context, relay.pub, keys.topic.encode(), keys.mac_key)
        with penstock.SyncTokenPublisher(relay.push, keys, signer=relay.signer) as ours:
            for number in range(40):
                ours.send(f"word{number} ")
        text, mac = b"", keys.topic.encode()
        while b"stop" not in text:
            frames = theirs.receive(WAIT_S)
            assert frames is not None and len(frames) == 3
            mac = hmac.digest(keys.mac_key, mac + frames[1], "sha256")[:16]
            assert frames[2] == mac, "the next link of the chain"
            text += frames[1]
        assert [number for number in range(40) if f"word{number} ".encode() not in text] == []
        context.destroy(0)


def test_no_server_is_an_error_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(penstock.PenstockError, match="penstock up"):
        penstock.local_relay(tmp_path)
    (tmp_path / "x.key").write_text("nonsense")
    with pytest.raises(penstock.PenstockError, match="signer-keygen"):
        penstock.load_signing_key(tmp_path / "x.key")
