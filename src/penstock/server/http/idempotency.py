"""Replies kept by `Idempotency-Key`, so that a repeated request is carried out once.

Kept in memory, bounded by count, bytes and age. A restart drops them; envelope ids deduplicate beyond that. A repetition
while the first request is still running waits for its reply. Replies that ask for a retry (429 and 5xx) are not kept,
because the request was not carried out.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from penstock.core.errors import Refusal

if TYPE_CHECKING:
    from penstock.core.limits import Limits
    from penstock.server.http.request import Done, Request
    from penstock.transports.http_replies import Reply

HEADER = "Idempotency-Key"
REPLAYED = "Idempotency-Replayed"
KEY_MAX = 256
ENTRY_COST = 512
"""Bytes that a kept reply takes in addition to its body."""

Key: TypeAlias = tuple[str, str, str, str]


class _Entry(msgspec.Struct):
    """One request with a key."""

    digest: bytes
    reply: Reply | None = None
    """Its reply, once there is one."""
    at_us: int = 0
    waiting: list[Done] = []

    @property
    def cost(self) -> int:
        return ENTRY_COST + (len(self.reply.body) if self.reply is not None else 0)


class Replays:
    """The kept replies of one server."""

    def __init__(self) -> None:
        self._working: dict[Key, _Entry] = {}
        self._known: dict[Key, _Entry] = {}
        self._bytes = 0
        self.replayed = 0
        """Requests that were answered from memory."""
        self.forgotten = 0
        """Replies dropped at a bound before their time."""

    def __len__(self) -> int:
        return len(self._known)

    def claim(self, limits: Limits, request: Request, done: Done) -> Done | Refusal | None:
        """How to answer a new request; None for a repetition, which gets the reply of the first through `done`."""
        who, now_us = request.principal, request.now.us
        text = request.headers[HEADER]
        if not 0 < len(text) <= KEY_MAX or not text.isprintable():
            message = f"an `{HEADER}` has 1 to {KEY_MAX} printable characters"
            return Refusal("InvalidRequest", message, ref=HEADER)
        key = (who.name, request.peer if who.anonymous else who.credential, request.route.name, text)
        digest = sha256(request.data).digest()
        self._trim(now_us, limits)
        entry = self._known.get(key) or self._working.get(key)
        if entry is None:
            self._working[key] = _Entry(digest)
            return lambda reply: self._finish(key, reply, now_us, limits, done)
        if entry.digest != digest:
            return Refusal("KeyConflict", f"`{text}` was used before with another body", ref=HEADER)
        self.replayed += 1
        if entry.reply is None:
            entry.waiting.append(done)
        else:
            done(_again(entry.reply))
        return None

    def _finish(self, key: Key, reply: Reply, now_us: int, limits: Limits, done: Done) -> None:
        """The first request of a key has its reply."""
        entry = self._working.pop(key, None)
        done(reply)
        if entry is None:
            return
        for waiting in entry.waiting:
            waiting(_again(reply))
        if reply.status != 429 and reply.status < 500:
            entry.reply = reply
            entry.waiting = []
            entry.at_us = now_us
            self._known[key] = entry
            self._bytes += entry.cost
            self._trim(now_us, limits)

    def _trim(self, now_us: int, limits: Limits) -> None:
        """Drop replies that are too old, and the oldest above the bounds."""
        known = self._known
        oldest_us = now_us - limits.idempotency_ms * 1000
        while known:
            key = next(iter(known))
            is_over = len(known) > limits.idempotency_max or self._bytes > limits.idempotency_bytes_max
            if not is_over and known[key].at_us > oldest_us:
                break
            self.forgotten += is_over
            self._bytes -= known.pop(key).cost


def _again(reply: Reply) -> Reply:
    return msgspec.structs.replace(reply, headers={**reply.headers, REPLAYED: "true"})
