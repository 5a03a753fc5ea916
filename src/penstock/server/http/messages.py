"""An HTTP request and its answer as values: what the routes are written in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil

import msgspec

from penstock.core.errors import Refusal
from penstock.transports.http import Reply, json_reply


class Request(msgspec.Struct):
    """An HTTP request, read whole."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    peer: str
    is_loopback_bind: bool
    body: bytes = b""


Done = Callable[[Reply], None]
Cancel = Callable[[], None]


def error_reply(refusal: Refusal) -> Reply:
    reply = json_reply(refusal.status, {"error": refusal.wire()})
    if refusal.status in (429, 503):
        wait_ms = refusal.retry_after_ms or 1_000
        reply.headers = {"Retry-After": str(ceil(wait_ms / 1000))}
    elif refusal.status == 401:
        reply.headers = {"WWW-Authenticate": "Bearer"}
    return reply
