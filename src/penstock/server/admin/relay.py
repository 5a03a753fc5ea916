"""`/v1/relay/topics`: figures of token streams by the hashes of their topics, never by name."""
# size: one route; the others of this folder concern other parts

from __future__ import annotations

from heapq import nlargest
from typing import Annotated, Any

import msgspec

from penstock.server.admin.journal import Count
from penstock.server.relay.supervisor import RelaySupervisor

TOPICS_MAX = 500
"""Topics of one answer; `more` counts the rest."""


class RelayTopic(msgspec.Struct):
    """Figures of one topic."""

    topic: Annotated[str, msgspec.Meta(description="The hash of its name")]
    messages: Count
    bytes: Count
    subscribers: Count
    waiting: Count
    held: Count


class RelayTopicsReply(msgspec.Struct):
    """The busiest topics, and the sums of all."""

    running: bool
    topics: list[RelayTopic]
    more: Count
    totals: dict[str, Count]


def list_topics(relay: RelaySupervisor | None) -> RelayTopicsReply:
    """Topics, those with most messages first, and the sums of all."""
    if relay is None:
        return RelayTopicsReply(running=False, topics=[], more=0, totals={})
    busiest = nlargest(TOPICS_MAX, relay.topics.items(), key=lambda item: item[1].messages)
    figures = relay.figures
    totals: dict[str, Any] = {}
    if figures is not None:
        totals = {**msgspec.structs.asdict(figures.totals), "topics": figures.topics, "held_bytes": figures.bytes}
    return RelayTopicsReply(
        running=relay.is_up,
        topics=[RelayTopic(topic, **msgspec.structs.asdict(each)) for topic, each in busiest],
        more=len(relay.topics) - len(busiest),
        totals=totals,
    )
