"""Who sits before the console: a token traded for a cookie that a page cannot read.

The cookie names the holder and when it ends, under a MAC whose key lies beside the data, so a page that is open survives a restart; without a
data directory the key lives as long as the server. Whoever deletes the key file signs everybody out with the next start.

Cookies do not tell ports apart, so the cookie's name carries the port, and a browser that says that a request was not made by a page of
this very origin (`Sec-Fetch-Site`) is not believed: on one machine another port is the same site.
"""

from __future__ import annotations

import base64
import hmac
import secrets
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from pathlib import Path

import msgspec

from penstock.core.scopes import OPERATOR, Principal
from penstock.server.auth import TokenStore
from penstock.server.private_files import write_private

SESSION_S = 7 * 24 * 3600
"""How long a cookie lets somebody in."""
KEY_SIZE = 32
COOKIE_MAX = 512
"""Characters of a cookie of ours; a longer one is none."""
_OPERATOR = "operator"


class _Ticket(msgspec.Struct, array_like=True):
    """What a cookie says."""

    holder: str
    """`operator`, or the credential of a token with `admin:*`."""
    ends_s: int


class Sessions:
    """Signs people in and knows them again."""

    def __init__(self, tokens: TokenStore, key_file: Path | None) -> None:
        self._tokens = tokens
        self._file = key_file
        self._key = _read_key(key_file)

    def open(self, token: str, headers: Mapping[str, str], now_s: int) -> tuple[Principal, str] | None:
        """The holder of a token and the cookie for it; None when it is no administrator's."""
        principal = self._tokens.resolve(token)
        if principal is None or not principal.is_admin:
            return None
        if self._key is None:
            self._key = secrets.token_bytes(KEY_SIZE)
            if self._file is not None:
                write_private(self._file, self._key.hex().encode() + b"\n")
        holder = _OPERATOR if principal.operator else principal.credential
        body = msgspec.json.encode(_Ticket(holder, now_s + SESSION_S))
        value = f"{_text(body)}.{_text(self._mac(body))}"
        return principal, self._cookie(headers, value, SESSION_S)

    def close(self, headers: Mapping[str, str]) -> str:
        """The cookie that ends a session in this browser."""
        return self._cookie(headers, "", 0)

    def resolve(self, headers: Mapping[str, str], now_s: int) -> Principal | None:
        """Who a request's cookie says it is; None where there is none that counts."""
        text = headers.get("Cookie")
        if (
            text is None
            or self._key is None
            or headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none")
        ):
            return None
        try:
            morsel = SimpleCookie(text).get(_name(headers))
        except CookieError:
            return None
        if morsel is None or len(morsel.value) > COOKIE_MAX:
            return None
        body, _, mac = map(_bytes, morsel.value.partition("."))
        if not hmac.compare_digest(mac, self._mac(body)):
            return None
        ticket = msgspec.json.decode(body, type=_Ticket)
        if ticket.ends_s <= now_s:
            return None
        return OPERATOR if ticket.holder == _OPERATOR else self._holder(ticket.holder)

    def _holder(self, credential: str) -> Principal | None:
        """Somebody with a token that is still known and still an administrator's."""
        principal = self._tokens.renewed(Principal("", credential=credential))
        return principal if principal is not None and principal.is_admin else None

    def _mac(self, body: bytes) -> bytes:
        assert self._key is not None
        return hmac.digest(self._key, b"console\0" + body, "sha256")

    def _cookie(self, headers: Mapping[str, str], value: str, age_s: int) -> str:
        # A browser names the scheme of its page with everything that changes something.
        secure = "; Secure" if headers.get("Origin", "").startswith("https:") else ""
        return f"{_name(headers)}={value}; Path=/; Max-Age={age_s}; HttpOnly; SameSite=Strict{secure}"


def _name(headers: Mapping[str, str]) -> str:
    port = headers.get("Host", "").rpartition(":")[2]
    return f"penstock-{port}" if port.isascii() and port.isdigit() else "penstock"


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        return b""


def _read_key(file: Path | None) -> bytes | None:
    try:
        key = bytes.fromhex(file.read_text()) if file is not None else b""
    except (OSError, ValueError):
        return None
    return key if len(key) == KEY_SIZE else None
