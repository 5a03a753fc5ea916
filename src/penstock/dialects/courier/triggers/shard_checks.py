"""Whether the streams of a trigger are on one shard: a cell sends to no other one."""
# size: one rule, for the config and for requests.

from __future__ import annotations

import re

from msgspec import UNSET

from penstock.core.errors import Refusal
from penstock.core.placement import shard_of, stream_key, tag_of
from penstock.core.tenants import split
from penstock.dialects.courier.triggers.config import EnrichAction, Trigger

_PLACEHOLDER = re.compile(r"\$\{[^{}]*\}")


def fixed_key(pattern: str) -> str | None:
    """What places every stream that a pattern or template can name; None if they may be anywhere."""
    name = _PLACEHOLDER.sub("*", pattern)
    known, star, _ = name.partition("*")
    if not star:
        return stream_key(name)
    tenant, home = split(known)
    if tenant:
        return tenant
    return tag_of(home) or None


def cross_shard_refusal(trigger: Trigger) -> Refusal | None:
    """Why a trigger could send to another shard."""
    targets = [action.to for action in trigger.do if not isinstance(action, EnrichAction)]
    if not targets:
        return None
    to = trigger.when.to
    sources = ["*"] if to is UNSET else [to] if isinstance(to, str) else [*to]
    keys = {name: fixed_key(name) for name in (*sources, *targets)}
    shards = {None if key is None else shard_of(key) for key in keys.values()}
    if len(shards) == 1 and None not in shards:
        return None
    names = ", ".join(f"`{name}`" for name in keys)
    return Refusal("CrossShard", f"trigger `{trigger.id}` joins streams that may be on different shards: {names}")
