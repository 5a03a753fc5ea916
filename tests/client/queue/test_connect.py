"""`connect`: the server it finds, the hello it sends, and the errors it raises."""

from __future__ import annotations

import asyncio
import os

import msgspec
import pytest

import penstock
from penstock.client.address import bad_token
from penstock.client.admin import RemoteServer
from penstock.core.errors import PenstockError
from tests.client.scripted_peer import peer, run


async def _open(url, **options):
    return await penstock.connect(url, **options)


def test_connect_greets_with_token_and_learns_the_server():
    async def go():
        async with peer() as server:
            opening = asyncio.ensure_future(_open(server.url, token="secret"))
            line = await server.accept(greet=False)
            hello = await line.greet()
            client = await opening
            assert hello["version"] == "v1" and hello["token"] == "secret"
            assert client.server.server == "scripted" and client.server.boot_id == "b"
            await client.close()

    run(go())


@pytest.mark.promise("SDK and command line", "an empty token is refused, and no other token is used in its place")
def test_an_empty_token_is_refused_and_nothing_is_sent(monkeypatch):
    monkeypatch.setenv("PENSTOCK_TOKEN", "of the environment")

    async def go():
        with pytest.raises(PenstockError, match="the token is empty") as caught:
            await _open("tcp://127.0.0.1:9", token="")
        assert caught.value.code == "InvalidRequest" and "leave `token` out" in caught.value.hint
        with pytest.raises(PenstockError, match="the token is empty"):
            penstock.Space("http://127.0.0.1:9", participant="sam", token="")

    run(go())


def test_connect_works_with_async_with_and_over_a_unix_socket(tmp_path):
    async def go():
        async with peer(str(tmp_path / "s")) as server:
            accepting = asyncio.ensure_future(server.accept())
            async with penstock.connect(server.url) as client:
                line = await accepting
                asking = asyncio.ensure_future(client.ping())
                line.ok(await line.read("ping"))
                await asking

    run(go())


def test_connect_without_a_server_is_unreachable():
    async def go():
        async with peer() as server:
            url = server.url
        with pytest.raises(PenstockError) as caught:
            await penstock.connect(url)
        assert caught.value.code == "Unreachable" and caught.value.retryable

    run(go())


def test_a_refused_hello_is_the_error_of_connect():
    async def go():
        async with peer() as server:
            opening = asyncio.ensure_future(_open(server.url))
            line = await server.accept(greet=False)
            line.refuse(await line.read("hello"), "Unauthorized")
            with pytest.raises(PenstockError) as caught:
                await opening
            assert caught.value.code == "Unauthorized"

    run(go())


def test_a_server_that_never_answers_hello_times_out():
    async def go():
        async with peer() as server:
            with pytest.raises(PenstockError) as caught:
                await penstock.connect(server.url, connect_timeout=0.05)
            assert caught.value.code == "Unreachable"

    run(go())


def test_the_server_and_the_token_come_from_the_environment(monkeypatch):
    async def go():
        async with peer() as server:
            monkeypatch.setenv("PENSTOCK_URL", server.url)
            monkeypatch.setenv("PENSTOCK_TOKEN", "of the environment")
            for token, sent in ((None, "of the environment"), ("given", "given")):
                opening = asyncio.ensure_future(_open(None, token=token))
                line = await server.accept(greet=False)
                assert (await line.greet())["token"] == sent
                await (await opening).close()

    run(go())


def test_without_an_address_the_server_on_the_data_directory_is_found(monkeypatch, tmp_path):
    monkeypatch.delenv("PENSTOCK_URL", raising=False)
    monkeypatch.delenv("PENSTOCK_TOKEN", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "penstock-data" / "run").mkdir(parents=True)

    async def go():
        async with peer() as server:
            endpoints = {"pid": os.getpid(), "http": "http://127.0.0.1:1", "control": server.url}
            (tmp_path / "penstock-data" / "run" / "endpoints.json").write_bytes(msgspec.json.encode(endpoints))
            opening = asyncio.ensure_future(_open(None))
            line = await server.accept(greet=False)
            assert "token" not in await line.greet()
            await (await opening).close()

    run(go())


def test_a_client_of_its_own_is_made_each_time_and_closed_with_its_block():
    async def go():
        async with peer() as server:
            connecting = penstock.connect(server.url, agent="sam")
            for _ in range(2):
                accepting = asyncio.ensure_future(server.accept())
                async with connecting as client:
                    line = await accepting
                    assert client.agent == "sam"
                assert await line.reader.read() == b"", "the connection is closed"
            assert len(server.lines) == 2

    run(go())


@pytest.mark.parametrize("url", ["ftp://127.0.0.1:1", "nonsense"])
def test_an_address_that_is_none_is_refused_before_dialling(url):
    async def go():
        with pytest.raises(PenstockError) as caught:
            await penstock.connect(url)
        assert caught.value.code == "InvalidRequest" and url in str(caught.value)

    run(go())


def test_a_peer_that_speaks_http_is_named_with_the_address_to_use():
    async def go():
        async with peer() as server:
            opening = asyncio.ensure_future(_open(server.url))
            line = await server.accept(greet=False)
            await line.read("hello")
            line.raw(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            with pytest.raises(PenstockError, match=r"use `http://127"):
                await opening

    run(go())


TOKENS = "auth: {tokens: [{token: one-secret-of-many, name: t, scopes: ['streams:*:read']}]}\n"


@pytest.mark.promise(
    "SDK and command line", "a wrong token, scheme or port is an error whose hint says what to write instead"
)
def test_real_servers_get_hints_that_name_the_repair(start_server):
    server = start_server(config=TOKENS)
    control, http = server.control.removeprefix("tcp://"), server.http.removeprefix("http://")

    async def refused(url, kind, *words, token=None):
        with pytest.raises(kind) as caught:
            await penstock.connect(url, token)
        for word in words:
            assert word in str(caught.value), caught.value

    async def go():
        for url in (server.control, server.http):
            await refused(url, penstock.Unauthorized, "needs a token", "`token=…`", "PENSTOCK_TOKEN")
            await refused(url, penstock.Unauthorized, "does not know this token", "`token=…`", token="wrong")
            assert "wrong" not in str(bad_token(url, "wrong"))
        await refused(f"tcp://{http}", penstock.Unreachable, "does not speak Control v1", f"use `http://{http}`")
        await refused(f"http://{control}", penstock.Unreachable, "gave no HTTP answer", f"`tcp://{control}`")
        await refused(f"https://{http}", penstock.Unreachable, "TLS", "`http://`")
        await refused(f"http://{http}/nope", penstock.PenstockError, "404", "without a path")
        await refused("tcp://127.0.0.1:1", penstock.Unreachable, "connection refused", "`penstock up`")
        with pytest.raises(penstock.Unreachable, match="gave no HTTP answer"):
            await penstock.Space(f"http://{control}", space="lab", participant="sam", token="x").open()

    run(go())
    with pytest.raises(penstock.Unreachable, match="gave no HTTP answer"):
        RemoteServer(f"http://{control}").reload()
