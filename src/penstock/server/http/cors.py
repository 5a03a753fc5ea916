"""What pages of other sites may do with our answers: `listen.origins` and nothing else.

A site that is listed is named back exactly, never as `*`, and cookies are never asked for: a page shows a token like everybody
else. A site that is not listed is refused before it gets here.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.server.auth.tokens import Guard
from penstock.server.http.routes import methods
from penstock.transports.http import Reply

MAX_AGE_S = 600
"""How long a browser may remember that it may ask: about as long as one looks at a settings page."""
REQUEST_HEADERS = "Authorization, Content-Encoding, Content-Type, Idempotency-Key, Last-Event-ID"
EXPOSED_HEADERS = (
    "Allow, Idempotency-Replayed, Retry-After, WWW-Authenticate, "
    "X-Penstock-End, X-Penstock-Epoch, X-Penstock-Next"
)


def answer_headers(guard: Guard, headers: Mapping[str, str]) -> dict[str, str]:
    """What every answer carries for the page that asked."""
    if not guard.has_origins:
        return {}
    origin = headers.get("Origin")
    if origin is None or not guard.is_listed(origin):
        return {"Vary": "Origin"}
    return {
        "Vary": "Origin",
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Expose-Headers": EXPOSED_HEADERS,
    }


def is_preflight(method: str, headers: Mapping[str, str]) -> bool:
    """Whether a browser asks before it asks."""
    return method == "OPTIONS" and "Origin" in headers and "Access-Control-Request-Method" in headers


def preflight(path: str) -> Reply:
    """Which methods and headers a listed site may use on a path that exists."""
    return Reply(
        204,
        b"",
        headers={
            "Access-Control-Allow-Methods": ", ".join(methods(path)),
            "Access-Control-Allow-Headers": REQUEST_HEADERS,
            "Access-Control-Max-Age": str(MAX_AGE_S),
        },
    )
