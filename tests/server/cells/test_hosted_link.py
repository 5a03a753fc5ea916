"""The cells' side of a link: legs and requests, and how they end with the cell or with the front."""

from __future__ import annotations

import asyncio
from typing import Any

from penstock.core.scopes import ANONYMOUS
from penstock.dialects.courier.sessions.front.legs import LegHello
from penstock.server.cells.cell_requests import CellServices
from penstock.server.cells.hosted_link import HostedLink
from penstock.server.cells.messages import (
    CellAnswer,
    CellDrain,
    CellRequest,
    LegClosed,
    LegInput,
    LegOpened,
    LegOutput,
    RequestCancelled,
)
from penstock.server.config.load import Config
from tests.dialects.courier.talking import Broker

HELLO = LegHello(ANONYMOUS, "127.0.0.1", None, "-3")


class Host:
    def __init__(self) -> None:
        self.broker = Broker()
        self.posted: list[Any] = []
        services = CellServices(Config(), self.broker.runtime, None)  # type: ignore[arg-type]  # not used here
        self.link = HostedLink(lambda message, size: self.posted.append(message), lambda shard: services)


def request(no: int, route: str) -> CellRequest:
    body = b'{"stream":"s","wait_ms":60000}'
    return CellRequest(no, 3, route, (), {}, "peer", ANONYMOUS, body, False)


def test_legs_open_answer_and_close() -> None:
    host = Host()
    assert host.link.received(LegOpened(1, 3, HELLO))
    assert host.link.received(LegInput(1, b'{"type":"ping","reqId":1}\n'))
    host.broker.run()
    (output,) = host.posted
    assert isinstance(output, LegOutput) and output.no == 1
    assert host.link.received(LegClosed(1))
    assert len(host.broker.runtime.peers) == 0
    assert not host.link.received(CellDrain()), "that is about the whole process"


def test_requests_that_the_cell_has_not_answered_say_whether_they_may_be_repeated() -> None:
    async def talk() -> None:
        host = Host()
        host.link.received(request(1, "pull"))
        await asyncio.sleep(0)
        host.link.received(request(2, "settle"))
        answers = host.link.end_requests()
        assert [(one.no, one.is_untouched) for one in answers] == [(1, True), (2, False)]
        assert host.link.end_requests() == []
        await asyncio.sleep(0)
        assert host.posted == []

    asyncio.run(talk())


def test_a_request_that_comes_too_late_is_not_carried_out() -> None:
    host = Host()
    host.link.refuse(request(1, "enqueue"))
    (answer,) = host.posted
    assert isinstance(answer, CellAnswer) and answer.is_untouched


def test_a_front_that_is_gone_leaves_nothing_behind() -> None:
    async def talk() -> None:
        host = Host()
        host.link.received(LegOpened(1, 3, HELLO))
        host.link.received(request(1, "pull"))
        host.link.received(request(2, "pull"))
        await asyncio.sleep(0)
        assert len(host.broker.runtime.peers) == 3
        host.link.received(RequestCancelled(1))
        await asyncio.sleep(0)
        assert len(host.broker.runtime.peers) == 2
        host.link.close()
        await asyncio.sleep(0)
        assert (len(host.broker.runtime.peers), host.posted) == (0, [])

    asyncio.run(talk())
