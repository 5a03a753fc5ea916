"""Tokens without a server: the file of a data directory, changed while its lock says that no server has it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.core.errors import PenstockError, Refusal
from penstock.core.limits import Limits
from penstock.journal.disk import RealDisk
from penstock.server.admin.tokens import shown
from penstock.server.auth.minted_tokens import FILE, MintedTokens, TokenSpec
from penstock.server.files.yaml_tree import ConfigError


def listed(data: Path) -> dict[str, Any]:
    """The tokens that were minted; those of a config file only the server knows."""
    tokens = _read(data)
    return {"tokens": [shown(minted) for minted in tokens], "required": len(tokens) > 0, "kept": True}


def mint(data: Path, wish: TokenSpec) -> dict[str, Any]:
    """Make a token for the next start."""
    with _locked(data) as tokens:
        token = tokens.mint(wish, time.time_ns() // 1000, bound=Limits().tokens_max)
        if isinstance(token, Refusal):
            raise PenstockError(token)
        return {"name": wish.name, "token": token, "required": True, "kept": True, "closed": 0}


def revoke(data: Path, name: str) -> dict[str, Any]:
    """Take a token back before the next start."""
    with _locked(data) as tokens:
        refusal = tokens.revoke(name)
        if refusal is not None:
            raise PenstockError(refusal)
        return {"name": name, "required": len(tokens) > 0, "closed": 0}


@contextmanager
def _locked(data: Path) -> Iterator[MintedTokens]:
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    disk = RealDisk(data / "journal")
    if not disk.lock():
        hint = "a server is about to start or to end there: try again in a moment"
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
