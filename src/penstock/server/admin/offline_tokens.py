"""Tokens without a server: reads and changes the token file of a data directory while no server holds its lock."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from penstock.core.errors import PenstockError, Refusal
from penstock.core.limits import Limits
from penstock.journal.disk import RealDisk
from penstock.server.admin.tokens import MintedReply, RevokedReply, TokensReply, token_row
from penstock.server.auth.minted_tokens import FILE, MintedTokens, TokenRequest
from penstock.server.files.yaml_tree import ConfigError


def listed(data: Path) -> dict[str, Any]:
    """The minted tokens; only the server knows those of its config file."""
    tokens = _read(data)
    return _plain(TokensReply([*map(token_row, tokens)], required=len(tokens) > 0, kept=True))


def mint(data: Path, request: TokenRequest) -> dict[str, Any]:
    """Make a token for the next start."""
    with _locked(data) as tokens:
        token = tokens.mint(request, time.time_ns() // 1000, bound=Limits().tokens_max)
        if isinstance(token, Refusal):
            raise PenstockError(token)
        return _plain(MintedReply(request.name, token, required=True, kept=True, closed=0))


def revoke(data: Path, name: str) -> dict[str, Any]:
    """Revoke a token before the next start."""
    with _locked(data) as tokens:
        refusal = tokens.revoke(name)
        if refusal is not None:
            raise PenstockError(refusal)
        return _plain(RevokedReply(name, required=len(tokens) > 0, closed=0))


def _plain(reply: msgspec.Struct) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(reply)
    return plain


@contextmanager
def _locked(data: Path) -> Iterator[MintedTokens]:
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    disk = RealDisk(data / "journal")
    if not disk.lock():
        hint = "a server is about to start or to stop there: try again in a moment"
        raise PenstockError(Refusal("JournalUnavailable", f"another process writes `{data}`", hint=hint))
    try:
        yield _read(data)
    finally:
        disk.unlock()


def _read(data: Path) -> MintedTokens:
    try:
        return MintedTokens(data / FILE)
    except ConfigError as error:
        raise PenstockError(Refusal("InvalidConfig", "; ".join(error.errors))) from None
