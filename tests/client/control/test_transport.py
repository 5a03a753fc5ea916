"""Splitting a byte stream into lines, however it is chunked."""

from __future__ import annotations

import asyncio
import itertools

from hypothesis import given
from hypothesis import strategies as st

from penstock.client.control import transport
from penstock.client.control.transport import StreamTransport


class Heard:
    """A receiver that remembers."""

    def __init__(self):
        self.lines = []
        self.reasons = []

    def lines_received(self, lines):
        self.lines += lines

    def transport_lost(self, reason):
        self.reasons.append(reason)

    def transport_writable(self):
        pass


class Wire(asyncio.Transport):
    """A transport that only notes how it was ended."""

    def __init__(self):
        super().__init__()
        self.aborted = False

    def set_write_buffer_limits(self, high=None, low=None):
        pass

    def abort(self):
        self.aborted = True


def _linked():
    heard, wire = Heard(), Wire()
    link = StreamTransport(heard)
    link.connection_made(wire)
    return heard, wire, link


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=12))
def test_any_chunks_give_the_same_lines(data, cuts):
    async def go():
        heard, _, link = _linked()
        edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
        for start, end in itertools.pairwise(edges):
            link.data_received(data[start:end])
        assert heard.lines == data.split(b"\n")[:-1]

    asyncio.run(go())


def test_a_line_without_end_is_cut_off(monkeypatch):
    monkeypatch.setattr(transport, "LINE_MAX", 100)

    async def go():
        heard, wire, link = _linked()
        link.data_received(b"x" * 100)
        assert not wire.aborted
        link.data_received(b"x")
        assert wire.aborted
        link.connection_lost(None)
        assert "too long" in heard.reasons[0]

    asyncio.run(go())


def test_an_abandoned_link_is_silent():
    async def go():
        heard, wire, link = _linked()
        link.abandon()
        link.data_received(b"late\n")
        link.connection_lost(None)
        assert wire.aborted and not heard.lines and not heard.reasons

    asyncio.run(go())
