"""The link between front and cells: messages of a turn in one frame, in order; a gap or nonsense ends it."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from penstock.server.cells.link import BATCH_BYTES, FRAME_MAX, CellLink
from penstock.server.cells.messages import LegClosed, LegInput, LegRead, ToCell


class Wire(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.frames: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.frames.append(bytes(data))

    def writelines(self, parts: object) -> None:
        self.frames.append(b"".join(parts))  # type: ignore[call-overload]

    def is_closing(self) -> bool:
        return self.is_closed

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        self.is_closed = True


def linked() -> tuple[CellLink[ToCell], Wire, CellLink[ToCell], list[object]]:
    """One end with its wire, and another that takes the frames."""
    here: CellLink[ToCell] = CellLink(ToCell)
    there: CellLink[ToCell] = CellLink(ToCell)
    wire, got = Wire(), []
    here.connection_made(wire)
    there.connection_made(Wire())
    there.received = got.append
    return here, wire, there, got


def test_messages_of_a_turn_share_a_frame_and_arrive_in_any_pieces() -> None:
    async def talk() -> None:
        here, wire, there, got = linked()
        sent = [LegInput(1, b"\xff\n"), LegRead(1, 7), LegClosed(1)]
        for message in sent:
            here.post(message)
        await asyncio.sleep(0)
        here.post(LegClosed(2), BATCH_BYTES + 1)
        assert len(wire.frames) == 2
        for byte in b"".join(wire.frames):
            there.data_received(bytes([byte]))
        assert got == [*sent, LegClosed(2)]

    asyncio.run(talk())


@pytest.mark.parametrize(
    "data",
    [
        msgspec.msgpack.encode((2, [])),
        msgspec.msgpack.encode((1, [["nonsense", 1]])),
        b"\xc1",
    ],
)
def test_a_gap_or_an_unknown_message_ends_the_link(data: bytes) -> None:
    async def talk() -> None:
        _, _, there, got = linked()
        ends: list[int] = []
        there.lost = lambda: ends.append(1)
        there.data_received(len(data).to_bytes(4, "big") + data)
        there.data_received(b"\x00\x00\x00\x00")
        there.connection_lost(None)
        there.post(LegClosed(1))
        assert (got, ends, there.is_over) == ([], [1], True)

    asyncio.run(talk())


def test_a_frame_is_bounded() -> None:
    async def talk() -> None:
        _, _, there, _ = linked()
        there.data_received((FRAME_MAX + 1).to_bytes(4, "big"))
        assert there.is_over

    asyncio.run(talk())


def test_congestion_is_passed_on() -> None:
    async def talk() -> None:
        here, _, _, _ = linked()
        seen: list[bool] = []
        here.congested = seen.append
        here.pause_writing()
        here.resume_writing()
        assert seen == [True, False]

    asyncio.run(talk())
