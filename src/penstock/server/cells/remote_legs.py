"""The front's side of the processes of cells: legs and requests over their links.

While a process is down, what a client wants of its shards waits: the client is not read, and a request is answered when the process is
back, or refused after `DOWN_MAX_S`. Legs that were open are lost with their process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from prometheus_client.core import Metric

from penstock.core.cluster.status import ClusterStatus, OwnerMap
from penstock.core.errors import Refusal
from penstock.core.scopes import Principal
from penstock.dialects.courier.sessions.front.legs import LEG_LOST, LegHello, LegOwner, LegPort
from penstock.dialects.courier.sessions.subscribe import SubscribeQuery
from penstock.server.admin.cluster import ClusterDecider
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
    ToCell,
)

DOWN_MAX_S = 15.0
"""How long clients wait for a process of cells that is being restarted."""


class RemoteLeg:
    """A leg at a cell of another process."""

    def __init__(self, process: ProcessLegs, no: int, shard: int, owner: LegOwner) -> None:
        self._process = process
        self.no = no
        self.shard = shard
        self.owner = owner
        self.early: list[ToCell] | None = None
        """What waits for the process to be there; None when it is."""
        self._is_cell_held = False
        self._is_held = False

    def _post(self, message: ToCell, size: int = 0) -> None:
        if self.early is not None:
            self.early.append(message)
        else:
            self._process.post(message, size)

    def send(self, lines: bytes) -> None:
        self._post(LegInput(self.no, lines), len(lines))

    def identify(self, principal: Principal, agent: str | None) -> None:
        self._post(LegIdentified(self.no, principal, agent))

    def read(self, size: int) -> None:
        self._post(LegRead(self.no, size))

    def close(self) -> None:
        if self.early is not None:
            self.early = []  # the timer of `open` still refers to this leg
        self._post(LegClosed(self.no))
        self._process.forget(self)

    def held(self, on: bool | None = None) -> None:
        """The cell holds the leg, or nothing can be sent to it."""
        if on is not None:
            self._is_cell_held = on
        is_held = self._is_cell_held or self.early is not None or self._process.is_congested
        if is_held != self._is_held:
            self._is_held = is_held
            self.owner.held(is_held)


class ProcessLegs:
    """The legs and requests at one process of cells."""

    lost = LEG_LOST
    """How connections end whose leg was lost with it."""

    def __init__(self, index: int, shards: tuple[int, ...]) -> None:
        self.index = index
        self.shards = shards
        self.link: CellLink[FromCell] | None = None
        self.pid = 0
        self.is_congested = False
        self._no = 0
        self._legs: dict[int, RemoteLeg] = {}
        self._asked: dict[int, asyncio.Future[CellAnswer]] = {}
        self.is_up = asyncio.Event()
        self.drained = asyncio.Event()
        self.abandoned = 0
        """Leases that it gave up when it was drained."""

    def down(self, shard: int) -> Refusal:
        """What waited for too long."""
        return Refusal("Unreachable", f"the process of shard {shard} is down", retry_after_ms=1_000)

    def unknown(self) -> Refusal:
        """What becomes of a request that was under way."""
        message = "the process of this stream was restarted, and what became of the request is not known"
        return Refusal("Unreachable", message, retry_after_ms=1_000)

    def post(self, message: ToCell, size: int = 0) -> None:
        if self.link is not None:
            self.link.post(message, size)

    def attach(self, link: CellLink[FromCell], pid: int) -> None:
        """The process is there."""
        if self.link is not None:  # the new process was faster than the end of the old one's socket
            self.link.close()
        self.link, self.pid = link, pid
        self.drained.clear()
        link.received, link.lost, link.congested = self._received, lambda: self._lost(link), self._congested
        self.is_up.set()
        for leg in list(self._legs.values()):
            early, leg.early = leg.early or [], None
            for message in early:
                link.post(message)
            leg.held()

    def _lost(self, link: CellLink[FromCell]) -> None:
        """The process is gone, with all that it held for clients."""
        if link is not self.link:
            return
        self.link = None
        self.is_up.clear()
        self.drained.set()
        self.is_congested = False
        legs, self._legs = self._legs, {}
        for leg in legs.values():
            leg.owner.ended(*self.lost)
        asked, self._asked = self._asked, {}
        for no, future in asked.items():
            if not future.done():
                future.set_result(CellAnswer(no, b"", self.unknown()))

    def _congested(self, on: bool) -> None:
        self.is_congested = on
        for leg in list(self._legs.values()):
            leg.held()

    def _received(self, message: FromCell) -> None:
        if isinstance(message, LegOutput):
            if (leg := self._legs.get(message.no)) is not None:
                leg.owner.arrived(message.messages)
        elif isinstance(message, LegHeld):
            if (leg := self._legs.get(message.no)) is not None:
                leg.held(message.on)
        elif isinstance(message, LegEnded):
            if (leg := self._legs.pop(message.no, None)) is not None:
                leg.owner.ended(message.code, message.reason, message.refusal)
        elif isinstance(message, CellAnswer):
            future = self._asked.pop(message.no, None)
            if future is not None and not future.done():
                future.set_result(message)
        elif isinstance(message, CellDrained):
            self.abandoned = message.abandoned
            self.drained.set()

    def open(self, shard: int, hello: LegHello, owner: LegOwner, query: SubscribeQuery | None = None) -> LegPort:
        self._no += 1
        leg = self._legs[self._no] = RemoteLeg(self, self._no, shard, owner)
        opened = LegOpened(leg.no, shard, hello, query)
        if self.link is not None:
            self.post(opened)
            if self.is_congested:
                leg.held()
            return leg
        leg.early = [opened]
        leg.held()
        asyncio.get_running_loop().call_later(DOWN_MAX_S, self._give_up, leg)
        return leg

    def _give_up(self, leg: RemoteLeg) -> None:
        if leg.early is not None and self._legs.pop(leg.no, None) is not None:
            refusal = self.down(leg.shard)
            leg.owner.ended(1013, refusal.code, refusal)

    def forget(self, leg: RemoteLeg) -> None:
        self._legs.pop(leg.no, None)

    async def ask(self, asked: CellRequest) -> bytes | Refusal:
        """Have a cell carry out a request."""
        answer = await self.ask_once(asked)
        if isinstance(answer, Refusal):
            return answer
        return answer.body if answer.refusal is None else answer.refusal

    async def ask_once(self, asked: CellRequest) -> CellAnswer | Refusal:
        """What the cell says, or why it cannot be asked."""
        try:
            await asyncio.wait_for(self.is_up.wait(), DOWN_MAX_S)
        except TimeoutError:
            return self.down(asked.shard)
        self._no += 1
        asked.no = self._no
        future = self._asked[asked.no] = asyncio.get_running_loop().create_future()
        self.post(asked, len(asked.data))
        try:
            answer: CellAnswer = await future
        except asyncio.CancelledError:
            self._asked.pop(asked.no, None)
            self.post(RequestCancelled(asked.no))
            raise
        return answer


class RemoteCells:
    """All shards, by the process that owns each."""

    owners: OwnerMap | None = None

    def cluster_status(self) -> ClusterStatus | None:
        """The cluster, if this is one."""
        return None

    def decider(self) -> ClusterDecider | None:
        """What decides about the cluster, if this is one."""
        return None

    def __init__(self, processes: list[ProcessLegs]) -> None:
        self.processes = processes
        self.by_shard: Mapping[int, ProcessLegs] = {shard: process for process in processes for shard in process.shards}

    def metrics(self) -> Iterable[Metric]:
        """What is exported of them."""
        return ()

    def open(self, shard: int, hello: LegHello, owner: LegOwner, query: SubscribeQuery | None = None) -> LegPort:
        return self.by_shard[shard].open(shard, hello, owner, query)

    async def ask(self, asked: CellRequest) -> bytes | Refusal:
        return await self.by_shard[asked.shard].ask(asked)
