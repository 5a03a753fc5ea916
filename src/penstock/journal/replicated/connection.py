"""A connection to the NATS servers of a cluster: their URLs, who signs in, and the authority of their certificates.

A credentials file holds one of three things: a JWT and its seed as the tool `nsc` writes them, an nkey seed alone, or `user:password`.
Secrets come from a file or from the URL, and no message shows them.
"""

from __future__ import annotations

import asyncio
import binascii
import ssl
from base64 import b32decode, b32encode, b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec
from nacl.exceptions import ValueError as SeedError
from nacl.signing import SigningKey
from nats.aio.client import Client
from nats.errors import Error as NatsError

from penstock.core.errors import PenstockError, Refusal
from penstock.journal.replicated.jetstream import ANSWER_S, FAILURES

CONNECT_S = 5.0
"""A cluster of which no server takes a connection for this long is reported."""
RECONNECT_WAIT_S = 0.2
PENDING_BYTES = 64 * 1024 * 1024
"""What a client holds back while it has no server; beyond it, a publish fails."""
FIRST_ATTEMPTS = 1
"""How often each server is tried again at first: a wrong password is reported at once, and a caller may repeat the call."""
SEED_BYTES = 32
_USER_KEY = bytes([20 << 3])
"""The first byte of the public key of a user."""
_JWT = "-----BEGIN NATS USER JWT-----"
_SEED = "-----BEGIN USER NKEY SEED-----"


class NatsServersAddress(msgspec.Struct, frozen=True):
    """Where the servers are, and how to sign in."""

    urls: tuple[str, ...]
    """`nats://host:port` or `tls://host:port`, without a user."""
    user: str | None = None
    password: str | None = None
    creds: Path | None = None
    ca: Path | None = None

    @property
    def shown(self) -> str:
        """For messages."""
        return ",".join(self.urls)


def parse_servers(join: str, creds: Path | None = None, ca: Path | None = None) -> NatsServersAddress:
    """The servers of `nats://[user:password@]host:port,host:port,…`; the first one's scheme and user hold for all."""
    first, *others = [part.strip() for part in join.split(",")]
    scheme = first.partition("://")[0] if "://" in first else "nats"
    if scheme not in ("nats", "tls"):
        raise _unusable(first)
    urls: list[str] = []
    users: list[tuple[str | None, str | None]] = []
    for part in (first, *others):
        try:
            found = urlsplit(part if "://" in part else f"{scheme}://{part}")
            port = found.port or 4222
        except ValueError:
            raise _unusable(part) from None
        if not found.hostname or found.scheme != scheme or found.path.strip("/"):
            raise _unusable(part)
        host = f"[{found.hostname}]" if ":" in found.hostname else found.hostname
        urls.append(f"{scheme}://{host}:{port}")
        if found.username is not None:
            users.append((unquote(found.username), unquote(found.password or "")))
    user, password = users[0] if users else (None, None)
    return NatsServersAddress(tuple(urls), user, password, creds, ca)


def _unusable(part: str) -> PenstockError:
    shown = part.rpartition("@")[2]  # what precedes it may be a password
    hint = "write it as `nats://host:4222,host:4222,host:4222`, or `tls://…`"
    return PenstockError(Refusal("InvalidRequest", f"`{shown}` is not the URL of a NATS server", hint=hint))


class Credentials(msgspec.Struct, frozen=True):
    """The content of a credentials file."""

    jwt: str | None = None
    seed: bytes | None = None
    user: str | None = None
    password: str | None = None

    @property
    def public_key(self) -> str:
        assert self.seed is not None
        key = _USER_KEY + bytes(SigningKey(self.seed).verify_key)
        return b32encode(key + binascii.crc_hqx(key, 0).to_bytes(2, "little")).decode().rstrip("=")

    def sign(self, nonce: str) -> bytes:
        """The server's challenge, signed."""
        assert self.seed is not None
        return b64encode(SigningKey(self.seed).sign(nonce.encode()).signature)


def read_credentials(file: Path) -> Credentials:
    """Read a credentials file; raises PenstockError if it holds none."""
    try:
        lines = [line.strip() for line in file.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise _bad_credentials(file, str(reason)) from None
    jwt = _after(lines, _JWT)
    seed = _after(lines, _SEED) or (lines[0] if len(lines) == 1 and lines[0].startswith("SU") else None)
    if seed is not None:
        try:
            raw = b32decode(seed + "=" * (-len(seed) % 8))[2 : 2 + SEED_BYTES]
            SigningKey(raw)
        except (ValueError, SeedError):
            raise _bad_credentials(file, "its seed is damaged") from None
        return Credentials(jwt, raw)
    user, colon, password = lines[0].partition(":") if len(lines) == 1 else ("", "", "")
    if not user or not colon:
        raise _bad_credentials(file, "it holds no seed and no `user:password`")
    return Credentials(user=user, password=password)


def _after(lines: list[str], title: str) -> str | None:
    return lines[lines.index(title) + 1] if title in lines[:-1] else None


def _bad_credentials(file: Path, reason: str) -> PenstockError:
    hint = "give a file of `nsc`, one with an nkey seed, or one with `user:password`"
    return PenstockError(Refusal("InvalidRequest", f"cannot use the credentials `{file}`: {reason}", hint=hint))


class _SignedClient(Client):
    """Signs the challenge with PyNaCl, where nats-py would need one more package, and signs in over TLS where that is asked for."""

    def __init__(self, credentials: Credentials | None) -> None:
        super().__init__()
        self._credentials = credentials

    def _setup_nkeys_connect(self) -> None:
        credentials = self._credentials
        assert credentials is not None
        self._signature_cb = credentials.sign
        if credentials.jwt is None:
            self._public_nkey = credentials.public_key
        else:
            jwt = bytearray(credentials.jwt.encode())
            self._user_jwt_cb = lambda: jwt

    def _connect_command(self) -> bytes:
        """What signs in. nats-py encrypts when the server says so, in plain text: on the way that can be taken out."""
        server = self._current_server
        is_asked = "tls" in self.options or (server is not None and server.uri.scheme == "tls")
        if is_asked and not self._server_info.get("tls_required"):
            raise NatsError("it offers no TLS, which `tls://` and `--nats-ca` ask for, so it got no password")
        return super()._connect_command()


async def connect_servers(
    address: NatsServersAddress, name: str, said: Callable[[str, str], None] = lambda event, text: None
) -> Client:
    """Connect to one of the servers; the client then stays connected as long as any of them runs. Raises PenstockError.

    `said` gets what happens to the connection later: `error`, `disconnected` and `connected`, with a text.
    """
    errors: list[str] = []

    async def note(error: Exception) -> None:
        text = str(error) or type(error).__name__
        if not any("uthoriz" in one for one in errors):  # a server that refuses may reset the connection the next time
            errors[:] = [text]
        if client.is_connected or client.is_reconnecting:
            said("error", text)

    async def left() -> None:
        said("disconnected", "")

    async def back() -> None:
        said("connected", "")

    options: dict[str, Any] = {"user": address.user, "password": address.password}
    credentials = None if address.creds is None else read_credentials(address.creds)
    if credentials is not None and credentials.seed is None:
        options = {"user": credentials.user, "password": credentials.password}
    elif credentials is not None:
        options = {"user_credentials": str(address.creds)}
    if address.ca is not None:
        try:
            options["tls"] = ssl.create_default_context(cafile=str(address.ca))
        except (OSError, ssl.SSLError) as error:
            hint = "give the file with the certificate of the authority that signed those of the servers"
            message = f"cannot use `{address.ca}`: {error.strerror or error}"
            raise PenstockError(Refusal("InvalidRequest", message, hint=hint)) from None
    client = _SignedClient(credentials)
    try:
        async with asyncio.timeout(CONNECT_S):
            await client.connect(
                list(address.urls),
                name=name,
                error_cb=note,
                disconnected_cb=left,
                reconnected_cb=back,
                pending_size=PENDING_BYTES,
                connect_timeout=int(ANSWER_S),
                max_reconnect_attempts=FIRST_ATTEMPTS,
                reconnect_time_wait=RECONNECT_WAIT_S,  # type: ignore[arg-type]  # it sleeps for parts of a second as well
                **options,
            )
    except (*FAILURES, ValueError) as error:
        await client.close()
        reason = errors[-1] if errors else str(error) or "no answer"
        hint = "check that the servers run, the URLs, and the user: `--nats-creds FILE`, or `user:password@` in the URL"
        message = f"cannot connect to the NATS servers at {address.shown}: {reason}"
        raise PenstockError(Refusal("Unreachable", message, hint=hint)) from None
    except BaseException:  # a cancellation leaves no connection behind
        await client.close()
        raise
    client.options["max_reconnect_attempts"] = -1
    return client


def server_name(client: Client) -> str:
    """The name of the server that it is connected to."""
    return str(client._server_info.get("server_name", ""))
