"""Runs: consecutive single enqueues or acks of one connection become one call of the machine, almost as cheap as a batch.

Any other frame ends the run, so requests and answers keep their order. If the machine refuses a run as a whole, each line is tried by
itself, because one bad line must not fail the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import msgspec

from penstock.core.clock import Now
from penstock.core.errors import Refusal
from penstock.core.json_checks import IS_NATIVE, plain_depth
from penstock.core.links import Consumer, Link
from penstock.core.queue.settle import Denied
from penstock.core.rate_limits import Meter
from penstock.core.records import Record
from penstock.core.steps import STEP_BYTES
from penstock.dialects.courier.operations.enqueue import parse_part
from penstock.dialects.courier.operations.outcomes import check_access
from penstock.dialects.courier.operations.settle import ACK_STEP
from penstock.dialects.courier.sessions.answers import Answers, RuntimePort
from penstock.dialects.courier.sessions.control.frames import FRAME_WEIGHT, HEAD_MAX, AckFrame, EnqueueFrame
from penstock.dialects.courier.wire import envelopes

TOGETHER = 64
"""Lines that are checked for repeated keys at once. If one of them has any, those after it in the turn are checked one by one."""
DEPTH_UNKNOWN = 1 << 20
"""The depth of a line that nothing is wrong with except, perhaps, its depth."""
RUN_MAX = 64
"""Enqueues of one run: the weight of those that are refused is known when it ends."""

_encode = msgspec.json.encode
_encode_lines = msgspec.json.Encoder().encode_lines
"""Values of many answers in one call: JSON has no line end in a value, so the lines are the values again."""
_OK_LINE = b'{"type":"ok","reqId":%b,"result":{"id":%b,"seq":%b}}\n'


class LineBuffer:
    """Cuts chunks into whole lines and keeps what follows the last newline."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.size = 0
        """Bytes of the line that has not ended."""
        self._is_discarding = False
        """The rest of a line that was too long is dropped, up to its end."""

    def add(self, data: bytes) -> bytes | None:
        """The bytes up to the last newline, or None while no line has ended."""
        cut = data.rfind(b"\n")
        if cut < 0:
            if not self._is_discarding:
                self._keep(data)
            return None
        begin = data.index(b"\n") if self._is_discarding else 0
        whole = b"".join([*self._parts, data[begin:cut]]) if self._parts else data[begin:cut]
        self._is_discarding = False
        self._parts, self.size = [], 0
        if cut + 1 < len(data):
            self._keep(data[cut + 1 :])
        return whole

    def _keep(self, data: bytes) -> None:
        self._parts.append(data)
        self.size += len(data)

    def overflow(self, limit: int) -> bytes:
        """The first bytes of a line that is longer than `limit`, which is dropped; empty if it is not."""
        if self.size <= limit:
            return b""
        head = b"".join(self._parts[:HEAD_MAX])[:HEAD_MAX]  # each has a byte or more, all together megabytes
        self._parts, self.size, self._is_discarding = [], 0, True
        return head


def checked(lines: list[bytes]) -> Iterator[tuple[bytes, int]]:
    """Each line, and its depth if `json_problem` would find nothing in it, provided that it is JSON by itself; else -1."""
    if IS_NATIVE:
        for line in lines:
            yield line, plain_depth(line) if len(line) <= STEP_BYTES else -1
        return
    is_clean = len(lines) > 1
    for start in range(0, len(lines), TOGETHER):
        part = lines[start : start + TOGETHER]
        is_clean = is_clean and sum(map(len, part)) <= STEP_BYTES
        is_clean = is_clean and envelopes.json_problem(b"[%b]" % b",".join(part)) is None
        for line in part:
            yield line, DEPTH_UNKNOWN if is_clean else -1


def ok_line(req_id: str | int, result: object) -> bytes:
    return b'{"type":"ok","reqId":%b,"result":%b}\n' % (_encode(req_id), envelopes.flat(_encode(result)))


def error_line(req_id: str | int | None, refusal: Refusal) -> bytes:
    wire = refusal.wire()
    wire["detail"] = wire.pop("message")
    return _encode({"type": "error", "reqId": "req" if req_id is None else req_id, **wire}) + b"\n"


def deny(answers: Answers, req_id: str | int | None, denied: Denied) -> None:
    """Refuse a settle once its cause is durable: a drop is undone if a full disk rejects the records that caused it."""
    line = error_line(req_id, denied.refusal)
    answers.after(denied.gate, lambda refusal: error_line(req_id, refusal) if refusal else line, fresh=True)


class Runs:
    """The open run of one connection: enqueues to one stream, or acks of one consumer."""

    __slots__ = (
        "_acks", "_answers", "_consumer", "_deepest", "_link", "_machine", "_raws", "_reqs", "_runtime", "_to", "refused"
    )  # fmt: skip

    def __init__(self, runtime: RuntimePort, answers: Answers) -> None:
        self._runtime = runtime
        self._machine = runtime.machine
        self._answers = answers
        self._to: str | None = None
        self._link: Link
        """The connection of the run; set with `_to`."""
        self._raws: list[bytes] = []
        self._reqs: list[str | int] = []
        self._deepest = 0
        """Depth of its deepest line, which is more than that of any envelope."""
        self._consumer: Consumer | None = None
        self._acks: list[str] = []
        self.refused = 0
        """How many envelopes were refused."""

    def join_enqueue(self, now: Now, link: Link, frame: EnqueueFrame, depth: int) -> int:
        """Add a single enqueue without a schedule; returns its weight, 0 for any other."""
        raw = bytes(frame.env)
        if raw[:1] == b"[" or frame.delay_ms is not None or frame.deliver_at is not None:
            return 0
        to = frame.to
        req_id = "enqueue" if frame.req_id is None else frame.req_id
        if self._consumer is not None or (self._to is not None and self._to != to):
            self.close(now)
        if self._to is None:
            refusal = check_access(self._machine, link.principal, "enqueue", to)
            if refusal is not None:
                self._answers.add(error_line(req_id, refusal))
                return FRAME_WEIGHT
            self._to, self._link, self._deepest = to, link, 0
        self._deepest = max(self._deepest, depth if depth >= 0 else DEPTH_UNKNOWN)
        self._raws.append(raw)
        self._reqs.append(req_id)
        if len(self._raws) == RUN_MAX:
            self.close(now)
        return 1

    def join_ack(self, now: Now, consumer: Consumer, frame: AckFrame) -> int:
        """Add an ack that wants no answer; returns how many ids it has, 0 for any other."""
        if frame.req_id is not None or frame.lease_id is not None or frame.sub_id is not None:
            return 0
        ids = frame.id if isinstance(frame.id, list) else [frame.id]
        if len(ids) > min(self._machine.limits.batch_max, ACK_STEP):
            return 0
        if self._to is not None or self._consumer is not consumer:
            self.close(now)
        self._consumer = consumer
        self._acks += ids
        return len(ids)

    def close(self, now: Now) -> None:
        """Call the machine for the open run, if there is one."""
        if self._to is not None:
            to, raws, reqs = self._to, self._raws, self._reqs
            self._to, self._raws, self._reqs = None, [], []
            self._enqueue_all(now, to, raws, reqs)
        elif self._consumer is not None:
            consumer, ids = self._consumer, self._acks
            self._consumer, self._acks = None, []
            for denied in self._machine.ack(now, consumer, ids):
                deny(self._answers, None, denied)
        else:
            return
        if self._machine.effects:
            self._runtime.apply(now)

    def _enqueue_all(self, now: Now, to: str, raws: list[bytes], reqs: list[str | int]) -> None:
        """Enqueue envelopes in order, and answer in their places for those that are refused."""
        principal = self._link.principal
        is_shallow = self._deepest <= self._machine.limits.depth_max
        while raws:
            records, refusal = parse_part(self._machine, principal, to, raws, is_checked=is_shallow)
            count = len(records)
            if records:
                self._enqueue(now, principal.to_channel(to), records, reqs[:count])
            if refusal is None:
                return
            if self._machine.effects:
                self._runtime.apply(now)
            self._answers.add(error_line(reqs[count], refusal))
            self.refused += 1
            raws, reqs = raws[count + 1 :], reqs[count + 1 :]

    def _enqueue(self, now: Now, to: str, records: list[Record], reqs: list[str | int]) -> None:
        meter = self._machine.meter
        if meter is not None and not self._is_within_rate(now, meter, to, records, reqs):
            return
        admitted = self._machine.enqueue(now, to, records, counted=len(records) == 1)
        if isinstance(admitted, Refusal):
            if len(records) == 1:
                self._answers.add(error_line(reqs[0], admitted))
                return
            for record, req_id in zip(records, reqs, strict=True):
                self._enqueue(now, to, [record], [req_id])
            return
        if meter is not None:
            meter.charge(now.us, self._link.principal, self._link.address, to, len(records))
        seqs = admitted.seqs
        # A record that was admitted has a channel; one without is a duplicate.
        twice = [record.channel is None for record in records] if admitted.duplicates else None

        def render(refusal: Refusal | None) -> bytes:
            if refusal is not None:
                return b"".join([error_line(req_id, refusal) for req_id in reqs])
            if twice is None:
                values = chain.from_iterable(zip(reqs, [record.id for record in records], seqs, strict=True))
                return (_OK_LINE * len(reqs)) % tuple(_encode_lines(values).split(b"\n")[:-1])
            return b"".join(
                [
                    ok_line(req_id, {"id": record.id, "seq": seq, **({"duplicate": True} if again else {})})
                    for req_id, record, seq, again in zip(reqs, records, seqs, twice, strict=True)
                ]
            )

        self._answers.after(admitted.gate, render, fresh=True)

    def _is_within_rate(self, now: Now, meter: Meter, to: str, records: list[Record], reqs: list[str | int]) -> bool:
        """Whether the rate allows the whole run. If not, admit what it allows and refuse each other line by itself."""
        who, address = self._link.principal, self._link.address
        if len(records) == 1:
            refusal = meter.check(now.us, who, address, to, 1)
            if refusal is not None:
                self._answers.add(error_line(reqs[0], refusal))
            return refusal is None
        room = meter.room(now.us, who, address, to)
        if room is None or room >= len(records):
            return True
        if room:
            self._enqueue(now, to, records[:room], reqs[:room])
        for record, req_id in zip(records[room:], reqs[room:], strict=True):
            self._enqueue(now, to, [record], [req_id])
        return False
