"""The legs of one client connection: what goes to each cell, and what comes back.

A base of the front's session, which decides where a line goes. Here lines are gathered for each leg, marks end the chunks, and what the
cells write is divided into answers, which keep their order (`order.py`), and deliveries, which wait for nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from penstock.core.errors import Refusal
from penstock.dialects.courier.sessions.answers import RuntimePort
from penstock.dialects.courier.sessions.control.runs import error_line, ok_line
from penstock.dialects.courier.sessions.control.session import ControlSession
from penstock.dialects.courier.sessions.front.legs import LegHello, LegOpener, LegPort
from penstock.dialects.courier.sessions.front.lines import shard_suffix
from penstock.dialects.courier.sessions.front.order import AnswerChunk, Finish, FrontAnswers

ANSWERS = (b'{"type":"ok"', b'{"type":"error"')
"""How answers begin; all else that a cell writes is a delivery or a change of a view."""


class FrontLeg:
    """One leg, as its front knows it."""

    def __init__(self, front: LeggedSession, shard: int) -> None:
        self._front = front
        self.shard = shard
        self.port: LegPort
        self.lines: list[bytes] = []
        """Lines that go to the cell when the input is handled."""
        self.chunks: deque[AnswerChunk] = deque()
        """Chunks whose answers or marks are expected, in their order."""
        self.open: AnswerChunk | None = None
        """The last of them while no mark follows it."""
        self.is_subscribed = False
        self.is_held = False
        self.unread = 0
        """Bytes that the cell wrote and the client has not taken."""

    def arrived(self, messages: list[bytes]) -> None:
        self._front.leg_wrote(self, messages)

    def held(self, on: bool) -> None:
        self._front.leg_held(self, on)

    def ended(self, code: int, reason: str, refusal: Refusal | None = None) -> None:
        self._front.leg_ended(self, code, reason, refusal)


class LeggedSession(ControlSession):
    """A client connection with legs at cells."""

    answers: FrontAnswers

    def __init__(self, runtime: RuntimePort, cells: LegOpener, *, token_needed: bool) -> None:
        super().__init__(runtime, token_needed=token_needed)
        self.answers = FrontAnswers(runtime, self, end_chunk=self._end_chunk)
        self.wake: Callable[[], None] = lambda: None
        """Writes what is due to the client; set with the connection."""
        self._cells = cells
        self._legs: dict[int, FrontLeg] = {}
        self._current: FrontLeg | None = None
        """The leg of the last line. In the order only its chunk can be open."""
        self._due: dict[FrontLeg, None] = {}
        """Legs with lines to send."""
        self._is_receiving = False
        self._is_stuck = self._is_gone = False
        # Only this front knows it, so no request of a client has it as its `reqId`.
        mark = runtime.machine.entropy(8).hex()
        self._mark_line = b'{"type":"ping","reqId":"%b"}' % mark.encode()
        self._mark = ok_line(mark, {})

    # To the cells

    def _leg(self, shard: int) -> FrontLeg:
        leg = self._legs.get(shard)
        if leg is None:
            leg = self._legs[shard] = FrontLeg(self, shard)
            link = self.link
            hello = LegHello(link.principal, link.peer, link.agent, shard_suffix(shard))
            leg.port = self._cells.open(shard, hello, leg)
        return leg

    def _any_leg(self) -> FrontLeg:
        return self._current or next(iter(self._legs.values()), None) or self._leg(0)

    def _forward(self, leg: FrontLeg, line: bytes) -> None:
        """Hand a line to a cell, behind those before it."""
        if leg is not self._current:
            if not self.answers.is_unordered:
                self._end_chunk()
            self._current = leg
        if leg.open is None:
            leg.open = self.answers.begin()
            leg.open.waiting = 1
            leg.chunks.append(leg.open)
        leg.lines.append(line)
        self._due[leg] = None

    def _end_chunk(self) -> None:
        """A mark follows the last line of the chunk that is open."""
        leg = self._current
        if leg is not None and leg.open is not None:
            self._end(leg)
            if not self._is_receiving:
                self._send_due()

    def _end(self, leg: FrontLeg) -> None:
        leg.open = None
        leg.lines.append(self._mark_line)
        self._due[leg] = None

    def _ask(self, legs: list[FrontLeg], lines: list[bytes], finish: Finish) -> AnswerChunk:
        """Send lines to cells, and make one answer of theirs."""
        if not self.answers.is_unordered:
            self._end_chunk()
        chunk = self.answers.begin(finish)
        for leg in legs:
            self._post(leg, lines, chunk)
        return chunk

    def _post(self, leg: FrontLeg, lines: list[bytes], chunk: AnswerChunk) -> None:
        """Send lines whose answers are collected in this chunk."""
        if leg.open is not None:
            self._end(leg)
        chunk.waiting += 1
        leg.chunks.append(chunk)
        leg.lines += (*lines, self._mark_line)
        self._due[leg] = None

    def _send_due(self) -> None:
        while self._due and not self._is_gone:
            due, self._due = self._due, {}
            for leg in due:
                lines, leg.lines = leg.lines, []
                leg.port.send(b"\n".join([*lines, b""]))

    # From the cells

    def leg_wrote(self, leg: FrontLeg, messages: list[bytes]) -> None:
        """A cell wrote answers, marks and deliveries."""
        if self._is_gone:
            return
        size = 0
        for message in messages:
            size += len(message)
            if not message.startswith(ANSWERS):
                self.out.append(message)
            elif message == self._mark:
                self.answers.marked(leg.chunks.popleft())
            elif leg.chunks:
                self.answers.arrived(leg.chunks[0], leg.shard, message)
            else:  # it was not asked for: the cell is about to close the leg
                self.answers.add(message)
        leg.unread += size
        if not self._is_stuck:
            self._taken(leg)
        self.wake()

    def _taken(self, leg: FrontLeg) -> None:
        size, leg.unread = leg.unread, 0
        if size:
            leg.port.read(size)

    def leg_held(self, leg: FrontLeg, on: bool) -> None:
        if on != leg.is_held:
            leg.is_held = on
            self.answers.held_legs += 1 if on else -1
            self.wake()

    def leg_ended(self, leg: FrontLeg, code: int, reason: str, refusal: Refusal | None) -> None:
        """A cell closed its leg, or is gone: the connection ends as it would have without a front."""
        if self._is_gone or self._legs.pop(leg.shard, None) is None:
            return
        self.leg_held(leg, False)
        self._due.pop(leg, None)
        leg.open = None
        if leg is self._current:
            self._current = None
        if leg.chunks:
            self.answers.cut(leg.chunks[0])
        if refusal is not None:
            self.out.append(error_line(None, refusal))
        if self.closing is None:
            self.closing = (code, reason)
        self._end_chunk()  # no further line does, and the connection closes only when every chunk is complete
        self.wake()

    # What the connection calls

    def drain(self, refusal: Refusal) -> None:
        """Close after the answers that the cells still owe."""
        if self.answers.is_unordered:
            for leg in self._legs.values():
                if leg.open is not None:
                    self.answers.expect(leg.open)
                    self._end(leg)
            self._send_due()
        super().drain(refusal)

    def congested(self, on: bool) -> None:
        """The client does not read, or reads again."""
        self._is_stuck = on
        if not on:
            for leg in list(self._legs.values()):
                self._taken(leg)

    def identified_as(self) -> None:
        """The rights of the client have changed: the cells check them too, for the lines that follow."""
        self._send_due()
        for leg in list(self._legs.values()):
            leg.port.identify(self.link.principal, self.link.agent)

    def gone(self) -> None:
        """The client is gone, and so are its legs."""
        self._is_gone = True
        for leg in self._legs.values():
            leg.port.close()
        self._legs.clear()
