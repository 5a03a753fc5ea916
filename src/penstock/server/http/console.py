"""The console's files and its sign-in.

Vite builds the files from `console/` into this package. They are read and compressed once and served from memory.
Browsers may cache files with a digest in their name for good; they ask again for the page and the others. The content
security policy lets the page load from this server only.
"""

from __future__ import annotations

import gzip
import re
import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Annotated, Any

import msgspec

from penstock.core.errors import Refusal
from penstock.core.scopes import Principal
from penstock.server.http.console_sessions import Sessions
from penstock.server.http.request import error_reply
from penstock.server.logging import logs
from penstock.transports.http_replies import Reply, json_reply

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
"""Vite puts a digest of the content into these names."""
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


NO_CONSOLE = Refusal("UnknownRoute", "this server has no console")


class Login(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /console/session`."""

    token: Annotated[str, msgspec.Meta(min_length=1, max_length=512)]


class ConsoleReply(msgspec.Struct, rename="camel"):
    """Who is signed in, and what the page shows of the server."""

    name: str
    operator: bool
    version: str
    boot_id: str
    spaces: list[str]
    relay: bool


class _File(msgspec.Struct):
    data: bytes
    pressed: bytes
    content_type: str
    etag: str


class Console:
    """Serves the page and its sign-in."""

    def __init__(
        self, sessions: Sessions, facts: Callable[[], dict[str, Any]], folder: Traversable | None = None
    ) -> None:
        self.sessions = sessions
        self._facts = facts
        """The members of `ConsoleReply` from `version` on, as JSON names."""
        self._files = _read(folder or files("penstock") / "console")

    @property
    def is_built(self) -> bool:
        return PAGE in self._files

    def page(self, headers: Mapping[str, str]) -> Reply | None:
        """The page; None for clients that do not accept HTML, and where it was not built."""
        accept = headers.get("Accept", "*/*")
        if not self.is_built or not ("html" in accept or "*/*" in accept):
            return None
        reply = self.file(headers, PAGE)
        reply.headers |= {"Vary": "Accept, Accept-Encoding"}
        return reply

    def file(self, headers: Mapping[str, str], name: str) -> Reply:
        """One of the files."""
        file = self._files.get(name)
        if file is None:
            hint = "the page was rebuilt: reload it" if self.is_built else "run `make setup` with Node 20 or newer"
            return error_reply(Refusal("UnknownRoute", f"the console has no file `{name[:80]}`", hint=hint))
        kept = FOREVER if HASHED.search(name) else "no-cache"
        sent = {**SAFETY, "ETag": file.etag, "Vary": "Accept-Encoding", "Cache-Control": kept}
        if file.etag.removeprefix("W/") in headers.get("If-None-Match", ""):
            return Reply(304, b"", file.content_type, sent)
        if _takes_gzip(headers.get("Accept-Encoding", "")):
            return Reply(200, file.pressed, file.content_type, {**sent, "Content-Encoding": "gzip"})
        return Reply(200, file.data, file.content_type, sent)

    def sign_in(self, headers: Mapping[str, str], peer: str, login: Login) -> Reply:
        """Exchange a token for a cookie."""
        opened = self.sessions.open(login.token, headers, int(time.time()))
        if opened is None:
            if self.sessions.tokens.resolve(login.token) is None:
                self.sessions.tokens.refused(login.token, peer)
            else:
                logs.warning("console.refused", peer=peer)
            hint = "`penstock console` prints a link with the token of the server that runs here"
            return error_reply(Refusal("Unauthorized", "this is not an operator's token", hint=hint))
        principal, cookie = opened
        logs.event("console.signed_in", name=principal.name, peer=peer)
        return json_reply(200, self._who(principal), {"Set-Cookie": cookie, "Cache-Control": "no-store"})

    def sign_out(self, headers: Mapping[str, str]) -> Reply:
        return Reply(204, b"", headers={"Set-Cookie": self.sessions.close(headers, int(time.time()))})

    def session(self, principal: Principal) -> Reply:
        """Who is signed in."""
        if not principal.is_admin:
            hint = "open the link that `penstock up` printed, or enter the token"
            return error_reply(Refusal("Unauthorized", "you are not signed in", hint=hint))
        return json_reply(200, self._who(principal), {"Cache-Control": "no-store"})

    def resolve(self, headers: Mapping[str, str]) -> Principal | None:
        """The principal of a request's cookie."""
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
