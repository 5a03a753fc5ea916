"""Bodies count among what peers have sent until they are answered, on both ways through an HTTP port."""

from __future__ import annotations

import asyncio

import pytest

from penstock.transports.exchanges import SMALL, Exchange
from penstock.transports.transport import Upload
from tests.transports.http_ports import Port, answer, post, serve


class Asked(Exchange):
    """A request whose connection notes what happens to it."""

    def __init__(self) -> None:
        super().__init__("POST", "/v1/enqueue", {}, "10.0.0.1", None)
        self.noted: list[tuple[Upload, int]] = []
        self.is_aborted = False

    def known(self) -> None: ...

    @property
    def query_pairs(self) -> list[tuple[str, str]]:
        return []

    async def read(self) -> bytes:
        return b""

    def _abort(self) -> None:
        self.is_aborted = True

    def _note(self, upload: Upload, size: int) -> None:
        self.noted.append((upload, size))


class Holder:
    def party(self, address: str) -> tuple[bool, str]:
        return False, f"token at {address}"


def test_a_body_counts_from_a_size_on_for_its_token_and_a_cut_closes_the_connection() -> None:
    asked = Asked()
    asked.holds(SMALL)
    asked.holds(0)
    assert asked.noted == []
    asked.holder = Holder()
    asked.holds(SMALL + 1)
    asked.holds(10_000)
    upload = asked.upload
    assert upload is not None and upload.party == (False, "token at 10.0.0.1")
    assert (upload.unread(), upload.reader_name) == (10_000, "POST /v1/enqueue (10.0.0.1)")
    upload.cut(10_000)
    asked.holds(0)
    assert asked.is_aborted and asked.upload is None
    assert [size for _, size in asked.noted] == [SMALL + 1, 10_000, 0]


def test_a_stranger_pays_by_its_address() -> None:
    asked = Asked()
    asked.holds(10_000)
    assert asked.upload is not None and asked.upload.party == (True, "10.0.0.1")


@pytest.mark.parametrize("odd", ["X-Odd:\t1", "X-Plain: 1"])
def test_a_body_counts_until_its_request_is_answered(odd: str) -> None:
    async def work(port: Port) -> None:
        port.handler.body_max = 100_000
        async with port.dial() as (reader, writer):
            writer.write(post("/echo", b"." * 50_000, odd))
            assert (await answer(reader))[0] == 200
        assert max(port.handler.inputs) == 50_000 and port.handler.inputs[-1] == 0

    serve(work)


def test_a_body_whose_peer_leaves_counts_no_more() -> None:
    async def work(port: Port) -> None:
        port.handler.body_max = 100_000
        async with port.dial() as (_, writer):
            writer.write(post("/echo", b"." * 50_000).replace(b"Length: 50000", b"Length: 90000"))
            async with asyncio.timeout(30):
                while not port.handler.inputs:
                    await asyncio.wait_for(port.handler.counted.wait(), 30)
        async with asyncio.timeout(30):
            while port.handler.inputs[-1]:
                port.handler.counted.clear()
                await port.handler.counted.wait()

    serve(work)
