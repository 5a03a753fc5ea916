"""Legs and requests at another process: they wait while it is down, and are lost with it."""

from __future__ import annotations

import asyncio
from typing import Any

from penstock.core.errors import Refusal
from penstock.core.scopes import ANONYMOUS
from penstock.dialects.courier.sessions.front.legs import LEG_LOST, LegHello
from penstock.server.cells import remote_legs
from penstock.server.cells.link import CellLink
from penstock.server.cells.messages import (
    CellAnswer,
    CellDrained,
    CellRequest,
    FromCell,
    LegClosed,
    LegEnded,
    LegHeld,
    LegIdentified,
    LegInput,
    LegOpened,
    LegOutput,
    LegRead,
    RequestCancelled,
)
from penstock.server.cells.remote_legs import ProcessLegs, RemoteCells
from tests.server.cells.test_leg_host import Owner

HELLO = LegHello(ANONYMOUS, "127.0.0.1", None, "-3")
REQUEST = CellRequest(0, 3, "stats", (), {}, "peer", ANONYMOUS, b"", False)


class ListLink(CellLink[FromCell]):
    """Keeps what is posted."""

    def __init__(self) -> None:
        super().__init__(FromCell)
        self.posted: list[Any] = []
        self.news: asyncio.Queue[Any] = asyncio.Queue()

    def post(self, message: Any, size: int = 0) -> None:
        self.posted.append(message)
        self.news.put_nowait(message)


class WaitingOwner(Owner):
    def __init__(self) -> None:
        super().__init__()
        self.is_over = asyncio.Event()

    def ended(self, code: int, reason: str, refusal: Refusal | None = None) -> None:
        super().ended(code, reason, refusal)
        self.is_over.set()


def test_a_leg_waits_for_its_process_and_is_lost_with_it() -> None:
    async def talk() -> None:
        process = ProcessLegs(0, (3,))
        owner = Owner()
        leg = RemoteCells([process]).open(3, HELLO, owner)
        leg.send(b"early\n")
        assert owner.holds == [True]
        link = ListLink()
        process.attach(link, 77)
        assert owner.holds == [True, False]
        leg.read(5)
        leg.identify(ANONYMOUS, "sam")
        assert [type(one) for one in link.posted] == [LegOpened, LegInput, LegRead, LegIdentified]
        no = link.posted[0].no
        link.received(LegOutput(no, [b"out"]))
        link.received(LegHeld(no, True))
        link.congested(True)
        link.received(LegHeld(no, False))
        link.congested(False)
        assert (owner.messages, owner.holds) == ([b"out"], [True, False, True, False])
        link.lost()
        assert owner.end == (*LEG_LOST, None)
        assert process.link is None

    asyncio.run(talk())


def test_legs_end_as_the_cell_or_the_client_says() -> None:
    async def talk() -> None:
        process, link = ProcessLegs(0, (3,)), ListLink()
        process.attach(link, 77)
        owner, other = Owner(), Owner()
        process.open(3, HELLO, owner)
        leg = process.open(3, HELLO, other)
        link.received(LegEnded(1, 1008, "Forbidden"))
        leg.close()
        link.received(LegOutput(2, [b"late"]))
        assert owner.end == (1008, "Forbidden", None)
        assert (other.messages, type(link.posted[-1])) == ([], LegClosed)

    asyncio.run(talk())


def test_requests_are_answered_cancelled_or_lost() -> None:
    async def talk() -> None:
        process, link = ProcessLegs(0, (3,)), ListLink()
        asked = asyncio.create_task(RemoteCells([process]).ask(REQUEST))
        await asyncio.sleep(0)
        process.attach(link, 77)
        link.received(CellAnswer((await link.news.get()).no, b"body"))
        assert await asked == b"body"
        cancelled = asyncio.create_task(process.ask(REQUEST))
        await link.news.get()
        cancelled.cancel()
        assert isinstance(await link.news.get(), RequestCancelled)
        lost = asyncio.create_task(process.ask(REQUEST))
        await link.news.get()
        link.received(CellDrained(4))
        link.lost()
        refusal = await lost
        assert isinstance(refusal, Refusal) and refusal.code == "Unreachable"
        assert process.abandoned == 4

    asyncio.run(talk())


def test_after_a_while_a_process_that_is_down_is_given_up(monkeypatch: Any) -> None:
    monkeypatch.setattr(remote_legs, "DOWN_MAX_S", 0.01)

    async def talk() -> None:
        process, owner = ProcessLegs(0, (3,)), WaitingOwner()
        process.open(3, HELLO, owner)
        refusal = await process.ask(REQUEST)
        assert isinstance(refusal, Refusal) and refusal.code == "Unreachable"
        await owner.is_over.wait()
        assert owner.end is not None and owner.end[2] is not None and "shard 3" in owner.end[2].message

    asyncio.run(talk())
