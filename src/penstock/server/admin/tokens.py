"""`/v1/tokens`: list, mint and revoke tokens at run time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Literal

import msgspec

from penstock.core.clock import rfc3339
from penstock.core.errors import Refusal
from penstock.core.scopes import Principal
from penstock.server.admin.journal import Count, Time
from penstock.server.auth.minted_tokens import MintedToken, MintedTokens, TokenRequest
from penstock.server.auth.tokens import Guard, TokenStore
from penstock.server.engine.runtime import Runtime
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
