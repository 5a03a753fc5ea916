"""Decompress request bodies within a limit.

A decompression bomb is stopped at the limit: nothing larger is ever allocated.
"""

from __future__ import annotations

import zlib

GZIP = ("gzip", "x-gzip")
DEFLATE = ("deflate",)
KNOWN = (*GZIP, *DEFLATE)
MEMBERS_MAX = 64
"""Gzip streams in one body: joining some is legal, thousands of empty ones are an attack."""

_GZIP_BITS = 31
_ZLIB_BITS = 15
_RAW_BITS = -15


class EncodingError(ValueError):
    """The bytes are not what their encoding says."""


class OversizeError(ValueError):
    """The body is larger than its bound."""


def coding(header: str | None) -> str | None:
    """The encoding that a `Content-Encoding` names; None when the body is plain."""
    name = (header or "").strip().lower()
    return None if name in ("", "identity") else name


def inflate(data: bytes, name: str, limit: int) -> bytes:
    """The plain bytes of a body in a known encoding, at most `limit` of them."""
    bits = _GZIP_BITS
    if name in DEFLATE:
        # The standard means zlib's format; some senders leave its frame out.
        bits = _ZLIB_BITS if _is_zlib(data) else _RAW_BITS
    plain = b""
    for _ in range(MEMBERS_MAX):
        reader = zlib.decompressobj(bits)
        try:
            plain += reader.decompress(data, limit + 1 - len(plain))
        except zlib.error as error:
            raise EncodingError(f"the body is not {name}: {error}") from None
        if len(plain) > limit:
            raise OversizeError
        if not reader.eof:
            raise EncodingError(f"the {name} body ends too early")
        data = reader.unused_data
        if not data:
            return plain
        if name in DEFLATE:
            break
    raise EncodingError(f"the {name} body has bytes behind its end")


def _is_zlib(data: bytes) -> bool:
    """Whether the first two bytes are a header of zlib's."""
    return len(data) >= 2 and data[0] & 0x0F == 8 and int.from_bytes(data[:2], "big") % 31 == 0
