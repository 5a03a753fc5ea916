"""Sessions of the console: a token is exchanged for a cookie that scripts cannot read.

The cookie holds the holder and the expiry, with a MAC whose key is in the data directory, so a session survives a restart;
without a data directory the key ends with the server. Deleting the key file signs everyone out at the next start. A
session that was signed out is remembered until its cookie expires.

Cookies are shared between ports, so the cookie's name has the port. A cookie counts only in requests of pages of this
origin (`Sec-Fetch-Site`, `Origin`), because another port of the same machine is the same site to a browser. Pages of
`listen.origins` have to send a token.
"""

from __future__ import annotations

import base64
import hmac
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from penstock.core.scopes import OPERATOR, Principal
from penstock.server.auth.tokens import TokenStore, is_own_page
from penstock.server.files.secret_files import write_private
from penstock.server.logging import logs

SESSION_S = 7 * 24 * 3600
"""How long a session lasts."""
KEY_SIZE = 32
COOKIE_MAX = 512
"""Characters of a session cookie; longer ones are ignored."""
COOKIES_MAX = 4
"""Cookies of the session's name that are checked."""
ENDED_FILE = "console.ended"
ENDED_MAX = 1_000
"""Closed sessions that are remembered; with more of them the key changes, which closes all."""
_OPERATOR = "operator"


class _Ticket(msgspec.Struct, array_like=True):
    """The content of a cookie."""

    holder: str
    """`operator`, or the credential of a token with `admin:*`."""
    ends_s: int
    nonce: str = ""
    """Makes two sessions of one second distinct."""


class Sessions:
    """Opens sessions and resolves their cookies."""

    def __init__(self, tokens: TokenStore, key_file: Path | None) -> None:
        self.tokens = tokens
        self._file = key_file
        self._key = _read_key(key_file)
        self._ended_file = None if key_file is None else key_file.with_name(ENDED_FILE)
        self._ended = _read_ended(self._ended_file)
        """When the cookies of closed sessions expire, by their MACs."""

    def open(self, token: str, headers: Mapping[str, str], now_s: int) -> tuple[Principal, str] | None:
        """The holder of a token and a cookie for it; None for tokens of non-administrators."""
        principal = self.tokens.resolve(token)
        if principal is None or not principal.is_admin:
            return None
        if self._key is None:
            self._key = secrets.token_bytes(KEY_SIZE)
            self._write(self._file, self._key.hex().encode() + b"\n")
        holder = _OPERATOR if principal.operator else principal.credential
        body = _text(msgspec.json.encode(_Ticket(holder, now_s + SESSION_S, secrets.token_hex(8))))
        return principal, self._cookie(headers, f"{body}.{self._mac(self._key, body)}", SESSION_S)

    def close(self, headers: Mapping[str, str], now_s: int) -> str:
        """End the session of a request, also for copies of its cookie; returns the cookie that deletes it in the browser."""
        ended = {value.partition(".")[2]: ticket.ends_s for value, ticket in self._open_tickets(headers, now_s)}
        if ended:
            self._ended = {mac: ends_s for mac, ends_s in self._ended.items() if ends_s > now_s} | ended
            if len(self._ended) > ENDED_MAX:  # a new key ends every session
                self._ended, self._key = {}, secrets.token_bytes(KEY_SIZE)
                self._write(self._file, self._key.hex().encode() + b"\n")
            self._write(self._ended_file, msgspec.json.encode(self._ended))
        return self._cookie(headers, "", 0)

    def resolve(self, headers: Mapping[str, str], now_s: int) -> Principal | None:
        """The principal of a request's cookie; None without a valid one."""
        for _, ticket in self._open_tickets(headers, now_s):
            return OPERATOR if ticket.holder == _OPERATOR else self._holder(ticket.holder)
        return None

    def _open_tickets(self, headers: Mapping[str, str], now_s: int) -> Iterator[tuple[str, _Ticket]]:
        """The cookies of a request whose sessions are open."""
        if (
            self._key is None
            or headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none")
            or not is_own_page(headers)
        ):
            return
        # Another program on this machine may set a cookie of the same name, so check several.
        for value in _values(headers.get("Cookie", ""), _name(headers))[:COOKIES_MAX]:
            ticket = self._ticket(self._key, value)
            if ticket is not None and ticket.ends_s > now_s and value.partition(".")[2] not in self._ended:
                yield value, ticket

    def _ticket(self, key: bytes, value: str) -> _Ticket | None:
        """The content of a cookie with a valid MAC."""
        body, _, mac = value.partition(".")
        if len(value) > COOKIE_MAX or not value.isascii() or not hmac.compare_digest(mac, self._mac(key, body)):
            return None
        try:
            data = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
            return msgspec.json.decode(data, type=_Ticket)
        except msgspec.DecodeError:
            return None  # made by another version

    def _holder(self, credential: str) -> Principal | None:
        """The holder of a token that is still accepted and still an administrator's."""
        principal = self.tokens.renewed(Principal("", credential=credential))
        return principal if principal is not None and principal.is_admin else None

    def _mac(self, key: bytes, body: str) -> str:
        # Over the text, not the decoded value: a cookie has one valid spelling.
        return _text(hmac.digest(key, b"console\0" + body.encode(), "sha256"))

    def _write(self, file: Path | None, data: bytes) -> None:
        if file is None:
            return
        try:
            write_private(file, data)
        except OSError as error:
            note = "console sessions, or their ends, will be forgotten when the server stops"
            logs.warning("console.key_not_written", file=file.name, reason=str(error), note=note)

    def _cookie(self, headers: Mapping[str, str], value: str, age_s: int) -> str:
        # Browsers send `Origin`, which has the scheme, with requests that change something.
        secure = "; Secure" if headers.get("Origin", "").startswith("https:") else ""
        return f"{_name(headers)}={value}; Path=/; Max-Age={age_s}; HttpOnly; SameSite=Strict{secure}"


def _name(headers: Mapping[str, str]) -> str:
    port = headers.get("Host", "").rpartition(":")[2]
    return f"penstock-{port}" if port.isascii() and port.isdigit() else "penstock"


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _values(cookies: str, name: str) -> list[str]:
    """The values of all cookies of a name; other cookies may be malformed."""
    pairs = (pair.strip().partition("=") for pair in cookies.split(";"))
    return [value for key, _, value in pairs if key == name]


def _read_ended(file: Path | None) -> dict[str, int]:
    try:
        return {} if file is None else msgspec.json.decode(file.read_bytes(), type=dict[str, int])
    except (OSError, msgspec.DecodeError):
        return {}


def _read_key(file: Path | None) -> bytes | None:
    try:
        key = bytes.fromhex(file.read_text()) if file is not None else b""
    except (OSError, ValueError):
        return None
    return key if len(key) == KEY_SIZE else None
