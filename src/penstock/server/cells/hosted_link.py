"""The cells' side of a link: its legs and its requests, at the cells that it may reach."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.core.errors import Refusal
from penstock.server.cells.cell_requests import CellServices, answer
from penstock.server.cells.leg_host import HostedLeg
from penstock.server.cells.messages import (
    CellAnswer,
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
    ToCell,
)

Post = Callable[[FromCell, int], None]
"""Sends a message of about so many bytes to the front."""
REPEATABLE = frozenset(("pull", "stats", "peek", "explain", "metrics", "where", "snapshot", "triggers", "prometheus"))
"""Routes whose requests change nothing that lasts until they are answered."""
_UNKNOWN = Refusal(
    "Unreachable", "the shard has moved, and what became of the request is not known", retry_after_ms=1_000
)


class LinkOwner:
    """Where a leg of this process leads to: the link to its front."""

    def __init__(self, link: HostedLink, no: int) -> None:
        self._link = link
        self._no = no

    def arrived(self, messages: list[bytes]) -> None:
        self._link.post(LegOutput(self._no, messages), sum(map(len, messages)))

    def held(self, on: bool) -> None:
        self._link.post(LegHeld(self._no, on), 0)

    def ended(self, code: int, reason: str, refusal: Refusal | None = None) -> None:
        if self._link.legs.pop(self._no, None) is not None:
            self._link.post(LegEnded(self._no, code, reason, refusal), 0)


class HostedLink:
    """The legs and requests of one link."""

    def __init__(self, post: Post, services: Callable[[int], CellServices]) -> None:
        """`services` are those of a shard."""
        self.post = post
        self._services = services
        self.legs: dict[int, HostedLeg] = {}
        self._requests: dict[int, tuple[CellRequest, asyncio.Task[None]]] = {}

    def received(self, message: ToCell) -> bool:
        """Whether this was about a leg or a request."""
        if isinstance(message, LegInput):
            if (leg := self.legs.get(message.no)) is not None:
                leg.send(message.data)
        elif isinstance(message, LegRead):
            if (leg := self.legs.get(message.no)) is not None:
                leg.read(message.size)
        elif isinstance(message, LegOpened):
            runtime = self._services(message.shard).runtime
            self.legs[message.no] = HostedLeg(runtime, message.hello, LinkOwner(self, message.no), message.query)
        elif isinstance(message, LegClosed):
            if (leg := self.legs.pop(message.no, None)) is not None:
                leg.close()
        elif isinstance(message, LegIdentified):
            if (leg := self.legs.get(message.no)) is not None:
                leg.identify(message.principal, message.agent)
        elif isinstance(message, CellRequest):
            task = asyncio.get_running_loop().create_task(self._answer(message))
            self._requests[message.no] = message, task
        elif isinstance(message, RequestCancelled):
            if (asked := self._requests.pop(message.no, None)) is not None:
                asked[1].cancel()
        else:
            return False
        return True

    async def _answer(self, asked: CellRequest) -> None:
        said = await answer(self._services(asked.shard), asked)
        if self._requests.pop(asked.no, None) is not None:
            self.post(said, len(said.body))

    def end_requests(self) -> list[CellAnswer]:
        """The cell ends: what is known of the requests that it has not answered."""
        asked, self._requests = self._requests, {}
        for _, task in asked.values():
            task.cancel()
        return [CellAnswer(no, b"", _UNKNOWN, request.route in REPEATABLE) for no, (request, _) in asked.items()]

    def refuse(self, asked: CellRequest) -> None:
        """The cell takes no more requests: this one was not carried out."""
        self.post(CellAnswer(asked.no, b"", _UNKNOWN, is_untouched=True), 0)

    def close(self) -> None:
        """The front is gone, and with it all its clients."""
        legs, self.legs = self.legs, {}
        for leg in legs.values():
            leg.close()
        asked, self._requests = self._requests, {}
        for _, task in asked.values():
            task.cancel()
