"""Connections to NATS: the URLs that are taken, and every way to sign in, against a server that asks for it."""

from __future__ import annotations

import asyncio
import binascii
import socket
import subprocess
from base64 import b32encode
from collections.abc import Iterator
from pathlib import Path

import pytest
from nats.aio.client import Client

from penstock.core.errors import InvalidRequest, PenstockError, Unreachable
from penstock.journal.replicated.connection import (
    NatsServersAddress,
    connect_servers,
    parse_servers,
    read_credentials,
)
from tests.cluster_node import until
from tests.nats_servers import BINARY

SEED = bytes(range(32))
AUTHORITY = """\
-----BEGIN CERTIFICATE-----
MIIBbzCCARWgAwIBAgIUN4K3mNg2Z+uwS7hlDoUy0vFV7NYwCgYIKoZIzj0EAwIw
DDEKMAgGA1UEAwwBYTAgFw0yNjExMjAwMTAyMjFaGA8yMTI2MTAyNzAxMDIyMVow
DDEKMAgGA1UEAwwBYTBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABPU1MhvGwsdK
bZ/21H0QXxCafAeZRhR1G2wp8uO9SGF8tM43gmvummckJhe2ZCuaA2d2GTqjHiDm
UaGruWR1iHWjUzBRMB0GA1UdDgQWBBTzEjaG4Ir3LZffAGXp4BfJfhEDnTAfBgNV
HSMEGDAWgBTzEjaG4Ir3LZffAGXp4BfJfhEDnTAPBgNVHRMBAf8EBTADAQH/MAoG
CCqGSM49BAMCA0gAMEUCICURoW+5YRfCFVSGUvWhvwSrgYpvkJPcS6icWCvV/2nh
AiEArvgT7xCqxpQ9pRbH8mSy9MqUBrrFhXNxC+YPx62KhvI=
-----END CERTIFICATE-----
"""


def text_of(seed: bytes) -> str:
    """An nkey seed of a user, as the tools of NATS write it: `S`, the kind, the seed and a checksum."""
    raw = bytes([18 << 3 | 5, 0]) + seed  # the upper bits of `20 << 3`, a user, are 5, the lower ones 0
    return b32encode(raw + binascii.crc_hqx(raw, 0).to_bytes(2, "little")).decode().rstrip("=")


@pytest.mark.parametrize(
    ("join", "urls"),
    [
        ("nats://a,b:4333,c", ("nats://a:4222", "nats://b:4333", "nats://c:4222")),
        ("a, b", ("nats://a:4222", "nats://b:4222")),
        ("tls://a:1,tls://[::1]:2", ("tls://a:1", "tls://[::1]:2")),
    ],
)
def test_one_option_names_all_servers(join: str, urls: tuple[str, ...]) -> None:
    assert parse_servers(join) == NatsServersAddress(urls)


def test_the_first_user_holds_for_all_servers_and_is_not_shown() -> None:
    address = parse_servers("nats://pen:s%40cret@a,b")
    assert (address.user, address.password) == ("pen", "s@cret")
    assert address.shown == "nats://a:4222,nats://b:4222"


@pytest.mark.parametrize("join", ["http://a", "nats://", "nats://a/b", "nats://a:x", "nats://a,tls://b", "a,,b"])
def test_other_urls_are_refused_without_showing_a_password(join: str) -> None:
    with pytest.raises(InvalidRequest, match="is not the URL of a NATS server"):
        parse_servers(join)
    with pytest.raises(InvalidRequest) as raised:
        parse_servers("nats://pen:secret@a:port")
    assert "secret" not in str(raised.value)


def test_a_credentials_file_is_read_in_three_forms(tmp_path: Path) -> None:
    file = tmp_path / "creds"
    file.write_text("pen:a:b\n")
    assert (read_credentials(file).user, read_credentials(file).password) == ("pen", "a:b")
    file.write_text(text_of(SEED) + "\n")
    assert read_credentials(file).seed == SEED
    file.write_text(
        "-----BEGIN NATS USER JWT-----\neyJ0.x.y\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{text_of(SEED)}\n------END USER NKEY SEED------\n"
    )
    found = read_credentials(file)
    assert (found.jwt, found.seed) == ("eyJ0.x.y", SEED)


@pytest.mark.parametrize("content", [b"", b"nothing", b"SUAA", b"a\nb", b"\xff\xfe"])
def test_a_file_without_credentials_is_refused(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "creds"
    file.write_bytes(content)
    with pytest.raises(InvalidRequest, match="cannot use the credentials"):
        read_credentials(file)
    with pytest.raises(InvalidRequest, match="cannot use the credentials"):
        read_credentials(tmp_path / "none")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that knows one user by its nkey and one by its password."""
    folder = tmp_path_factory.mktemp("guarded")
    key = folder / "key"
    key.write_text(text_of(SEED))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    users = f"{{nkey: {read_credentials(key).public_key}}}, {{user: pen, password: secret}}"
    (folder / "conf").write_text(f'listen: "127.0.0.1:{port}"\nauthorization {{ users: [{users}] }}\n')
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([BINARY, "-c", folder / "conf"], stdout=log, stderr=log)
    yield f"127.0.0.1:{port}"
    process.kill()
    process.wait()


async def is_let_in(address: NatsServersAddress) -> bool:
    client: Client = await connect_servers(address, "test")
    await client.flush()
    await client.close()
    return True


async def started(place: str) -> None:
    async def ask() -> bool:
        try:
            return await is_let_in(parse_servers(f"pen:secret@{place}"))
        except Unreachable as error:
            raise OSError from error

    assert await until(ask)


def test_an_nkey_and_a_password_let_a_node_in(guarded: str, tmp_path: Path) -> None:
    async def act() -> None:
        await started(guarded)
        file = tmp_path / "creds"
        for content in (text_of(SEED), "pen:secret"):
            file.write_text(content)
            assert await is_let_in(parse_servers(guarded, file))

    asyncio.run(act())


async def refused(address: NatsServersAddress) -> Unreachable:
    """Why a server refuses; OSError when it closed the connection before its reason could be read."""
    with pytest.raises(Unreachable) as raised:
        await connect_servers(address, "test")
    if "reset" in raised.value.message or "roken pipe" in raised.value.message:
        raise OSError(raised.value.message)
    return raised.value


def test_a_wrong_password_is_reported_with_what_to_check(guarded: str, tmp_path: Path) -> None:
    async def act() -> None:
        await started(guarded)
        for address in (parse_servers(guarded), parse_servers(f"pen:wrong-{tmp_path.name}@{guarded}")):
            error = await until(lambda address=address: refused(address))
            assert "uthoriz" in error.message and "--nats-creds" in error.hint
            assert "wrong-" not in str(error)

    asyncio.run(act())


def test_a_file_that_holds_no_certificate_is_reported(tmp_path: Path) -> None:
    async def act() -> None:
        (tmp_path / "ca").write_text("no certificate")
        for name in ("ca", "absent"):
            with pytest.raises(PenstockError, match="authority"):
                await connect_servers(parse_servers("tls://127.0.0.1:1", ca=tmp_path / name), "test")

    asyncio.run(act())


@pytest.mark.promise("Cluster", "a node that was asked for TLS never signs in without it")
@pytest.mark.parametrize("scheme", ["tls", "nats"])
def test_a_server_that_offers_no_tls_gets_no_password(scheme: str, tmp_path: Path) -> None:
    """Someone on the way can take the offer out, because it comes in plain text."""
    (tmp_path / "ca").write_text(AUTHORITY)
    got: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","version":"2.11.0","max_payload":1048576,"auth_required":true}\r\n')
        got.append(await reader.read())
        writer.close()

    async def act() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        join = f"{scheme}://pen:secret@127.0.0.1:{server.sockets[0].getsockname()[1]}"
        ca = tmp_path / "ca" if scheme == "nats" else None
        with pytest.raises(Unreachable, match="offers no TLS") as raised:
            await connect_servers(parse_servers(join, ca=ca), "test")
        assert "secret" not in str(raised.value)
        server.close()
        await server.wait_closed()

    asyncio.run(act())
    assert set(got) == {b""}


def test_a_cancellation_leaves_no_connection_behind() -> None:
    async def act() -> None:
        asked, ended = asyncio.Event(), asyncio.Event()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b'INFO {"server_id":"x","max_payload":1024}\r\n')
            await reader.readline()
            asked.set()  # and it never answers
            await reader.read()
            ended.set()
            writer.close()

        async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            address = NatsServersAddress((f"nats://127.0.0.1:{port}",))
            while True:  # a machine that is too busy may need a second attempt
                connecting = asyncio.create_task(connect_servers(address, "test"))
                waiting = asyncio.create_task(asked.wait())
                await asyncio.wait([connecting, waiting], return_when=asyncio.FIRST_COMPLETED)
                if not connecting.done():
                    break
                with pytest.raises(Unreachable):
                    connecting.result()
                asked.clear()
            connecting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await connecting
            await ended.wait()

    asyncio.run(asyncio.wait_for(act(), 60))
