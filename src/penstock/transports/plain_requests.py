"""Heads of plain requests: the subset of HTTP on whose meaning all parsers agree.

A plain request is HTTP/1.1 with a path, and has few short fields of printable ASCII, each once. Its body has a `Content-Length` and
is small. Anything else is not judged here: aiohttp reads it, or refuses it. Headers and query have the types that aiohttp's requests
have, so multidict and yarl come with aiohttp.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from multidict import CIMultiDict
from yarl import URL

HEAD_MAX = 4_096
"""Bytes of a plain head; aiohttp takes more."""
FIELDS_MAX = 64
"""Fields of a plain head; aiohttp takes more."""
BODY_MAX = 64 * 1024
"""Bytes of a plain body: what aiohttp collects as well before the handler asks for it."""

_METHODS = frozenset({"DELETE", "GET", "POST", "PUT"})
_ODD = frozenset({"expect", "proxy-connection", "sec-websocket-key1", "transfer-encoding", "upgrade"})
"""Fields that change how a request is read."""


class PlainHead(msgspec.Struct, frozen=True):
    """The head of a plain request."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    size: int | None
    """What `Content-Length` says."""
    start: int
    """Where the body begins."""
    end: int
    """Where it ends."""

    def query_pairs(self) -> list[tuple[str, str]]:
        return list(URL.build(path="/", query_string=self.query, encoded=True).query.items()) if self.query else []


def parse_head(data: bytes) -> PlainHead | None:
    """The head at the start of some bytes; None when it is not plain, or not complete."""
    start = data.find(b"\r\n\r\n", 0, HEAD_MAX) + 4
    if start < 4:
        return None
    try:
        lines = data[: start - 4].decode("ascii").split("\r\n")
    except UnicodeDecodeError:
        return None
    method, _, rest = lines.pop(0).partition(" ")
    target, _, version = rest.partition(" ")
    if (
        version != "HTTP/1.1"
        or method not in _METHODS
        or target[:1] != "/"
        or not target.isprintable()
        or "#" in target
    ):
        return None
    fields: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        # No tab, no lone CR or LF, no space around a name, no folded line.
        if not (colon and name.replace("-", "").isalnum() and value.isprintable()):
            return None
        fields[name.lower()] = value.strip(" ")
    if len(fields) != len(lines) or len(lines) > FIELDS_MAX or "host" not in fields or not _ODD.isdisjoint(fields):
        return None
    if fields.get("connection", "keep-alive").lower() != "keep-alive":
        return None
    length = fields.get("content-length")
    if length is not None and not (length.isdigit() and len(length) <= 9 and int(length) <= BODY_MAX):
        return None
    path, _, query = target.partition("?")
    if "%" in path:
        path = URL.build(path=path, encoded=True).path
    size = None if length is None else int(length)
    return PlainHead(method, path, query, CIMultiDict(fields), size, start, start + (size or 0))
