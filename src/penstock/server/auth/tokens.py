"""Maps tokens to principals, and guards listeners that require no token.

Tokens are kept as SHA-256 digests only, so neither a memory dump nor a log line reveals one. Where no tokens are
configured, peers on this machine need none. Web pages run on this machine too, so the guard also checks `Host` (DNS
rebinding to 127.0.0.1) and `Origin` (pages of other sites).
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

from penstock.core.errors import Refusal
from penstock.core.scopes import ANONYMOUS, OPERATOR, TOKEN_BYTES, Principal, require, token_text
from penstock.server.config.load import Config, ConfigError
from penstock.server.config.sections import AuthSection, TokenSection
from penstock.server.files import addresses
from penstock.server.files.secret_files import digest_of, write_private
from penstock.server.logging import logs

UNIX_PEER = "unix"
"""The peer address of a Unix socket, which only programs on this machine can open."""

CREDENTIAL_LENGTH = 16
"""Hexadecimal digits of a digest that identify a token without revealing it."""

FINGERPRINT_LENGTH = 8
"""Hexadecimal digits of a digest that tell refused tokens apart."""
QUIET_S = 1.0
"""Time between two log lines about refused tokens of a peer."""
PEERS_MAX = 1_000
"""Peers whose log lines are spaced; refusals of more peers in a second are counted and not logged."""
_REFUSED_HINT = "`penstock token ls` lists the tokens that are valid, `penstock token new` mints one"

_SCHEME = "bearer "
_SUBPROTOCOL = "bearer."
_DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}


class TokenStore:
    """The tokens of a server, by digest."""

    def __init__(
        self, auth: AuthSection, operator_token: str | None = None, wall_s: Callable[[], float] = time.time
    ) -> None:
        self._wall_s = wall_s
        self._all_expiries: dict[bytes, float] = {}
        self._expiries: dict[bytes, float] = {}
        """Those that are still to come."""
        self._holders: dict[bytes, tuple[bytes, Principal]] = {}
        self._used: dict[bytes, float] = {}
        """When each token was shown last, in seconds since 1970."""
        self.changes = 0
        """Times that tokens were replaced or expired."""
        self.refusals = {"missing": 0, "unknown": 0}
        """Requests that were refused for want of a token, and for one that is not known."""
        self.last_refusal = ""
        self._logged: dict[str, float] = {}
        """When a refusal of each peer was logged, the oldest first."""
        self._minted: tuple[TokenSection, ...] = ()
        self.required = False
        """Whether requests need a token; the operator's own does not count."""
        self.adopt(auth)
        if operator_token is not None:
            self.add_operator(operator_token)

    def adopt(self, auth: AuthSection) -> None:
        """Replace the configured tokens; keeps the operator's and the minted ones."""
        self.configured = auth.tokens
        self._learn()

    def adopt_minted(self, tokens: Iterable[TokenSection], expiries: Mapping[bytes, float] | None = None) -> None:
        """Replace the minted tokens. `expiries` are their times by digest, in seconds since 1970; see `expire`."""
        self._minted = tuple(tokens)
        self._all_expiries = dict(expiries or {})
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
        self._names = {(one.tenant, name) for _, one in holders.values() for name in (one.agent, _bare_name(one))}
        self.changes += 1
        self._used = {kept: self._used[kept] for kept in self._used.keys() & holders.keys()}
        self.required = bool(tokens)
        self._expiries = dict(self._all_expiries)
        self.expire()

    def add_operator(self, token: str) -> None:
        """Accept this token as the operator's too."""
        digest = sha256(token.encode()).digest()
        self._holders[digest] = (digest, OPERATOR)

    def renewed(self, principal: Principal) -> Principal | None:
        """The rights that a principal has now; None when its token is no longer accepted."""
        if principal.operator:
            return principal
        if principal.anonymous:
            return None if self.required else principal
        if not principal.credential:
            return principal  # a worker of the server itself has no token
        for _, known in self._holders.values():
            if known.credential == principal.credential:
                return known
        return None

    def is_taken(self, principal: Principal, agent: str) -> bool:
        """Whether a name is that of another token, or of its agent; tenants have names of their own."""
        return agent != _bare_name(principal) and (principal.tenant, agent) in self._names

    def expire(self) -> int:
        """Refuse the tokens that have expired from now on; returns how many. They still make a token required."""
        expired = [digest for digest, expires_s in self._expiries.items() if self._wall_s() >= expires_s]
        for digest in expired:
            del self._expiries[digest]
            self._holders.pop(digest, None)
            self.changes += 1
        return len(expired)

    def resolve(self, token: str | None) -> Principal | None:
        """The holder of a token; without a token, ANONYMOUS where none is required; None means 401.

        A wrong token is never anonymous: the client would silently lack the rights that it expects.
        """
        if token is None:
            return None if self.required else ANONYMOUS
        digest = sha256(token.encode("utf-8", "surrogateescape")).digest()
        known, principal = self._holders.get(digest, (b"", None))
        if hmac.compare_digest(known, digest):
            self._used[digest] = self._wall_s()
            return principal
        return None

    def refused(self, token: str | None, peer: str) -> None:
        """Count a request whose token is missing or unknown, and log it by a fingerprint, at most once a second for each peer."""
        reason = "unknown" if token else "missing"
        self.refusals[reason] += 1
        shown = sha256(token.encode("utf-8", "surrogateescape")).hexdigest()[:FINGERPRINT_LENGTH] if token else None
        what = f"a token that is not known (fingerprint {shown})" if token else "no token, and one is needed"
        counts = ", ".join(f"{count} {name}" for name, count in self.refusals.items())
        self.last_refusal = f"{peer} showed {what}; {counts} since the start; {_REFUSED_HINT}"
        now_s = time.monotonic()
        replaced = peer if peer in self._logged or len(self._logged) < PEERS_MAX else next(iter(self._logged))
        if now_s - self._logged.get(replaced, -QUIET_S) < QUIET_S:
            return
        self._logged.pop(replaced, None)
        self._logged[peer] = now_s
        logs.warning("token.refused", peer=peer, reason=reason, fingerprint=shown, counts=self.refusals)

    def last_used_s(self, token: str) -> float | None:
        """When a token, written as in the config, was shown last since the server started."""
        return self._used.get(bytes.fromhex(digest_of(token)))

    def __repr__(self) -> str:
        names = ", ".join(principal.name for _, principal in self._holders.values())
        return f"<TokenStore of {names or 'no tokens'}>"


def _bare_name(principal: Principal) -> str:
    return principal.name if principal.tenant is None else principal.name.removeprefix(f"{principal.tenant}/")


class Guard:
    """Checks where a request comes from. A check returns a refusal, or None."""

    def __init__(self, config: Config) -> None:
        self.has_minted = False
        """Whether there are minted tokens."""
        self.adopt(config)

    def adopt(self, config: Config) -> None:
        """Apply these settings from now on."""
        # A space requires a token always.
        self._tokens_configured = bool(config.auth.tokens) or not config.serves_courier
        self.allows_anonymous = config.auth.allow_anonymous
        self.origins = tuple(origin for text in config.listen.origins if (origin := _origin(text)))
        self._proxies = tuple(addresses.parse_network(text) for text in config.listen.trusted_proxies)

    def is_proxy(self, peer: str) -> bool:
        """Whether a peer is a trusted proxy."""
        return addresses.is_among(peer, self._proxies)

    def is_listed(self, origin: str) -> bool:
        """Whether the config lists this site."""
        return _origin(origin) in self.origins

    def client_address(self, peer: str, headers: Mapping[str, str]) -> str:
        """The address of the client behind trusted proxies."""
        if not self._proxies:
            return peer
        return addresses.client_address(peer, headers.get("X-Forwarded-For"), self._proxies)

    def check_peer(self, peer_ip: str | None, bind_is_loopback: bool) -> Refusal | None:
        """Why an anonymous peer is refused; call it for anonymous principals only."""
        if self.allows_anonymous:
            return None
        if peer_ip == UNIX_PEER or (bind_is_loopback and peer_ip is not None and addresses.is_loopback(peer_ip)):
            return None
        return Refusal("Unauthorized", "without a token only peers on this machine are served")

    def check_headers(self, host: str | None, origin: str | None) -> Refusal | None:
        """Why a request may come from a malicious page; call it for every request.

        `Host` matters wherever no token is required. `Origin` matters for WebSocket upgrades and for requests that
        change something, tokens or not; a browser always sends it with those.
        """
        is_open = not (self._tokens_configured or self.has_minted or self.allows_anonymous)
        if is_open and not (host and self.is_local_name(host)):
            return Refusal(
                "Forbidden",
                f"the Host `{_shown(host)}` is not a name of this machine",
                hint="use localhost, 127.0.0.1 or [::1], or configure tokens",
            )
        return self.check_origin(host, origin)

    def is_local_name(self, host: str | None) -> bool:
        """Whether `Host` is a loopback name; a request without `Host` does not come from a page."""
        name = None if host is None else _host_name(host)
        return host is None or (name is not None and addresses.is_loopback(name))

    def check_origin(self, host: str | None, origin: str | None) -> Refusal | None:
        """Why a page of another site is refused."""
        if origin is None:
            return None
        parsed = _origin(origin)
        if parsed is not None and (parsed in self.origins or _is_same_place(parsed, host or "")):
            return None
        return Refusal(
            "Forbidden",
            f"the Origin `{_shown(origin)}` is another site",
            hint="add it to `listen.origins` to let its pages connect",
        )


def start_check(
    config: Config, http_hosts: Sequence[str], control: str | None, *, minted: Sequence[TokenSection] = ()
) -> None:
    """Raise ConfigError when other machines could connect without a token by accident, or when tokens conflict.

    `control` is written as in `listen.control`; the addresses are the effective ones, so flags count too. A configured
    and a minted token may not share a name, because leases belong to names.
    """
    configured = [token.holder_name(number) for number, token in enumerate(config.auth.tokens, 1)]
    shared = [token.holder_name(0) for token in minted if token.holder_name(0) in configured]
    if shared:
        hint = "hint: rename the one in the config, or revoke the other with `penstock token revoke`"
        raise ConfigError([f"auth.tokens: a token called `{name}` was minted; {hint}" for name in shared])
    if minted and config.auth.allow_anonymous:
        hint = "hint: revoke them with `penstock token revoke`, or remove the setting"
        raise ConfigError([f"auth.allowAnonymous conflicts with minted tokens; {hint}"])
    if config.auth.tokens or minted or config.auth.allow_anonymous or not config.serves_courier:
        return
    open_doors = [f"http on `{host}`" for host in http_hosts if not addresses.is_loopback(host)]
    address = addresses.parse_control(control) if control is not None else None
    if isinstance(address, addresses.HostPort) and not addresses.is_loopback(address.host):
        open_doors.append(f"control on `{address}`")
    if open_doors:
        hint = "hint: add `auth.tokens` or mint one with `penstock token new`, listen on `localhost`, or set `auth.allowAnonymous: true`"
        raise ConfigError([f"{door} would serve anyone without a token; {hint}" for door in open_doors])


def is_own_page(headers: Mapping[str, str]) -> bool:
    """Whether a request comes from a page of this server, or from no page."""
    origin = headers.get("Origin")
    if origin is None:
        return True
    parsed = _origin(origin)
    return parsed is not None and _is_same_place(parsed, headers.get("Host", ""))


def bearer(authorization: str | None, protocols: str | None = None, query: str | None = None) -> str | None:
    """The token of a request, or None.

    Looks at `Authorization`, then at `Sec-WebSocket-Protocol`, where browsers can put `bearer.<token>`, then at the
    query's `access_token`: pass that only where `auth.queryToken` is set. Unreadable credentials give "", which equals
    no token, so they are refused and not ignored.
    """
    if authorization is not None:
        scheme, token = authorization[: len(_SCHEME)], authorization[len(_SCHEME) :].strip()
        return token if scheme.lower() == _SCHEME else ""
    for offered in _offered(protocols) if protocols else ():
        if offered.startswith(_SUBPROTOCOL):
            return offered.removeprefix(_SUBPROTOCOL)
    return query


def subprotocol(protocols: str | None) -> str | None:
    """The WebSocket protocol to choose: browsers disconnect when the server chooses none of theirs.

    Prefers one that is not a token, so that the token is not echoed.
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


@lru_cache(maxsize=256)  # a client names the same one in each request
def _host_name(host: str) -> str | None:
    """The name in a `Host` header, without port and brackets; None when it is malformed."""
    try:
        parts = urlsplit(f"//{host}")
        port = parts.port
    except ValueError:
        return None
    # Only HOST[:PORT]: browsers and parsers disagree about the host of anything else.
    return parts.hostname if parts.netloc == host and "@" not in host and port != 0 else None


def _origin(text: str) -> tuple[str, str, int] | None:
    """An Origin as scheme, host and port; None for `null` and malformed ones."""
    try:
        parts = urlsplit(text.lower())
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme)
    except ValueError:
        return None
    is_bare = not (parts.path or parts.query or parts.fragment or "@" in parts.netloc)
    return (parts.scheme, parts.hostname, port) if parts.hostname and port and is_bare else None


def _is_same_place(origin: tuple[str, str, int], host: str) -> bool:
    """Whether an Origin is the host and port that the request was sent to."""
    scheme, name, port = origin
    return _host_name(host) is not None and _origin(f"{scheme}://{host}") == (scheme, name, port)


def _shown(header: str | None) -> str:
    text = header or ""
    return (text if text.isprintable() else repr(text))[:80]
