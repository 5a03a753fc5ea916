"""The session of a client connection in front of several cells.

It answers `hello` and `ping` itself and hands every other line to the cell of its stream, subscription or lease. A cell knows the
connection as a leg (`legs.py`); `order.py` puts the answers of the legs in order. What the front cannot read goes to any cell, whose
session refuses it and counts strikes. Unlike a connection to one cell, one that leaves out labels and lease ids and subscribes at several
cells waits for each cell in turn when it settles: only the cell knows what it holds.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec

from penstock.core.clock import Now
from penstock.core.cluster.status import OwnerMap
from penstock.core.errors import Refusal
from penstock.core.placement import SHARDS
from penstock.dialects.courier.operations.merges import MERGES
from penstock.dialects.courier.sessions.answers import RuntimePort
from penstock.dialects.courier.sessions.control.frames import READ_WEIGHT, FollowFrame, HelloFrame
from penstock.dialects.courier.sessions.control.runs import ok_line
from penstock.dialects.courier.sessions.control.session import WEIGHT_MAX
from penstock.dialects.courier.sessions.front.legged_session import ANSWERS, FrontLeg, LeggedSession
from penstock.dialects.courier.sessions.front.legs import LegOpener
from penstock.dialects.courier.sessions.front.lines import (
    BY_STREAM,
    MERGED,
    SETTLES,
    LinePlace,
    decode_place,
    shard_of_stream,
    shard_of_suffix,
)
from penstock.dialects.courier.sessions.front.order import Parts
from penstock.dialects.courier.wire.envelopes import inbox

NOT_HELD = ("UnknownEnvelope", "NotLeaseHolder", "AlreadyAcked", "LeaseExpired")
"""Codes with which a cell refuses to settle what another cell may hold."""


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


def _in_use(label: str) -> Refusal:
    return Refusal("InvalidRequest", f"`subId` {label[:64]!r} is in use or too long", ref="subId")


class FrontSession(LeggedSession):
    """One client connection that speaks Control v1 with all cells."""

    def __init__(self, runtime: RuntimePort, cells: LegOpener, *, token_needed: bool) -> None:
        super().__init__(runtime, cells, token_needed=token_needed)
        self._labels: dict[str, FrontLeg] = {}
        """Where the subscriptions are whose labels the client chose."""
        self._newest: list[FrontLeg | None] = []
        """Where it subscribed, the newest last; None for a subscribe that was refused here."""
        self._wants_owners = False

    # From the client

    def receive(self, now: Now, data: bytes) -> None:
        self._is_receiving = True
        try:
            if self.token_needed or self._queue:
                super().receive(now, data)
            elif self.closing is None:
                whole = self._lines.add(data)
                if whole is not None:
                    self._hand_on(now, whole.split(b"\n"))
                if self.closing is None and (head := self._lines.overflow(self._line_max)):
                    self._too_large(head)
        finally:
            self._is_receiving = False
            self._send_due()

    def _hand_on(self, now: Now, lines: list[bytes]) -> None:
        """Whole lines, without the checks that the cells make."""
        self._weight = 0
        for number, line in enumerate(lines, 1):
            if self.closing is not None:
                return
            if len(line) > self._line_max:
                self._too_large(line)
            elif line and line != b"\r":
                self._line(now, line, None, -1) if self._flood_limiter.flood(now) is None else self._flood(now)
            if self._weight > WEIGHT_MAX:
                self._queue.hold_back(lines[number:])
                return

    def _take(self, now: Now, lines: list[bytes], problem: Refusal | None) -> None:
        super()._take(now, lines, problem)
        self._send_due()  # lines that have waited may come without an input

    def _line(self, now: Now, line: bytes, problem: Refusal | None, depth: int) -> None:
        if self.token_needed:
            super()._line(now, line, problem, depth)
            return
        try:
            place = decode_place(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._unreadable(line)
            return
        kind = place.type
        if kind in ("hello", "ping"):
            super()._line(now, line, problem, depth)
            return
        if kind in BY_STREAM:
            self._by_stream(kind, line, place)
        elif kind in SETTLES:
            self._settle(line, place)
        elif kind in ("grant", "unsubscribe"):
            if place.sub_id is not None and place.sub_id in self._followers:
                super()._line(now, line, problem, depth)
            else:
                self._with_label(kind, line, place)
        elif kind == "settle":
            self._forward(self._leg(self._shard_of_settle(place)), line)
        elif kind in MERGED:
            self._merge(line, place)
        elif kind == "live":
            self._live(now, line, place)
        else:
            self._forward(self._any_leg(), line)

    def _hello(self, now: Now, frame: HelloFrame) -> None:
        before = self.link.principal, self.link.agent
        if frame.unordered and not self._legs:
            self.answers.is_unordered = True
        super()._hello(now, frame)
        if (self.link.principal, self.link.agent) != before:
            self.identified_as()

    def _greeting(self, frame: HelloFrame) -> dict[str, object]:
        self._wants_owners = frame.owners
        owners = self._cells.owners
        return {"owners": owners} if frame.owners and owners is not None else {}

    def owners_changed(self, owners: OwnerMap) -> None:
        """Another node owns a shard now."""
        if self._wants_owners and self.closing is None:
            self.out.append(msgspec.json.encode({"type": "owners", "owners": owners}) + b"\n")
            self.wake()

    def _live(self, now: Now, line: bytes, place: LinePlace) -> None:
        """Follow a view: the front has copies of those of the cells."""
        if place.sub_id is not None and place.sub_id in self._labels:
            self._fail(place.req_id, _in_use(place.sub_id))
        else:
            super()._line(now, line, None, -1)

    def _follow(self, now: Now, frame: FollowFrame) -> None:
        frame.since = None  # versions of a snapshot, which the cells give, are not those of the copy
        super()._follow(now, frame)

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
        shard = None if place.lease_id is None else shard_of_suffix(place.lease_id)
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
        if label in self._labels or label in self._followers:
            refusal = _in_use(label)
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
        shard = shard_of_suffix(label)
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
        elif place.lease_id is not None and (shard := shard_of_suffix(place.lease_id)) is not None:
            leg = self._leg(shard)
        subscribed = [one for one in self._legs.values() if one.is_subscribed]
        if leg is None and len(subscribed) < 2:
            leg = subscribed[0] if subscribed else self._any_leg()
        if leg is not None:
            self._forward(leg, line)
            return
        ids: str | list[str] | None = None
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            ids = msgspec.json.decode(line, type=_Ack).id
        if ids is None or (isinstance(ids, list) and len(ids) > self._machine.limits.batch_max):  # a cell refuses it
            self._forward(self._any_leg(), line)
            return
        self._try_each(subscribed, line, place, ids)

    def _try_each(self, legs: list[FrontLeg], line: bytes, place: LinePlace, ids: str | list[str]) -> None:
        """Settle at the cell that holds the envelope, one cell after the other: two of them may hold the same id.

        The ids of an array go one by one, so that each has its own answer, which waits for the commit.
        """
        self._weight += len(ids)
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
        self._weight += READ_WEIGHT

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
