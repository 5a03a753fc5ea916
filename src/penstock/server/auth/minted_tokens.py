"""Tokens made at run time: `DIR/tokens.json`, which holds digests alone and is nobody else's to read.

They count beside those of the config file, survive restarts, and are taken back by their names. Without a data directory they live as
long as the server. A change is on disk before it counts. A file that cannot be read stops the start: passing over it would
let in whoever needs no token then.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from penstock.core.clock import rfc3339
from penstock.core.credentials import TOKEN_BYTES, token_text
from penstock.core.errors import Refusal
from penstock.server.config.cross_checks import token_errors
from penstock.server.config.sections import TokenSection
from penstock.server.files.secret_files import digest_of, write_private
from penstock.server.files.yaml_tree import ConfigError

FILE = "tokens.json"
FILE_MAX = 16 * 1024 * 1024
"""Bytes of the file that are read."""


class MintedToken(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One token as it is kept."""

    name: str
    digest: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    scopes: tuple[str, ...]
    created_at: str
    agent: str | None = None
    tenant: str | None = None

    @property
    def token(self) -> TokenSection:
        """As the config would have it."""
        return TokenSection(f"sha256:{self.digest}", self.scopes, self.name, self.agent, self.tenant)


class TokenSpec(msgspec.Struct, frozen=True):
    """What a new token is to be."""

    name: str
    scopes: Sequence[str]
    agent: str | None = None
    tenant: str | None = None


class _Content(msgspec.Struct, forbid_unknown_fields=True):
    tokens: list[MintedToken]


class MintedTokens:
    """Every token made at run time, by its name."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._tokens = {} if file is None else _read(file)

    @property
    def is_kept(self) -> bool:
        """Whether they survive a restart."""
        return self._file is not None

    def __contains__(self, name: str) -> bool:
        return name in self._tokens

    def __len__(self) -> int:
        return len(self._tokens)

    def __iter__(self) -> Iterator[MintedToken]:
        return iter(self._tokens.values())

    @property
    def tokens(self) -> list[TokenSection]:
        return [minted.token for minted in self]

    def mint(
        self, wish: TokenSpec, wall_us: int, *, configured: Sequence[TokenSection] = (), bound: int
    ) -> str | Refusal:
        """Make a token; it is told this once and never again."""
        text = token_text(secrets.token_bytes(TOKEN_BYTES))
        made = MintedToken(
            wish.name, digest_of(text), tuple(wish.scopes), rfc3339(wall_us), wish.agent, wish.tenant
        )
        # Whoever has a holder's name may settle what that holder took, so names are never shared.
        taken = [token.holder_name(number) for number, token in enumerate(configured, 1)]
        taken += [token.holder_name(0) for token in self.tokens]
        if made.name in self or made.token.holder_name(0) in taken:
            hint = "choose another name, or revoke the one that has it"
            return Refusal("IdConflict", f"there is a token called `{made.name}` already", hint=hint)
        problems = token_errors([*configured, *self.tokens, made.token])
        if problems:
            hint = "a scope is `streams:<pattern>:<verb>`, `views:<pattern>:<verb>` or `admin:*`"
            return Refusal("InvalidRequest", "; ".join(problems), hint=hint)
        if len(self) >= bound:
            message = f"{len(self)} tokens were made and `limits.tokens_max` allows no more"
            return Refusal("QuotaExceeded", message, hint="revoke those that nobody uses")
        return self._keep({**self._tokens, made.name: made}) or text

    def revoke(self, name: str) -> Refusal | None:
        """Take a token back."""
        if name not in self:
            return Refusal("UnknownToken", f"no token of the name `{name[:80]}` was made here", ref=name)
        return self._keep({key: token for key, token in self._tokens.items() if key != name})

    def _keep(self, tokens: dict[str, MintedToken]) -> Refusal | None:
        if self._file is not None:
            data = msgspec.json.format(msgspec.json.encode(_Content(list(tokens.values()))))
            try:
                write_private(self._file, data + b"\n", sync=True)
            except OSError as error:
                message = f"`{self._file.name}` cannot be written, so nothing changed: {error.strerror}"
                return Refusal("JournalUnavailable", message)
        self._tokens = tokens
        return None


def _read(file: Path) -> dict[str, MintedToken]:
    try:
        with file.open("rb") as opened:
            content = msgspec.json.decode(opened.read(FILE_MAX), type=_Content)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError([f"cannot read `{file}`: {error.strerror or error}"]) from error
    except msgspec.DecodeError as error:
        cure = "restore it from a backup, or remove it and mint the tokens anew"
        raise ConfigError([f"`{file}` is no file of tokens: {error}; hint: {cure}"]) from error
    kept: list[TokenSection] = []
    for minted in content.tokens:
        problems = token_errors([*kept, minted.token])
        if problems:
            raise ConfigError([f"`{file}`: token `{minted.name[:80]}`: {problem}" for problem in problems])
        kept.append(minted.token)
    return {minted.name: minted for minted in content.tokens}
