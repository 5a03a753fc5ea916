"""`penstock stdio` in process: what it refuses before it serves, and how it carries lines. `tests/integration/test_stdio.py` runs the process."""

from __future__ import annotations

import asyncio
import socket
from typing import cast

import pytest

from penstock.client.address import parse
from penstock.client.control.raw_connection import RawConnection
from penstock.core.errors import PenstockError
from penstock.server import stdio
from penstock.server.stdio import _Carrier
from penstock.transports.transport import ByteStreamTransport
from tests.dialects.courier.talking import ListWire


def test_a_wrong_config_is_named_on_stderr(tmp_path, capsys):
    config = tmp_path / "config.yaml"
    config.write_text("limits: {links_max: many}\n")
    assert stdio.main(config) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("error: ") and "links_max" in captured.err


def test_a_server_that_does_not_listen_is_unreachable():
    with socket.socket() as taken:  # bound and not listening: the port refuses connections while this test runs
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(PenstockError) as caught:
            stdio.main(server=parse(f"tcp://127.0.0.1:{port}"))
    assert caught.value.code == "Unreachable" and str(port) in str(caught.value)


class Uplink:
    """The far end of a connection: keeps what is written, and reads what a test puts into it."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.answers: asyncio.Queue[bytes] = asyncio.Queue()

    async def write(self, lines: bytes) -> None:
        self.written.append(lines)

    async def read(self) -> bytes:
        return await self.answers.get()


def carried() -> tuple[_Carrier, ListWire, Uplink, RawConnection]:
    wire, uplink = ListWire(), Uplink()
    return _Carrier(cast(ByteStreamTransport, wire)), wire, uplink, cast(RawConnection, uplink)


def test_whole_lines_go_up_and_the_input_is_held_meanwhile() -> None:
    async def go() -> None:
        carrier, wire, uplink, connection = carried()
        for chunk in (b"a\nb", b"c\n", b"half"):
            carrier.received(chunk)
        assert wire.holds == [True, True, True]
        up = asyncio.ensure_future(carrier.up(connection))
        await asyncio.sleep(0)
        assert (uplink.written, wire.holds[3:]) == ([b"a\n", b"bc\n"], [False, False, False])
        up.cancel()

    asyncio.run(go())


def test_answers_wait_for_the_reader() -> None:
    async def go() -> None:
        carrier, wire, uplink, connection = carried()
        carrier.congested(True)
        uplink.answers.put_nowait(b"a\n")
        uplink.answers.put_nowait(b"")
        down = asyncio.ensure_future(carrier.down(connection))
        await asyncio.sleep(0)
        assert wire.writes == []
        carrier.congested(False)
        await down
        assert wire.writes == [[b"a\n"]]

    asyncio.run(go())


def test_a_reader_that_is_gone_ends_the_wait() -> None:
    async def go() -> None:
        carrier, _, uplink, connection = carried()
        carrier.congested(True)
        carrier.lost()
        uplink.answers.put_nowait(b"a\n")
        uplink.answers.put_nowait(b"")
        await carrier.down(connection)

    asyncio.run(go())
