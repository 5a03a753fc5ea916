"""The port of Control v1."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from penstock.core.limits import Limits
from penstock.server.assembly import Service
from penstock.server.config.load import Config, load
from penstock.server.config.sections import ListenSection
from penstock.server.files.addresses import parse_control
from tests.server.test_assembly import QUIET, assembled


def guarded(tmp_path: Path, hello_ms: int) -> Config:
    """A config that needs a token within some time."""
    file = tmp_path / "config.yaml"
    file.write_text("auth: {tokens: [{token: all, scopes: ['streams:*:*']}]}\n")
    return replace(
        QUIET, auth=load(file, {}).auth, limits=Limits(hello_ms=hello_ms), listen=ListenSection(control="127.0.0.1:0")
    )


async def dialled(service: Service) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    url = await service.control.start(parse_control("127.0.0.1:0"))
    assert url is not None
    return await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))


def test_a_connection_that_sends_no_token_in_time_is_cut(tmp_path: Path) -> None:
    async def run() -> None:
        async with assembled(guarded(tmp_path, hello_ms=1)) as service:
            reader, writer = await dialled(service)
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
            writer.close()
            assert not service.runtime.peers.all()

    asyncio.run(run())


def test_a_connection_with_a_token_outlives_the_deadline_of_the_hello(tmp_path: Path) -> None:
    async def run() -> None:
        async with assembled(guarded(tmp_path, hello_ms=60_000)) as service:
            reader, writer = await dialled(service)
            writer.write(b'{"type":"hello","version":"v1","token":"all","reqId":1}\n')
            assert b'"type":"ok"' in await reader.readline()
            [connection] = service.runtime.peers.all()
            service.control._expect_hello(connection)
            writer.write(b'{"type":"ping","reqId":2}\n')
            assert b'"reqId":2' in await reader.readline()
            writer.close()

    asyncio.run(run())


def test_a_unix_socket_is_made_with_its_directory(tmp_path: Path) -> None:
    place = tmp_path / "new/control.sock"
    config = replace(QUIET, listen=ListenSection(http="127.0.0.1:0", control=f"unix:{place}"))

    async def run() -> None:
        async with assembled(config) as service:
            assert await service.control.start(parse_control(config.listen.control)) == f"unix:{place}"
            assert place.is_socket()

    asyncio.run(run())
    shutil.rmtree(tmp_path / "new")
