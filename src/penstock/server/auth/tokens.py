"""Who is there: tokens to principals, and the guard of the doors that ask for none.

Tokens are kept as sha256 only, so neither a dump of the process nor a log line gives one away. Where no tokens
are configured, peers on this machine may come in without one. Web pages run on this machine too, so the
guard also looks at `Host` (a page whose name was re-bound to 127.0.0.1) and at `Origin` (a page from elsewhere).
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

from penstock.core.credentials import TOKEN_BYTES, token_text
from penstock.core.errors import Refusal
from penstock.core.scopes import ANONYMOUS, OPERATOR, Principal, require
from penstock.server.config.load import AuthSection, Config, ConfigError, digest_of
from penstock.server.config.sections import TokenSection
from penstock.server.files.addresses import (
    HostPort,
    client_address,
    is_loopback,
    parse_control,
    parse_network,
)
from penstock.server.files.secret_files import write_private

UNIX_PEER = "unix"
"""The peer address of a Unix socket: whoever may open the file is on this machine."""

CREDENTIAL_LENGTH = 16
"""Hexadecimal digits of a digest that tell tokens apart and give none away."""

_SCHEME = "bearer "
_SUBPROTOCOL = "bearer."
_DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}


class TokenStore:
    """Every token the server knows, by digest."""

    def __init__(self, auth: AuthSection, operator_token: str | None = None) -> None:
        self._holders: dict[bytes, tuple[bytes, Principal]] = {}
        self._minted: tuple[TokenSection, ...] = ()
        self.required = False
        """Whether everybody needs a token; the operator's own does not count."""
        self.adopt(auth)
        if operator_token is not None:
            self.add_operator(operator_token)

    def adopt(self, auth: AuthSection) -> None:
        """Know these tokens from now on, beside the operator's and those that were minted, and no others."""
        self.configured = auth.tokens
        self._learn()

    def adopt_minted(self, tokens: Iterable[TokenSection]) -> None:
        """Know these tokens, given at run time, beside those of the config."""
        self._minted = tuple(tokens)
        self._learn()

    def _learn(self) -> None:
        holders = {digest: held for digest, held in self._holders.items() if held[1].operator}
        tokens = (*self.configured, *self._minted)
        for number, token in enumerate(tokens, 1):
            if token.token.startswith("env:"):
                raise ConfigError([f"auth.tokens[{number - 1}].token: `env:` is resolved by `load`"])
            digest = bytes.fromhex(digest_of(token.token))
            principal = Principal(
                token.holder_name(number),
                agent=token.agent,
                scopes=require(token.scopes),
                tenant=token.tenant,
                credential=digest.hex()[:CREDENTIAL_LENGTH],
            )
            holders[digest] = (digest, principal)
        self._holders = holders
        self.required = bool(tokens)

    def add_operator(self, token: str) -> None:
        """Know the operator by this token too."""
        digest = sha256(token.encode()).digest()
        self._holders[digest] = (digest, OPERATOR)

    def renewed(self, principal: Principal) -> Principal | None:
        """What somebody who was let in before is allowed now; None when it would not be let in any more."""
        if principal.operator:
            return principal
        if principal.anonymous:
            return None if self.required else principal
        if not principal.credential:
            return principal  # a worker of the server itself: no token let it in
        for _, known in self._holders.values():
            if known.credential == principal.credential:
                return known
        return None

    def resolve(self, token: str | None) -> Principal | None:
        """The holder of a token; without one, ANONYMOUS where none is required; None means 401.

        A wrong token is never anonymous: its holder expects rights that it would silently not have.
        """
        if token is None:
            return None if self.required else ANONYMOUS
        digest = sha256(token.encode("utf-8", "surrogateescape")).digest()
        known, principal = self._holders.get(digest, (b"", None))
        return principal if hmac.compare_digest(known, digest) else None

    def __repr__(self) -> str:
        names = ", ".join(principal.name for _, principal in self._holders.values())
        return f"<TokenStore of {names or 'no tokens'}>"


class Guard:
    """Where a peer may come from. Both checks answer with a refusal, or None when all is well."""

    def __init__(self, config: Config) -> None:
        self.has_minted = False
        """Whether there are tokens that were given at run time."""
        self.adopt(config)

    def adopt(self, config: Config) -> None:
        """Judge by these settings from now on."""
        # A space never lets anybody in without a token.
        self._tokens_configured = bool(config.auth.tokens) or not config.serves_courier
        self._allow_anonymous = config.auth.allow_anonymous
        self._origins = tuple(origin for text in config.listen.origins if (origin := _origin(text)))
        self._proxies = tuple(parse_network(text) for text in config.listen.trusted_proxies)

    @property
    def allows_anonymous(self) -> bool:
        """Whether peers on other machines need no token."""
        return self._allow_anonymous

    @property
    def has_origins(self) -> bool:
        """Whether pages of any other site may connect."""
        return bool(self._origins)

    def is_listed(self, origin: str) -> bool:
        """Whether pages of this site may connect because the config names it."""
        return _origin(origin) in self._origins

    def client_address(self, peer: str, headers: Mapping[str, str]) -> str:
        """Where a request comes from, proxies of ours left out."""
        if not self._proxies:
            return peer
        return client_address(peer, headers.get("X-Forwarded-For"), self._proxies)

    def check_peer(self, peer_ip: str | None, bind_is_loopback: bool) -> Refusal | None:
        """Whether a peer without a token may come in from there; ask only about an anonymous principal."""
        if self._allow_anonymous:
            return None
        if peer_ip == UNIX_PEER or (bind_is_loopback and peer_ip is not None and is_loopback(peer_ip)):
            return None
        return Refusal("Unauthorized", "without a token only peers on this machine are served")

    def check_headers(self, host: str | None, origin: str | None) -> Refusal | None:
        """Whether a browser may have been tricked into this request.

        Ask for every request: `Host` matters wherever no token is required. `Origin` matters for WebSocket
        upgrades and for whatever changes something, tokens or not; a browser always sends it with those.
        """
        is_open = not (self._tokens_configured or self.has_minted or self._allow_anonymous)
        if is_open and not (host and self.is_local_name(host)):
            return Refusal(
                "Forbidden",
                f"the Host `{_shown(host)}` is not a name of this machine",
                hint="use localhost, 127.0.0.1 or [::1], or configure tokens",
            )
        return self.check_origin(host, origin)

    def is_local_name(self, host: str | None) -> bool:
        """Whether a request names this machine by a name that nobody else can give; one that names none is no page's."""
        name = None if host is None else _host_name(host)
        return host is None or (name is not None and is_loopback(name))

    def check_origin(self, host: str | None, origin: str | None) -> Refusal | None:
        """Whether a page of another site is behind this request."""
        if origin is None:
            return None
        parsed = _origin(origin)
        if parsed is not None and (parsed in self._origins or _is_same_place(parsed, host or "")):
            return None
        return Refusal(
            "Forbidden",
            f"the Origin `{_shown(origin)}` is another site",
            hint="add it to `listen.origins` to let its pages connect",
        )


def start_check(
    config: Config, http_hosts: Sequence[str], control: str | None, *, minted: Sequence[TokenSection] = ()
) -> None:
    """Raise ConfigError when peers without a token could come in from other machines by accident, or nobody could who should.

    `control` is written as in `listen.control`; the addresses are the effective ones, so flags count too. Neither may a token of the
    config have the name of one that was minted: whoever has a holder's name may settle what that holder took.
    """
    configured = [token.holder_name(number) for number, token in enumerate(config.auth.tokens, 1)]
    shared = [token.holder_name(0) for token in minted if token.holder_name(0) in configured]
    if shared:
        cure = "hint: give the one in the config another name, or take the other back with `penstock token revoke`"
        raise ConfigError([f"auth.tokens: a token called `{name}` was minted; {cure}" for name in shared])
    if minted and config.auth.allow_anonymous:
        cure = "hint: `penstock token revoke` takes them back; or leave the setting out"
        raise ConfigError([f"auth.allowAnonymous does not go with tokens that were minted; {cure}"])
    if config.auth.tokens or minted or config.auth.allow_anonymous or not config.serves_courier:
        return
    open_doors = [f"http on `{host}`" for host in http_hosts if not is_loopback(host)]
    address = parse_control(control) if control is not None else None
    if isinstance(address, HostPort) and not is_loopback(address.host):
        open_doors.append(f"control on `{address}`")
    if open_doors:
        cure = "hint: add `auth.tokens` or mint one with `penstock token new`, listen on `localhost`, or set `auth.allowAnonymous: true`"
        raise ConfigError([f"{door} would serve anyone without a token; {cure}" for door in open_doors])


def is_own_page(headers: Mapping[str, str]) -> bool:
    """Whether no page is behind a request as far as it says, or one of this very server."""
    origin = headers.get("Origin")
    if origin is None:
        return True
    parsed = _origin(origin)
    return parsed is not None and _is_same_place(parsed, headers.get("Host", ""))


def bearer(authorization: str | None, protocols: str | None = None, query: str | None = None) -> str | None:
    """The token of a request, or None when it shows none.

    Looks at the header `Authorization`, then at `Sec-WebSocket-Protocol`, where browsers can put a
    `bearer.<token>`, then at the query's `access_token`: pass that only where `auth.queryToken` is set.
    Credentials that cannot be read give "", which no token equals, so they are refused and not overlooked.
    """
    if authorization is not None:
        scheme, token = authorization[: len(_SCHEME)], authorization[len(_SCHEME) :].strip()
        return token if scheme.lower() == _SCHEME else ""
    for offered in _offered(protocols):
        if offered.startswith(_SUBPROTOCOL):
            return offered.removeprefix(_SUBPROTOCOL)
    return query


def subprotocol(protocols: str | None) -> str | None:
    """What to answer to the offered WebSocket protocols: browsers hang up when none of theirs is chosen.

    A protocol that is not a token is preferred, so that the token is not sent back without need.
    """
    offered = _offered(protocols)
    plain = [name for name in offered if not name.startswith(_SUBPROTOCOL)]
    return next(iter(plain or offered), None)


def write_operator_token(path: Path) -> str:
    """Make a new operator token and write it to a file."""
    token = token_text(secrets.token_bytes(TOKEN_BYTES))
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(path, token.encode() + b"\n")
    return token


def _offered(protocols: str | None) -> list[str]:
    return [name for part in (protocols or "").split(",") if (name := part.strip())]


def _host_name(host: str) -> str | None:
    """The name in a `Host` header, without port and brackets; None when it is not one."""
    try:
        parts = urlsplit(f"//{host}")
        port = parts.port
    except ValueError:
        return None
    # Only HOST[:PORT]: of anything else, browsers and parsers disagree on which part is the host.
    return parts.hostname if parts.netloc == host and "@" not in host and port != 0 else None


def _origin(text: str) -> tuple[str, str, int] | None:
    """An Origin as scheme, host and port; None for `null` and for what no browser sends."""
    try:
        parts = urlsplit(text.lower())
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme)
    except ValueError:
        return None
    is_bare = not (parts.path or parts.query or parts.fragment or "@" in parts.netloc)
    return (parts.scheme, parts.hostname, port) if parts.hostname and port and is_bare else None


def _is_same_place(origin: tuple[str, str, int], host: str) -> bool:
    """Whether an Origin is the very host and port a request was sent to."""
    scheme, name, port = origin
    return _host_name(host) is not None and _origin(f"{scheme}://{host}") == (scheme, name, port)


def _shown(header: str | None) -> str:
    text = header or ""
    return (text if text.isprintable() else repr(text))[:80]
