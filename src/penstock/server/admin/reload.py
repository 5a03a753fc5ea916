"""The config at run time: `/v1/config` shows it; a reload reports what changed, what needs a restart, and which connections close.

All or nothing: the new config is read and checked completely before any of it takes effect. A setting that cannot change
at run time keeps its old value, and the answer names it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec

from penstock.core.errors import Refusal
from penstock.core.names import stream_problem
from penstock.core.scopes import UNAUTHENTICATED
from penstock.server.admin.journal import Count
from penstock.server.auth.tokens import UNIX_PEER, TokenStore
from penstock.server.config.load import Config, settings_for
from penstock.server.config.reference import to_plain
from penstock.server.config.sections import Sections, StreamCaps
from penstock.server.engine.connections import Connection
from penstock.server.files.addresses import is_loopback

RESTART = (
    "listen.http",
    "listen.ws",
    "listen.control",
    "journal",
    "pipeline",
    "logs.format",
    "logs.payload",
    "logs.file",
    "logs.record",
    "logs.redact",
    "logs.events",
    "logs.events_max_bytes",
    "logs.events_keep",
    "skills",
    "spaces",
    "relay",
    "console",
)
"""Settings, or whole sections, that take effect with the next start."""

REVOKED = Refusal("Unauthorized", "the token that opened this connection is not accepted any more")
SHRUNK = Refusal("Forbidden", "the token does not allow a subscription of this connection any more")


class ReloadedReply(msgspec.Struct, frozen=True):
    """The answer of `/v1/reload`."""

    changed: list[str]
    """Settings that took effect."""
    restart: list[str]
    """Settings that take effect with the next start."""
    closed: Count
    """Connections closed because their token is gone or allows less."""


def differences(old: Config, new: Config) -> ReloadedReply:
    """Which settings differ, by their paths."""
    paths = list(_differing(old, new))
    restart = [path for path in paths if path.startswith(RESTART)]
    return ReloadedReply([path for path in paths if path not in restart], restart, 0)


def _differing(old: Config, new: Config) -> Iterator[str]:
    for section in msgspec.structs.fields(Sections):
        before, after = getattr(old, section.name), getattr(new, section.name)
        if before == after:
            continue
        if not isinstance(before, msgspec.Struct):
            yield section.name
            continue
        for field in msgspec.structs.fields(before):
            if getattr(before, field.name) != getattr(after, field.name):
                yield f"{section.name}.{field.encode_name}"


def merged(old: Config, new: Config) -> Config:
    """The new config, with the old values of what needs a restart."""
    for path in RESTART:
        name, _, field = path.partition(".")
        part = getattr(old, name)
        if field:
            part = msgspec.structs.replace(getattr(new, name), **{field: getattr(part, field)})
        new = msgspec.structs.replace(new, **{name: part})
    return new


def admit(connection: Connection, tokens: TokenStore, *, was_open: bool, is_open: bool) -> Refusal | None:
    """Give a connection the rights that its token has now, or return why it has to close.

    `was_open` and `is_open` are `auth.allowAnonymous` before and after.
    """
    link = connection.link
    if getattr(connection.session, "token_needed", False) or link.principal is UNAUTHENTICATED:
        return None  # it has not shown a token yet, or its space has its own tokens
    principal = tokens.renewed(link.principal)
    if principal is not None and principal.anonymous and was_open and not is_open:
        is_here = connection.peer == UNIX_PEER or is_loopback(connection.peer)
        principal = principal if is_here else None
    if principal is None:
        return REVOKED
    if any(not principal.allows("subscribe", consumer.channel.name) for consumer in link.consumers):
        return SHRUNK
    if any(not principal.allows("read", name) for name in link.taps):
        return SHRUNK
    if not connection.adopt(principal):
        return SHRUNK
    if link.principal != principal:  # the same object while nothing changed, because results are cached by it
        link.principal = principal
    return None


class ConfigQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The query of `/v1/config`."""

    stream: str | None = None
    """The stream whose policy the answer has."""


class ConfigReply(msgspec.Struct):
    """The effective config: defaults, file and environment merged, secrets masked."""

    source: Annotated[str | None, msgspec.Meta(description="The config file; null without one")]
    config: dict[str, Any]
    policy: Annotated[
        dict[str, Any] | None,
        msgspec.Meta(description="The settings of the stream that was asked for, with the keys of `perStreamCaps`"),
    ]


def effective(config: Config, query: ConfigQuery) -> ConfigReply | Refusal:
    """The config, and the policy of a stream: its own settings where the config has a pattern for it, else the general ones."""
    policy = None
    if query.stream is not None:
        if (refusal := stream_problem(query.stream, config.limits.name_max)) is not None:
            return refusal
        found = msgspec.to_builtins(settings_for(config, query.stream))
        policy = {name: found[name] for name in StreamCaps.__struct_encode_fields__}
    return ConfigReply(str(config.source) if config.source else None, to_plain(config), policy)
