"""Tokens minted at run time: `DIR/tokens.json`, readable by its owner only, holds their digests.

They apply in addition to those of the config file, survive restarts, and are revoked by name. Without a data directory
they end with the server. A change is on disk before it takes effect. A file that cannot be read stops the start: without
its tokens the server might accept requests that need none.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated

import msgspec

from penstock.core.clock import rfc3339
from penstock.core.errors import Refusal
from penstock.core.scopes import TOKEN_BYTES, token_text
from penstock.server.config.cross_checks import token_errors
from penstock.server.config.sections import TokenSection
from penstock.server.files.secret_files import digest_of, write_private
from penstock.server.files.yaml_tree import ConfigError

FILE = "tokens.json"
FILE_MAX = 16 * 1024 * 1024
"""Bytes of the file that are read."""
Scope = Annotated[str, msgspec.Meta(min_length=1, max_length=600)]


class MintedToken(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One token in the file."""

    name: str
    digest: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    scopes: tuple[str, ...]
    created_at: str
    agent: str | None = None
    tenant: str | None = None
    expires_at: Annotated[datetime, msgspec.Meta(tz=True)] | None = None

    @property
    def token(self) -> TokenSection:
        """The token as a config section."""
        return TokenSection(f"sha256:{self.digest}", self.scopes, self.name, self.agent, self.tenant)


class TokenRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The properties of a new token; the body of `POST /v1/tokens`."""

    name: Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9._-]{1,64}$")]
    scopes: Annotated[list[Scope], msgspec.Meta(min_length=1, max_length=100)]
    agent: Annotated[str, msgspec.Meta(min_length=1, max_length=256)] | None = None
    tenant: Annotated[str, msgspec.Meta(min_length=1, max_length=256)] | None = None
    expires_at: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    """The token is refused from then on."""


class _Content(msgspec.Struct, forbid_unknown_fields=True):
    tokens: list[MintedToken]


class MintedTokens:
    """The minted tokens of a data directory, by name."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._tokens = {} if file is None else _read(file)

    @property
    def is_kept(self) -> bool:
        """Whether the tokens survive a restart."""
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

    @property
    def expiries(self) -> dict[bytes, float]:
        """When tokens expire, by their digests."""
        return {bytes.fromhex(minted.digest): minted.expires_at.timestamp() for minted in self if minted.expires_at}

    def mint(
        self, request: TokenRequest, wall_us: int, *, configured: Sequence[TokenSection] = (), bound: int
    ) -> str | Refusal:
        """Make a token and return it; only its digest is kept."""
        text = token_text(secrets.token_bytes(TOKEN_BYTES))
        if request.expires_at is not None and request.expires_at.timestamp() * 1_000_000 <= wall_us:
            hint = "choose a later time; the clock of the server counts"
            return Refusal("InvalidRequest", "the token would expire in the past", ref="expires_at", hint=hint)
        made = MintedToken(
            request.name,
            digest_of(text),
            tuple(request.scopes),
            rfc3339(wall_us),
            request.agent,
            request.tenant,
            request.expires_at,
        )
        # A name is the identity that leases belong to, so two tokens never share one.
        taken = [token.holder_name(number) for number, token in enumerate(configured, 1)]
        taken += [token.holder_name(0) for token in self.tokens]
        if made.name in self or made.token.holder_name(0) in taken:
            hint = "choose another name, or revoke the one that has it"
            return Refusal("IdConflict", f"a token called `{made.name}` exists already", hint=hint)
        problems = token_errors([*configured, *self.tokens, made.token])
        if problems:
            hint = "a scope is `streams:<pattern>:<verb>`, `views:<pattern>:<verb>` or `admin:*`"
            return Refusal("InvalidRequest", "; ".join(problems), hint=hint)
        if len(self) >= bound:
            message = f"{len(self)} tokens were minted and `limits.tokens_max` allows no more"
            return Refusal("QuotaExceeded", message, hint="revoke unused tokens")
        return self._keep({**self._tokens, made.name: made}) or text

    def revoke(self, name: str) -> Refusal | None:
        """Revoke a token."""
        if name not in self:
            return Refusal("UnknownToken", f"no minted token is called `{name[:80]}`", ref=name)
        return self._keep({key: token for key, token in self._tokens.items() if key != name})

    def _keep(self, tokens: dict[str, MintedToken]) -> Refusal | None:
        if self._file is not None:
            data = msgspec.json.format(msgspec.json.encode(_Content(list(tokens.values()))))
            try:
                write_private(self._file, data + b"\n", sync=True)
            except OSError as error:
                message = f"cannot write `{self._file.name}`, so nothing changed: {error.strerror}"
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
        hint = "restore it from a backup, or remove it and mint the tokens again"
        raise ConfigError([f"`{file}` is not a token file: {error}; hint: {hint}"]) from error
    kept: list[TokenSection] = []
    for minted in content.tokens:
        problems = token_errors([*kept, minted.token])
        if problems:
            raise ConfigError([f"`{file}`: token `{minted.name[:80]}`: {problem}" for problem in problems])
        kept.append(minted.token)
    return {minted.name: minted for minted in content.tokens}
