"""Who may do what: scopes, and the principal that holds them.

Owns the scope grammar and its check. Knows no headers or addresses: a principal is made elsewhere, from a token or a peer's address.

    streams:<pattern>:<verb>    verbs enqueue, subscribe, read, admin, or * for all of them
    views:<pattern>:<verb>      verbs read, subscribe, admin, or *
    admin:*                     everything, on every stream and view, and the administration of the server

`subscribe` covers what a consumer does: pull, credit, ack, nack, release, extend. `read` covers stats, peek, explain, and for a view
its snapshot and live changes. Cost: one dictionary lookup for a repeated check; a match per scope for a new one.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Iterable
from functools import lru_cache
from typing import Literal, TypeAlias

import msgspec

from penstock.core.patterns import matches
from penstock.core.tenants import TENANTS, prefix_of

ScopeKind: TypeAlias = Literal["streams", "views", "admin"]

ANY = "*"
STREAM_VERBS = ("enqueue", "subscribe", "read", "admin", ANY)
VIEW_VERBS = ("read", "subscribe", "admin", ANY)
AGENTS = "agents/"
RESERVED = ("system/", "pipeline/")
"""Senders that only the server names: its rules, and applications that stage batches."""
PIPELINE = "pipeline/penstock"
"""The sender of the built-in pipeline, whose envelopes are in none of its tables."""
TOKEN_BYTES = 32
"""Random bytes of a token."""


class Scope(msgspec.Struct, frozen=True, cache_hash=True):
    """One line of what a token allows."""

    kind: ScopeKind
    pattern: str
    verb: str

    def covers(self, kind: ScopeKind, verb: str, name: str) -> bool:
        """Whether this scope alone allows a verb on a stream or a view."""
        if self.kind == "admin":
            return True
        return self.kind == kind and self.verb in (verb, ANY) and matches(self.pattern, name)

    def __str__(self) -> str:
        return "admin:*" if self.kind == "admin" else f"{self.kind}:{self.pattern}:{self.verb}"


def parse(text: str) -> Scope | str:
    """Read one scope; a string in return says what is wrong with it."""
    kind, _, rest = text.partition(":")
    match kind:
        case "admin":
            return Scope("admin", ANY, ANY) if rest == ANY else f"`{text}` should be `admin:*`"
        case "streams":
            return _named("streams", text, rest, STREAM_VERBS)
        case "views":
            return _named("views", text, rest, VIEW_VERBS)
        case _:
            return f"`{text}` should start with `streams:`, `views:` or be `admin:*`"


def _named(kind: ScopeKind, text: str, rest: str, verbs: tuple[str, ...]) -> Scope | str:
    pattern, colon, verb = rest.rpartition(":")
    if not colon or not pattern:
        return f"`{text}` should be `{kind}:<pattern>:<verb>`"
    if ":" in pattern and kind == "streams":
        return f"`{text}` has too many `:`; a stream's name holds none"
    if not pattern.isprintable():
        return f"`{text!r}` has control characters in its pattern"
    if verb not in verbs:
        return f"`{text}` has the verb `{verb}`; {kind} know {', '.join(f'`{known}`' for known in verbs)}"
    return Scope(kind, pattern, verb)


def require(texts: Iterable[str]) -> tuple[Scope, ...]:
    """Read scopes that must be right, and raise ValueError with every problem: for config time only."""
    parsed = [parse(text) for text in texts]
    problems = [problem for problem in parsed if isinstance(problem, str)]
    if problems:
        raise ValueError("; ".join(problems))
    return tuple(scope for scope in parsed if isinstance(scope, Scope))


class Principal(msgspec.Struct, frozen=True, cache_hash=True):
    """The authenticated party of a connection or a request."""

    name: str
    """How logs and answers call it; never the token itself."""
    agent: str | None = None
    """The agent it speaks for: `from` is then filled and verified."""
    scopes: tuple[Scope, ...] = ()
    operator: bool = False
    """Whether it may use what belongs to the person who runs the server: journal, console, tokens."""
    tenant: str | None = None
    """Whose streams it means: what it calls `x` is the channel `t/<tenant>/x`."""
    anonymous: bool = False
    """Whether it showed no token, and so depends on where the peer sits."""
    credential: str = ""
    """Which token it showed, by a part of its digest: distinguishes a revoked token from another of the same name."""

    def party(self, address: str) -> tuple[bool, str]:
        """Who pays for what its connections hold: whether that is a stranger, and the name of the token or the address."""
        return (True, address) if self.anonymous else (False, self.name)

    def allows(self, verb: str, channel: str) -> bool:
        """Whether it may do this on the channel."""
        return _allowed(self, "streams", verb, channel)

    def to_channel(self, stream: str) -> str:
        """The channel behind a stream name of this principal."""
        return stream if self.tenant is None else prefix_of(self.tenant) + stream

    def meets(self, channel: str) -> bool:
        """Whether it may know that the channel exists at all: a tenant meets no others."""
        return self.tenant is None or channel.startswith(prefix_of(self.tenant))

    def from_channel(self, channel: str) -> str:
        """The name by which this principal knows a channel."""
        return channel if self.tenant is None else channel.removeprefix(prefix_of(self.tenant))

    def allows_view(self, verb: str, view: str) -> bool:
        """Whether it may do this on the view."""
        return _allowed(self, "views", verb, view)

    @property
    def is_admin(self) -> bool:
        """Whether it may administer the server."""
        return self.operator or any(scope.kind == "admin" for scope in self.scopes)

    def vouches(self, from_: str) -> bool:
        """Whether it may send as this `from`: an agent only as itself, other principals as anyone but the server."""
        if self.agent is None:
            return not from_.startswith(RESERVED)
        if from_ == self.agent:
            return True
        name, *rest = from_.removeprefix(AGENTS).split("/") if from_.startswith(AGENTS) else [""]
        # A reader that takes an address for a path must not end up at another agent's.
        return name == self.agent and not any(part in ("", ".", "..") for part in rest)


# One cache for all principals: a principal's hash is computed once and an equal principal has equal rights.
# A peer that asks about many names evicts other entries, which then cost one match again.
@lru_cache(maxsize=16_384)
def _allowed(principal: Principal, kind: ScopeKind, verb: str, name: str) -> bool:
    if kind == "streams":
        if principal.tenant is not None:
            if not name.startswith(prefix_of(principal.tenant)):
                return False
            name = principal.from_channel(name)
        elif name.startswith(TENANTS):
            # A pattern reaches into tenants only where it says so.
            return any(
                scope.covers(kind, verb, name)
                for scope in principal.scopes
                if scope.kind == "admin" or scope.pattern.startswith(TENANTS)
            )
    return any(scope.covers(kind, verb, name) for scope in principal.scopes)


ANONYMOUS = Principal(
    "anonymous",
    scopes=require(["streams:*:enqueue", "streams:*:subscribe", "streams:*:read", "views:*:read"]),
    anonymous=True,
)
"""A peer without a token where none is needed: the Courier verbs on everything, no administration."""

UNAUTHENTICATED = Principal("nobody", anonymous=True)
"""A peer that has yet to show a token, or needs none for what it asks."""

OPERATOR = Principal("operator", scopes=require(["admin:*"]), operator=True)
"""The person who runs the server."""


def token_text(entropy: bytes) -> str:
    """A token made of 256 random bits, in letters that need no escape in an address, a header or a shell."""
    text = urlsafe_b64encode(entropy).rstrip(b"=").decode()
    # `--token -x` would be parsed as two options.
    return "p" + text[1:] if text.startswith("-") else text
