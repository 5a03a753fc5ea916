"""List, mint and revoke tokens: `/v1/tokens` of a running server, and its file while no server runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from penstock.core.clock import rfc3339
from penstock.core.errors import PenstockError, Refusal
from penstock.core.limits import Limits
from penstock.core.scopes import Principal
from penstock.journal.disk import RealDisk
from penstock.server.admin.journal import Count, Time
from penstock.server.auth.minted_tokens import FILE, MintedToken, MintedTokens, TokenRequest
from penstock.server.auth.tokens import Guard, TokenStore
from penstock.server.engine.runtime import Runtime
from penstock.server.files.yaml_tree import ConfigError
from penstock.server.logging import logs

EXPIRY_LOOK_US = 1_000_000
"""How often expired tokens are looked for, by the wall clock, which may jump."""


class TokenRow(msgspec.Struct):
    """A token, without the token itself."""

    name: str
    agent: str | None
    tenant: str | None
    scopes: list[str]
    origin: Literal["config", "minted"]
    created_at: Time | None
    expires_at: datetime | None = None
    last_used_at: Annotated[
        Time | None, msgspec.Meta(description="The last sign-in or request since the server started")
    ] = None


class TokensReply(msgspec.Struct):
    """Every token but the operator's own."""

    tokens: list[TokenRow]
    required: Annotated[bool, msgspec.Meta(description="Whether every request needs a token")]
    kept: Annotated[bool, msgspec.Meta(description="Whether minted tokens survive a restart")]


class MintedReply(msgspec.Struct):
    """A new token; no later answer has it."""

    name: str
    token: str
    required: bool
    kept: bool
    closed: Count


class RevokedReply(msgspec.Struct):
    """A revoked token, and the number of connections that it had opened."""

    name: str
    required: bool
    closed: Count


class TokenAdmin(msgspec.Struct, eq=False):
    """The tokens of a server. Those of the config file are listed and cannot be changed."""

    runtime: Runtime
    store: TokenStore
    guard: Guard
    minted: MintedTokens
    readmit: Callable[[], int]
    """Gives every connection the rights that its token has now; returns how many it closed."""

    def listing(self) -> TokensReply:
        rows = [
            TokenRow(token.name or token.agent or f"token-{number}", token.agent, token.tenant,
                     [*token.scopes], "config", None)
            for number, token in enumerate(self.store.configured, 1)
        ]  # fmt: skip
        rows += map(token_row, self.minted)
        for row, token in zip(rows, (*self.store.configured, *self.minted.tokens), strict=True):
            used_s = self.store.last_used_s(token.token)
            row.last_used_at = None if used_s is None else rfc3339(int(used_s * 1_000_000))
        return TokensReply(rows, required=self.store.required, kept=self.minted.is_kept)

    def mint(self, principal: Principal, body: TokenRequest) -> MintedReply | Refusal:
        """Make a token. From the first token on, every request needs one."""
        if self.guard.allows_anonymous:
            hint = "take `auth.allowAnonymous` out of the config file and reload"
            return Refusal("InvalidRequest", "with a token every request would need one", hint=hint)
        token = self.minted.mint(
            body,
            self.runtime.scheduler.now().wall_us,
            configured=self.store.configured,
            bound=self.runtime.machine.limits.tokens_max,
        )
        if isinstance(token, Refusal):
            return token
        closed = self._changed()
        logs.event("token.minted", name=body.name, scopes=body.scopes, by=principal.name, closed=closed)
        return MintedReply(body.name, token, required=True, kept=self.minted.is_kept, closed=closed)

    def revoke(self, principal: Principal, name: str) -> RevokedReply | Refusal:
        """Revoke a token, and close the connections that it opened."""
        if name not in self.minted and name in [row.name for row in self.listing().tokens]:
            return Refusal("TokenInConfig", f"`{name}` comes from the config file", ref=name)
        if (refusal := self.minted.revoke(name)) is not None:
            return refusal
        closed = self._changed()
        logs.event("token.revoked", name=name, by=principal.name, closed=closed)
        return RevokedReply(name, required=self.store.required, closed=closed)

    def _changed(self) -> int:
        learn(self.minted, self.store, self.guard)
        return self.readmit()

    def watch(self) -> None:
        """Refuse each token when it expires, and close its connections; call it once, at the start."""
        if expired := self.store.expire():
            logs.event("token.expired", tokens=expired, closed=self.readmit())
        scheduler = self.runtime.scheduler
        scheduler.at(scheduler.now().us + EXPIRY_LOOK_US, self.watch)


def learn(minted: MintedTokens, store: TokenStore, guard: Guard) -> None:
    """Make the store and the guard know the minted tokens as they are now."""
    store.adopt_minted(minted.tokens, minted.expiries)
    guard.has_minted = len(minted) > 0


def token_row(minted: MintedToken) -> TokenRow:
    return TokenRow(
        minted.name, minted.agent, minted.tenant, [*minted.scopes], "minted", minted.created_at, minted.expires_at
    )


class OfflineTokens(msgspec.Struct, frozen=True):
    """The minted tokens of a data directory on which no server runs; a change takes effect at the next start.

    Its answers are those of the server, but only the server knows the tokens of its config file.
    """

    data: Path

    def listed(self) -> dict[str, Any]:
        tokens = self._read()
        return _plain(TokensReply([*map(token_row, tokens)], required=len(tokens) > 0, kept=True))

    def mint(self, **wanted: Any) -> dict[str, Any]:
        """Make a token with the members of a `TokenRequest`."""
        with self._locked() as tokens:
            token = tokens.mint(TokenRequest(**wanted), time.time_ns() // 1000, bound=Limits().tokens_max)
            if isinstance(token, Refusal):
                raise PenstockError(token)
            return _plain(MintedReply(wanted["name"], token, required=True, kept=True, closed=0))

    def revoke(self, name: str) -> dict[str, Any]:
        with self._locked() as tokens:
            refusal = tokens.revoke(name)
            if refusal is not None:
                raise PenstockError(refusal)
            return _plain(RevokedReply(name, required=len(tokens) > 0, closed=0))

    @contextmanager
    def _locked(self) -> Iterator[MintedTokens]:
        self.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        disk = RealDisk(self.data / "journal")
        if not disk.lock():
            hint = "a server is about to start or to stop there: try again in a moment"
            raise PenstockError(Refusal("JournalUnavailable", f"another process writes `{self.data}`", hint=hint))
        try:
            yield self._read()
        finally:
            disk.unlock()

    def _read(self) -> MintedTokens:
        try:
            return MintedTokens(self.data / FILE)
        except ConfigError as error:
            raise PenstockError(Refusal("InvalidConfig", "; ".join(error.errors))) from None


def _plain(reply: msgspec.Struct) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(reply)
    return plain
