"""The session of a client connection in front of several cells.

It answers `hello` and `ping` itself and hands every other line to the cell of its stream, subscription or lease. A cell knows the
connection as a leg (`legs.py`); `order.py` puts the answers of the legs in order. What the front cannot read goes to any cell, whose
session refuses it and counts strikes. Unlike a connection to one cell, one that leaves out labels and lease ids and subscribes at several
cells waits for each cell in turn when it settles: only the cell knows what it holds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from penstock.core.clock import Now
from penstock.core.errors import Refusal
from penstock.core.placement import SHARDS
from penstock.dialects.courier.operations.merges import MERGES
from penstock.dialects.courier.sessions.answers import RuntimePort
from penstock.dialects.courier.sessions.control.frames import HelloFrame
from penstock.dialects.courier.sessions.control.runs import error_line, ok_line
from penstock.dialects.courier.sessions.control.session import ControlSession
from penstock.dialects.courier.sessions.front.legs import LegHello, LegOpener, LegPort
from penstock.dialects.courier.sessions.front.lines import (
    BY_STREAM,
    MERGED,
    SETTLES,
    LinePlace,
    decode_place,
    shard_of_lease,
    shard_of_stream,
)
from penstock.dialects.courier.sessions.front.order import AnswerChunk, Finish, FrontAnswers, Parts
from penstock.dialects.courier.wire.envelopes import inbox

ANSWERS = (b'{"type":"ok"', b'{"type":"error"')
"""How answers begin; all else that a cell writes is a delivery or a change of a view."""
NOT_HELD = ("UnknownEnvelope", "NotLeaseHolder", "AlreadyAcked", "LeaseExpired")
"""Codes with which a cell refuses to settle what another cell may hold."""
LIVE_HINT = "read the view with `snapshot`"


class _Answer(msgspec.Struct):
    """What the front reads of an answer."""

    type: str
    result: msgspec.Raw = msgspec.Raw(b"null")
    code: str = ""
    ref: str | None = None
    req_id: str | int | None = msgspec.field(default=None, name="reqId")


class _Ack(msgspec.Struct):
    id: str | list[str]


_decode_answer = msgspec.json.Decoder(_Answer).decode


def _renamed(data: bytes, req_id: str | int | None) -> bytes:
    """An error line with the `reqId` of the client."""
    return msgspec.json.encode({**msgspec.json.decode(data), "reqId": "req" if req_id is None else req_id}) + b"\n"


class FrontLeg:
    """One leg, as its front knows it."""

    def __init__(self, front: FrontSession, shard: int) -> None:
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


class FrontSession(ControlSession):
    """One client connection that speaks Control v1 with all cells."""

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
        self._labels: dict[str, FrontLeg] = {}
        """Where the subscriptions are whose labels the client chose."""
        self._newest: list[FrontLeg | None] = []
        """Where it subscribed, the newest last; None for a subscribe that was refused here."""
        # Only this front knows it, so no request of a client has it as its `reqId`.
        mark = runtime.machine.entropy(8).hex()
        self._mark_line = b'{"type":"ping","reqId":"%b"}' % mark.encode()
        self._mark = ok_line(mark, {})

    # From the client

    def receive(self, now: Now, data: bytes) -> None:
        self._is_receiving = True
        try:
            if self.token_needed or self._queue:
                super().receive(now, data)
            elif self.closing is None:
                whole = self._lines.add(data)
                if whole is not None:
                    self._take(now, whole.split(b"\n"), None)
                if self.closing is None and (head := self._lines.overflow(self._line_max)):
                    self._too_large(head)
        finally:
            self._is_receiving = False
            self._send_due()

    def _line(self, now: Now, line: bytes, problem: Refusal | None) -> None:
        if self.token_needed:
            super()._line(now, line, problem)
            return
        try:
            place = decode_place(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._unreadable(line)
            return
        kind = place.type
        if kind in ("hello", "ping"):
            super()._line(now, line, problem)
            return
        flood = self._flood_limiter.flood(now)
        if flood is not None:
            self._fail(None, flood, close=1008)
            return
        if kind in BY_STREAM or kind == "send":
            self._by_stream(kind, line, place)
        elif kind in SETTLES:
            self._settle(line, place)
        elif kind in ("grant", "unsubscribe"):
            self._with_label(kind, line, place)
        elif kind == "settle":
            self._forward(self._leg(self._shard_of_settle(place)), line)
        elif kind in MERGED:
            self._merge(line, place)
        elif kind == "live":
            refusal = Refusal("Unsupported", "views are not followed with `--cells`", ref="live", hint=LIVE_HINT)
            self._fail(place.req_id, refusal)
        else:
            self._forward(self._any_leg(), line)

    def _hello(self, now: Now, frame: HelloFrame) -> None:
        before = self.link.principal, self.link.agent
        if frame.unordered and not self._legs:
            self.answers.is_unordered = True
        super()._hello(now, frame)
        if (self.link.principal, self.link.agent) != before:
            self.identified_as()

    def _unreadable(self, line: bytes) -> None:
        leg = self._any_leg()
        if b'"subscribe"' in line:  # grants that follow mean it, and must reach no other subscription
            self._note_newest(leg)
        self._forward(leg, line)

    def _by_stream(self, kind: str, line: bytes, place: LinePlace) -> None:
        name = place.to if kind in ("enqueue", "send") else place.stream
        if name is None:
            self._unreadable(line)
            return
        leg = self._leg(self._shard(inbox(name) if kind == "send" else name))
        if kind == "subscribe":
            self._subscribe_at(leg, line, place)
        else:
            self._forward(leg, line)

    def _shard(self, stream: str) -> int:
        return shard_of_stream(self.link.principal.to_channel(stream))

    def _shard_of_settle(self, place: LinePlace) -> int:
        shard = None if place.lease_id is None else shard_of_lease(place.lease_id)
        if shard is None and place.stream is not None:
            shard = self._shard(place.stream)
        return self._any_leg().shard if shard is None else shard

    def _subscribe_at(self, leg: FrontLeg, line: bytes, place: LinePlace) -> None:
        label = place.sub_id
        if label is None:
            leg.is_subscribed = True
            self._note_newest(leg)
            self._forward(leg, line)
            return
        refusal = None
        if label in self._labels:
            refusal = Refusal("InvalidRequest", f"`subId` {label[:64]!r} is in use or too long", ref="subId")
        elif len(self._labels) >= (limit := self._machine.limits.subscriptions_max):
            refusal = Refusal("QuotaExceeded", f"one connection has at most {limit} subscriptions and waiting pulls")
        if refusal is not None:
            self._note_newest(None)
            self._fail(place.req_id, refusal)
            return
        self._labels[label] = leg
        leg.is_subscribed = True
        self._note_newest(leg)

        def finish(parts: Parts) -> bytes:
            if any(data.startswith(ANSWERS[1]) for _, data in parts):
                self._labels.pop(label, None)
            return b"".join(data for _, data in parts)

        self._ask([leg], [line], finish)

    def _note_newest(self, leg: FrontLeg | None) -> None:
        self._newest.append(leg)
        if len(self._newest) > self._machine.limits.subscriptions_max:
            del self._newest[0]

    def _leg_of_label(self, label: str) -> FrontLeg | None:
        """Where a subscription is; a label that a cell made up ends with the number of its shard."""
        if (leg := self._labels.get(label)) is not None:
            return leg
        shard = shard_of_lease(label)
        return None if shard is None else self._legs.get(shard)

    def _with_label(self, kind: str, line: bytes, place: LinePlace) -> None:
        label = place.sub_id
        if label is None:
            newest = self._newest[-1] if self._newest else None
            if newest is None:
                self._fail(place.req_id, Refusal("InvalidRequest", "subscribe first", ref="subId"))
                return
            leg = newest
            if kind == "unsubscribe":
                self._newest.pop()
        else:
            leg = self._leg_of_label(label) or self._any_leg()
            if kind == "unsubscribe" and self._labels.pop(label, None) is not None and leg in self._newest:
                self._newest.reverse()
                self._newest.remove(leg)
                self._newest.reverse()
        self._forward(leg, line)

    # Settles without a label or a lease id

    def _settle(self, line: bytes, place: LinePlace) -> None:
        leg: FrontLeg | None = None
        if place.sub_id is not None:
            leg = self._leg_of_label(place.sub_id) or self._any_leg()
        elif place.lease_id is not None and (shard := shard_of_lease(place.lease_id)) is not None:
            leg = self._leg(shard)
        subscribed = [one for one in self._legs.values() if one.is_subscribed]
        if leg is None and len(subscribed) < 2:
            leg = subscribed[0] if subscribed else self._any_leg()
        if leg is not None:
            self._forward(leg, line)
            return
        try:
            ids = msgspec.json.decode(line, type=_Ack).id
        except msgspec.DecodeError:
            self._forward(self._any_leg(), line)
            return
        self._try_each(subscribed, line, place, ids)

    def _try_each(self, legs: list[FrontLeg], line: bytes, place: LinePlace, ids: str | list[str]) -> None:
        """Settle at the cell that holds the envelope, one cell after the other: two of them may hold the same id.

        The ids of an array go one by one, so that each has its own answer, which waits for the commit.
        """
        others = legs[1:]
        left = dict.fromkeys(ids if isinstance(ids, list) else [])
        refused: dict[str, bytes] = {}
        """The last refusal by its id; a cell that knows the envelope says more about it."""

        def lines() -> list[bytes]:
            if isinstance(ids, str):
                return [line]
            return [msgspec.json.encode({"type": place.type, "id": one, "reqId": one}) for one in left]

        def finish(parts: Parts) -> bytes | None:
            answered = [(_decode_answer(data), data) for _, data in parts]
            if isinstance(ids, str):
                if not any(answer.code in NOT_HELD for answer, _ in answered):
                    return b"".join([data for _, data in parts])
                left[ids] = None
            for answer, data in answered:
                if answer.type == "ok":
                    left.pop(str(answer.req_id), None)
                    refused.pop(str(answer.req_id), None)
                elif answer.ref not in refused or answer.code != NOT_HELD[0]:
                    refused[str(answer.ref)] = data
            if left and others:
                self._post(others.pop(0), lines(), chunk)
                self._send_due()
                return None
            if refused:
                return b"".join([_renamed(data, place.req_id) for data in refused.values()])
            return b"" if place.req_id is None else ok_line(place.req_id, {"id": ids})

        chunk = self._ask(legs[:1], lines(), finish)

    # Requests that every cell answers

    def _merge(self, line: bytes, place: LinePlace) -> None:
        name = place.type
        if name == "trigger":
            if place.op == "try":
                self._forward(self._leg(self._shard(place.to or "")), line)
                return
            name = {"ls": "triggers", "put": "trigger_put", "remove": "trigger_remove"}.get(place.op, "trigger")
        merge, req_id = MERGES[name], place.req_id

        def finish(parts: Parts) -> bytes:
            bodies: list[bytes] = []
            refused: list[bytes] = []
            for _, data in parts:
                answer = _decode_answer(data)
                if answer.type == "ok":
                    bodies.append(bytes(answer.result))
                elif not (name == "where" and answer.code == "UnknownEnvelope"):
                    return data
                else:
                    refused.append(data)
            if not bodies or req_id is None:
                return refused[0] if refused else b""
            return ok_line(req_id, msgspec.Raw(merge(bodies)))

        legs = [self._leg(shard) for shard in range(SHARDS)]
        self._ask(legs, [line], finish)

    # To the cells

    def _leg(self, shard: int) -> FrontLeg:
        leg = self._legs.get(shard)
        if leg is None:
            leg = self._legs[shard] = FrontLeg(self, shard)
            link = self.link
            hello = LegHello(link.principal, link.peer, link.agent, f"-{shard:x}")
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
        """The rights of the client have changed: the cells check them too."""
        for leg in list(self._legs.values()):
            leg.port.identify(self.link.principal, self.link.agent)

    def gone(self) -> None:
        """The client is gone, and so are its legs."""
        self._is_gone = True
        for leg in self._legs.values():
            leg.port.close()
        self._legs.clear()
