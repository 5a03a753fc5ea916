"""Lines of Control v1: cut out of the chunks of a connection, and the two forms of an answer."""

from __future__ import annotations

import msgspec

from penstock.core.errors import Refusal
from penstock.core.queue.settle import Denied
from penstock.dialects.courier.sessions.answers import Answers
from penstock.dialects.courier.sessions.control.frames import HEAD_MAX
from penstock.dialects.courier.wire import envelopes

_encode = msgspec.json.encode


class LineBuffer:
    """Cuts chunks into whole lines and keeps what follows the last newline."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
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
        self._parts, self._size = [], 0
        if cut + 1 < len(data):
            self._keep(data[cut + 1 :])
        return whole

    def _keep(self, data: bytes) -> None:
        self._parts.append(data)
        self._size += len(data)

    def overflow(self, limit: int) -> bytes:
        """The first bytes of a line that is longer than `limit`, which is dropped; empty if it is not."""
        if self._size <= limit:
            return b""
        head = b"".join(self._parts)[:HEAD_MAX]
        self._parts, self._size, self._is_discarding = [], 0, True
        return head


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
