"""Placement: which shard of a cluster holds a stream, a space or a topic.

A shard is `crc32c(key) mod shards`, so every node and every SDK computes it alike. Names that share promises share a key: a tenant's
streams, the inboxes of an agent, a stream and its dead letters, names with the same `{tag}`. `docs/reference/placement.md` has the
rules and fixed vectors for other implementations. Nothing here may ever change: it would move records that are stored.
"""
# size: one rule, which every client shares

from __future__ import annotations

from hashlib import sha256

import google_crc32c

from penstock.core.tenants import DEAD_PREFIX, split

SHARDS = 16
"""Shards of a cluster, fixed when it is created: more than the nodes or processes that most clusters ever have."""
AGENTS = "agents/"


def stream_key(name: str) -> str:
    """What places a stream."""
    tenant, home = split(name)
    if tenant:
        return tenant
    while home.startswith(DEAD_PREFIX):
        home = home.removeprefix(DEAD_PREFIX)
    if tag := tag_of(home):
        return tag
    if home.startswith(AGENTS):
        agent, _, _ = home.removeprefix(AGENTS).partition("/")
        return AGENTS + agent
    return home


def tag_of(name: str) -> str:
    """The text in the first braces of a name; empty if there is none."""
    _, _, rest = name.partition("{")
    tag, closed, _ = rest.partition("}")
    return tag if closed else ""


def space_key(space: str) -> str:
    """What places a space."""
    return f"space/{space}"


def topic_key(topic: bytes) -> str:
    """What places a topic of the relay. A topic is a secret, so only a few digits of its hash leave the client."""
    return f"relay/{sha256(topic).hexdigest()[:8]}"


def shard_of(key: str, shards: int = SHARDS) -> int:
    """The shard of a key."""
    return int(google_crc32c.value(key.encode())) % shards
