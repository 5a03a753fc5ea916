"""`penstock pipe` in process: addresses, what it opens, and every way in which it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from contextlib import asynccontextmanager

import pytest

from penstock.client.address import parse
from penstock.core.errors import PenstockError
from penstock.server.config.load import load
from penstock.server.ops.kernel import pipe
from penstock.server.ops.kernel.pipe import PipeOptions, PipeReady, addresses
from penstock.transports.pipe_transports import parse_pipe
from tests.server.http.driving import envelope
from tests.server.ops.kernel.piped import HELLO, Peer, run, serving

pytestmark = pytest.mark.usefixtures("signals")
ANY_PORT = addresses(["tcp://127.0.0.1:0"])


@pytest.mark.promise("Stream Kernel", "only authorised clients may open a pipe")
@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("udp://127.0.0.1:1", "InvalidRequest"),
        ("tcp://127.0.0.1", "InvalidRequest"),
        ("tcp://127.0.0.1:0/path", "InvalidRequest"),
        ("ws://user@127.0.0.1:0", "InvalidRequest"),
        ("tcp://127.0.0.1:high", "InvalidRequest"),
        ("tcp://0.0.0.0:0", "Forbidden"),
        ("ws://[::]:0/courier", "Forbidden"),
    ],
)
def test_an_address_that_is_invalid_or_public_is_refused(text, code):
    with pytest.raises(PenstockError) as caught:
        addresses(["tcp://127.0.0.1:0", text], is_public=False)
    assert caught.value.code == code and text in str(caught.value)


def test_addresses_keep_their_order_and_may_be_public_on_request():
    texts = ["ws://127.0.0.1:1/courier", "tcp://0.0.0.0:2", "tcp://[::1]:3"]
    assert [str(address) for address in addresses(texts)] == texts


@asynccontextmanager
async def piping(options: PipeOptions):
    """The pipes while they run, and the task that ends with them."""
    opened = asyncio.get_running_loop().create_future()
    task = asyncio.ensure_future(pipe.run(options, opened.set_result))
    await asyncio.wait((task, opened), return_when=asyncio.FIRST_COMPLETED)
    try:
        yield await opened if opened.done() else None, task
    finally:
        task.cancel()
        await asyncio.wait([task])


def port_of(ready: PipeReady) -> int:
    return parse_pipe(ready.listen[0]).port


@pytest.mark.promise("Stream Kernel", "a pipe ends with the peer, the host, the server, or a signal")
def test_a_signal_closes_every_pipe_and_ends_it():
    async def go():
        async with serving() as server, piping(PipeOptions(ANY_PORT, [], server.address)) as (ready, task):
            peer = await Peer.dial(port_of(ready))
            peer.say({"type": "ping", "reqId": 1})
            await peer.lines(1)
            os.kill(os.getpid(), signal.SIGTERM)
            await peer.ends()
            await task
            with pytest.raises(ConnectionRefusedError):
                await Peer.dial(port_of(ready))

    run(go())


@pytest.mark.promise("Stream Kernel", "a pipe ends with the peer, the host, the server, or a signal")
def test_it_dials_a_host_and_ends_with_it():
    async def go():
        dialled = asyncio.get_running_loop().create_future()
        host = await asyncio.start_server(lambda *ends: dialled.set_result(Peer(*ends)), "127.0.0.1", 0)
        url = f"tcp://127.0.0.1:{host.sockets[0].getsockname()[1]}"
        async with serving() as server, piping(PipeOptions([], addresses([url]), server.address)) as (ready, task):
            assert ready == PipeReady([], [url], server.address.url)
            peer = await dialled
            peer.say({"type": "enqueue", "to": "jobs", "env": envelope("a"), "reqId": 1})
            assert (await peer.lines(1))[0]["result"] == {"id": "a", "seq": 1}
            peer.writer.write_eof()
            await peer.ends()
            await task
        host.close()

    run(go())


@pytest.mark.promise("Stream Kernel", "a pipe ends with the peer, the host, the server, or a signal")
def test_it_ends_with_an_error_when_the_server_is_lost():
    async def go():
        async with serving() as server, piping(PipeOptions(ANY_PORT, [], server.address)) as (ready, task):
            peer = await Peer.dial(port_of(ready))
            peer.say({"type": "ping", "reqId": 1})
            await peer.lines(1)
            server.stop()
            await peer.ends()
            with pytest.raises(PenstockError) as caught:
                await task
            assert caught.value.code == "Unreachable" and "hint: " in str(caught.value)

    run(go())


def test_a_tap_is_named_when_it_is_ready():
    async def go():
        async with serving() as server, piping(PipeOptions(ANY_PORT, [], server.address, tap="jobs")) as (ready, _):
            assert (ready.tap, ready.connect, ready.server) == ("jobs", [], server.address.url)

    run(go())


def test_a_listener_goes_on_after_its_peers():
    async def go():
        async with serving() as server, piping(PipeOptions(ANY_PORT, [], server.address)) as (ready, task):
            for number in range(2):
                peer = await Peer.dial(port_of(ready))
                peer.say({"type": "ping", "reqId": number})
                assert (await peer.lines(1))[0]["reqId"] == number
                peer.writer.write_eof()
                await peer.ends()
            assert not task.done()

    run(go())


def test_a_port_in_use_or_a_host_that_is_absent_is_reported_with_a_hint():
    async def go():
        with socket.create_server(("127.0.0.1", 0)) as taken:
            used = addresses([f"tcp://127.0.0.1:{taken.getsockname()[1]}"])
            absent = addresses(["tcp://127.0.0.1:1"])
            async with serving() as server:
                for options, code in (
                    (PipeOptions([*ANY_PORT, *used], [], server.address), "InvalidRequest"),
                    (PipeOptions(ANY_PORT, absent, server.address), "Unreachable"),
                    (PipeOptions(ANY_PORT, [], parse("tcp://127.0.0.1:1")), "Unreachable"),
                ):
                    async with piping(options) as (ready, task):
                        assert ready is None
                        with pytest.raises(PenstockError) as caught:
                            await task
                        assert caught.value.code == code and "hint: " in str(caught.value)

    run(go())


TOKENS = """
auth:
  tokens:
    - {token: all, scopes: ['streams:*:*']}
    - {token: little, scopes: ['streams:other:read']}
"""


@pytest.mark.promise("Stream Kernel", "only authorised clients may open a pipe")
def test_tokens_of_the_process_and_of_the_peers(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(TOKENS)
    ask = {"type": "enqueue", "to": "jobs", "env": envelope("a")}

    async def go():
        async with serving(load(file, {})) as server:
            for token, tap, code in (
                ("wrong", None, "Unauthorized"),
                (None, "jobs", "Unauthorized"),
                ("little", "jobs", "Forbidden"),
            ):
                async with piping(PipeOptions(ANY_PORT, [], server.address, token, tap)) as (ready, task):
                    assert ready is None and task.exception().code == code
            async with piping(PipeOptions(ANY_PORT, [], server.address)) as (ready, _):  # each peer brings its own
                peer = await Peer.dial(port_of(ready))
                peer.say(ask)
                assert (await peer.lines(1))[0]["code"] == "Unauthorized"
                await peer.ends()
                peer = await Peer.dial(port_of(ready))
                peer.say({**HELLO, "token": "all"}, ask)
                assert [frame["type"] for frame in await peer.lines(2)] == ["ok", "ok"]
                await peer.close()
            async with piping(PipeOptions(ANY_PORT, [], server.address, "all")) as (ready, _):  # all have the process's
                peer = await Peer.dial(port_of(ready))
                peer.say(ask)
                assert (await peer.lines(1))[0]["result"]["duplicate"] is True
                await peer.close()

    run(go())
