"""The console's files, and the doors of its session.

The files are made by Vite from `console/` and lie beside this package's modules; they are read once, pressed once and answered from
memory. Those with a digest in their names browsers may keep for good; the page itself, and the few others, they ask for again. The page
may load and ask nothing but what this server has.
"""

from __future__ import annotations

import gzip
import re
import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

import msgspec

from penstock.core.errors import Refusal
from penstock.core.scopes import Principal
from penstock.server.http.console_sessions import Sessions
from penstock.server.http.messages import Request, error_reply
from penstock.server.http.routes import Login
from penstock.server.logging import logs
from penstock.transports.http import Reply, json_reply

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
SAFETY = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
PAGE = "index.html"
HASHED = re.compile(r"-[A-Za-z0-9_-]{8}\.[a-z0-9]+$")
"""The names that Vite gives to what changes its name with its content."""
FOREVER = "public, max-age=31536000, immutable"
_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "ico": "image/x-icon",
    "js": "text/javascript; charset=utf-8",
    "json": "application/json",
    "png": "image/png",
    "svg": "image/svg+xml",
    "webmanifest": "application/manifest+json",
    "woff2": "font/woff2",
}


class _File(msgspec.Struct):
    data: bytes
    pressed: bytes
    content_type: str
    etag: str


class Console:
    """Answers what a browser asks before it asks the rest of the server."""

    def __init__(
        self, sessions: Sessions, facts: Callable[[], dict[str, Any]], folder: Traversable | None = None
    ) -> None:
        self.sessions = sessions
        self._facts = facts
        """What the page shows of the server in its head."""
        self._files = _read(folder or files("penstock") / "console")

    @property
    def is_built(self) -> bool:
        return PAGE in self._files

    def page(self, request: Request) -> Reply | None:
        """The page itself; None for those who say that they do not take HTML, and where it was not built."""
        accept = request.headers.get("Accept", "*/*")
        if not self.is_built or not ("html" in accept or "*/*" in accept):
            return None
        reply = self.file(request, PAGE)
        reply.headers |= {"Vary": "Accept, Accept-Encoding"}
        return reply

    def file(self, request: Request, name: str) -> Reply:
        """One of the files."""
        file = self._files.get(name)
        if file is None:
            hint = (
                "the page was made anew: load it again"
                if self.is_built
                else "run `make setup` with Node 20 or newer"
            )
            return error_reply(Refusal("UnknownRoute", f"the console has no file `{name[:80]}`", hint=hint))
        kept = FOREVER if HASHED.search(name) else "no-cache"
        headers = {**SAFETY, "ETag": file.etag, "Vary": "Accept-Encoding", "Cache-Control": kept}
        if file.etag.removeprefix("W/") in request.headers.get("If-None-Match", ""):
            return Reply(304, b"", file.content_type, headers)
        if _takes_gzip(request.headers.get("Accept-Encoding", "")):
            return Reply(200, file.pressed, file.content_type, {**headers, "Content-Encoding": "gzip"})
        return Reply(200, file.data, file.content_type, headers)

    def sign_in(self, request: Request, login: Login) -> Reply:
        """Trade a token for a cookie."""
        opened = self.sessions.open(login.token, request.headers, int(time.time()))
        if opened is None:
            logs.warning("console.refused", peer=request.peer)
            hint = "`penstock console` prints a link with the token of the server that runs here"
            return error_reply(Refusal("Unauthorized", "this is no token of an operator", hint=hint))
        principal, cookie = opened
        logs.event("console.signed_in", name=principal.name, peer=request.peer)
        reply = json_reply(200, self._who(principal))
        reply.headers = {"Set-Cookie": cookie, "Cache-Control": "no-store"}
        return reply

    def sign_out(self, request: Request) -> Reply:
        return Reply(204, b"", headers={"Set-Cookie": self.sessions.close(request.headers)})

    def session(self, principal: Principal) -> Reply:
        """Who is signed in, if anybody."""
        if not principal.is_admin:
            hint = "open the link that `penstock up` printed, or give the token"
            return error_reply(Refusal("Unauthorized", "nobody is signed in here", hint=hint))
        reply = json_reply(200, self._who(principal))
        reply.headers = {"Cache-Control": "no-store"}
        return reply

    def known(self, headers: Mapping[str, str]) -> Principal | None:
        """Who a request without a token is by its cookie."""
        return self.sessions.resolve(headers, int(time.time())) if "Cookie" in headers else None

    def _who(self, principal: Principal) -> dict[str, Any]:
        return {"name": principal.name, "operator": principal.operator, **self._facts()}


def _takes_gzip(accepted: str) -> bool:
    codings = (part.replace(" ", "").lower() for part in accepted.split(","))
    return any(coding.split(";")[0] == "gzip" and not coding.endswith(";q=0") for coding in codings)


def _read(folder: Traversable) -> dict[str, _File]:
    if not folder.is_dir():
        return {}
    found = {}
    for entry in folder.iterdir():
        kind = _TYPES.get(entry.name.rpartition(".")[2])
        if kind is not None and entry.is_file():
            data = entry.read_bytes()
            etag = f'W/"{sha256(data).hexdigest()[:16]}"'  # weak: one for both encodings
            found[entry.name] = _File(data, gzip.compress(data, 9, mtime=0), kind, etag)
    return found
