"""Who sits before the console: a token traded for a cookie that a page cannot read.

The cookie names the holder and when it ends, under a MAC whose key lies beside the data, so a page that is open survives a restart; without a
data directory the key lives as long as the server. Whoever deletes the key file signs everybody out with the next start.

Cookies do not tell ports apart, so the cookie's name carries the port, and a browser that says that a request was not made by a page of
this very origin (`Sec-Fetch-Site`, `Origin`) is not believed: on one machine another port is the same site. That holds for pages of
`listen.origins` too: they may show a token and no cookie.
"""

from __future__ import annotations

import base64
import hmac
import secrets
from collections.abc import Mapping
from pathlib import Path

import msgspec

from penstock.core.scopes import OPERATOR, Principal
from penstock.server.auth.tokens import TokenStore, is_own_page
from penstock.server.files.secret_files import write_private
from penstock.server.logging import logs

SESSION_S = 7 * 24 * 3600
"""How long a cookie lets somebody in."""
KEY_SIZE = 32
COOKIE_MAX = 512
"""Characters of a cookie of ours; a longer one is none."""
COOKIES_MAX = 4
"""Cookies of our name that are looked at."""
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
            self._write_key(self._key)
        holder = _OPERATOR if principal.operator else principal.credential
        body = _text(msgspec.json.encode(_Ticket(holder, now_s + SESSION_S)))
        return principal, self._cookie(headers, f"{body}.{self._mac(self._key, body)}", SESSION_S)

    def close(self, headers: Mapping[str, str]) -> str:
        """The cookie that ends a session in this browser."""
        return self._cookie(headers, "", 0)

    def resolve(self, headers: Mapping[str, str], now_s: int) -> Principal | None:
        """Who a request's cookie says it is; None where there is none that counts."""
        if (
            self._key is None
            or headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none")
            or not is_own_page(headers)
        ):
            return None
        # Another program on this machine may have set one of the same name: it counts for nothing, and hides nothing.
        for value in _values(headers.get("Cookie", ""), _name(headers))[:COOKIES_MAX]:
            ticket = self._ticket(self._key, value)
            if ticket is not None and ticket.ends_s > now_s:
                return OPERATOR if ticket.holder == _OPERATOR else self._holder(ticket.holder)
        return None

    def _ticket(self, key: bytes, value: str) -> _Ticket | None:
        """What a cookie says, where it is one of ours to the letter."""
        body, _, mac = value.partition(".")
        if (
            len(value) > COOKIE_MAX
            or not value.isascii()
            or not hmac.compare_digest(mac, self._mac(key, body))
        ):
            return None
        try:
            return msgspec.json.decode(_bytes(body), type=_Ticket)
        except msgspec.DecodeError:
            return None  # of another version

    def _holder(self, credential: str) -> Principal | None:
        """Somebody with a token that is still known and still an administrator's."""
        principal = self._tokens.renewed(Principal("", credential=credential))
        return principal if principal is not None and principal.is_admin else None

    def _mac(self, key: bytes, body: str) -> str:
        # Over the text and not over what it means: there is but one spelling of a cookie.
        return _text(hmac.digest(key, b"console\0" + body.encode(), "sha256"))

    def _write_key(self, key: bytes) -> None:
        if self._file is None:
            return
        try:
            write_private(self._file, key.hex().encode() + b"\n")
        except OSError as error:
            note = "sessions of the console end with the server"
            logs.warning("console.key_not_written", reason=str(error), note=note)

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
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _values(cookies: str, name: str) -> list[str]:
    """The values of every cookie of a name. Others in the header may be malformed, and are none of our business."""
    pairs = (pair.strip().partition("=") for pair in cookies.split(";"))
    return [value for key, _, value in pairs if key == name]


def _read_key(file: Path | None) -> bytes | None:
    try:
        key = bytes.fromhex(file.read_text()) if file is not None else b""
    except (OSError, ValueError):
        return None
    return key if len(key) == KEY_SIZE else None
