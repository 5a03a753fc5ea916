"""CORS: pages of the sites in `listen.origins` may read answers.

A listed site is echoed exactly, never as `*`, and credentials are not allowed: a page sends a token like any client.
Requests from other sites are refused earlier.
"""
# size: one concern, apart from the entry that applies it

from __future__ import annotations

from collections.abc import Mapping

from penstock.server.auth.tokens import Guard
from penstock.transports.http_replies import Reply

MAX_AGE_S = 600
"""How long a browser may cache a preflight."""
REQUEST_HEADERS = "Authorization, Content-Encoding, Content-Type, Idempotency-Key, Last-Event-ID"
EXPOSED_HEADERS = (
    "Allow, Idempotency-Replayed, Retry-After, WWW-Authenticate, X-Penstock-End, X-Penstock-Epoch, X-Penstock-Next"
)


def answer_headers(guard: Guard, headers: Mapping[str, str]) -> dict[str, str]:
    """The CORS headers of a reply."""
    if not guard.origins:
        return {}
    origin = headers.get("Origin")
    if origin is None or not guard.is_listed(origin):
        return {"Vary": "Origin"}
    return {"Vary": "Origin", "Access-Control-Allow-Origin": origin, "Access-Control-Expose-Headers": EXPOSED_HEADERS}


def is_preflight(method: str, headers: Mapping[str, str]) -> bool:
    """Whether a request is a CORS preflight."""
    return method == "OPTIONS" and "Origin" in headers and "Access-Control-Request-Method" in headers


def preflight(allowed: list[str]) -> Reply:
    """The methods and headers that a listed site may use on a path."""
    return Reply(
        204,
        b"",
        headers={
            "Access-Control-Allow-Methods": ", ".join(allowed),
            "Access-Control-Allow-Headers": REQUEST_HEADERS,
            "Access-Control-Max-Age": str(MAX_AGE_S),
        },
    )
