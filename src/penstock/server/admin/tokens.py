"""Tokens at the desk of the person who runs the server: listed, made and taken back while it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.core.errors import Refusal
from penstock.server.auth.minted_tokens import MintedToken, MintedTokens, TokenSpec
from penstock.server.auth.tokens import Guard, TokenStore
from penstock.server.engine.runtime import Runtime
from penstock.server.http.admin_routes import Ask, Desk
from penstock.server.logging import logs


class TokenAdmin:
    """Answers about the tokens of a server. Those of the config file are shown and left alone."""

    def __init__(
        self,
        runtime: Runtime,
        store: TokenStore,
        guard: Guard,
        minted: MintedTokens,
        readmit: Callable[[], int],
    ) -> None:
        self._runtime = runtime
        self._store = store
        self._minted = minted
        self._guard = guard
        self._readmit = readmit
        """Has every connection have the rights of its token as it is now; returns those that had to go."""

    def serve(self, desk: Desk) -> None:
        """Have the desk answer these."""
        desk.add("tokens", self.listed)
        desk.add("token_mint", self.mint)
        desk.add("token_revoke", self.revoke)

    def listed(self, ask: Ask) -> dict[str, Any]:
        """Every token but the operator's own: never the token itself."""
        rows = [
            {
                "name": token.name or token.agent or f"token-{number}",
                "agent": token.agent,
                "tenant": token.tenant,
                "scopes": list(token.scopes),
                "origin": "config",
                "created_at": None,
            }
            for number, token in enumerate(self._store.configured, 1)
        ]
        rows += [shown(minted) for minted in self._minted]
        return {"tokens": rows, "required": self._store.required, "kept": self._minted.is_kept}

    def mint(self, ask: Ask) -> dict[str, Any] | Refusal:
        """Make a token. With the first, everybody needs one."""
        if self._guard.allows_anonymous:
            hint = "take `auth.allowAnonymous` out of the config file and reload"
            return Refusal("InvalidRequest", "with a token everybody would need one", hint=hint)
        body = ask.body
        token = self._minted.mint(
            TokenSpec(body.name, body.scopes, body.agent, body.tenant),
            self._runtime.scheduler.now().wall_us,
            configured=self._store.configured,
            bound=self._runtime.machine.limits.tokens_max,
        )
        if isinstance(token, Refusal):
            return token
        closed = self._changed()
        logs.event("token.minted", name=body.name, scopes=body.scopes, by=ask.principal.name, closed=closed)
        return {
            "name": body.name,
            "token": token,
            "required": True,
            "kept": self._minted.is_kept,
            "closed": closed,
        }

    def revoke(self, ask: Ask) -> dict[str, Any] | Refusal:
        """Take a token back, and end what it opened."""
        (name,) = ask.values
        if name not in self._minted and name in [row["name"] for row in self.listed(ask)["tokens"]]:
            return Refusal("TokenInConfig", f"`{name}` comes from the config file", ref=name)
        refusal = self._minted.revoke(name)
        if refusal is not None:
            return refusal
        closed = self._changed()
        logs.event("token.revoked", name=name, by=ask.principal.name, closed=closed)
        return {"name": name, "required": self._store.required, "closed": closed}

    def _changed(self) -> int:
        learn(self._minted, self._store, self._guard)
        return self._readmit()


def learn(minted: MintedTokens, store: TokenStore, guard: Guard) -> None:
    """Have the tokens made at run time count as they are now."""
    store.adopt_minted(minted.tokens)
    guard.has_minted = len(minted) > 0


def shown(minted: MintedToken) -> dict[str, Any]:
    """A token that was made at run time, without its digest."""
    return {
        "name": minted.name,
        "agent": minted.agent,
        "tenant": minted.tenant,
        "scopes": list(minted.scopes),
        "origin": "minted",
        "created_at": minted.created_at,
    }
