"""The sockets of both ends of a token stream."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import zmq

import penstock
from tests.client.token_relay import TinyRelay
from tests.client.tokens.driving import agree, awaited, publisher, read


class TestStreams:
    @awaited
    async def test_links_are_encrypted_where_both_sides_have_keys(self, make_relay: Callable[..., TinyRelay]) -> None:
        there, here = zmq.curve_keypair(), zmq.curve_keypair()
        relay = make_relay(curve=there)
        agreed = agree(relay)
        curve = penstock.Curve(there[0].decode(), here[0].decode(), here[1].decode())
        assert curve.secret not in repr(curve)
        with pytest.raises(penstock.PenstockError, match="does not answer"):
            await publisher(relay, agreed, connect_timeout=0.2).open()
        async with publisher(relay, agreed, curve=curve) as out:
            await out.send("a")
        assert (await read(agreed, curve=curve))[0] == ["a"]
