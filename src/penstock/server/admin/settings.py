"""`GET /v1/config`: the settings that count now, and what they mean for one stream."""
# size: one route; the others of this folder concern other parts

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from penstock.core.errors import Refusal
from penstock.core.names import stream_problem
from penstock.server.config.load import Config, settings_for
from penstock.server.config.reference import to_plain
from penstock.server.config.sections import StreamCaps


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
