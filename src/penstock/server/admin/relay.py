"""What the person who runs the server may see of token streams: figures by the hashes of their topics, never the names."""

from __future__ import annotations

from heapq import nlargest
from typing import Any

import msgspec

from penstock.server.http.admin_routes import Ask
from penstock.server.relay.supervisor import RelaySupervisor

TOPICS_MAX = 500
"""Topics of one answer; the rest is counted."""


def topics_shown(relay: RelaySupervisor | None, ask: Ask) -> dict[str, Any]:
    """Topics, those with most messages first, and the sums of all."""
    if relay is None:
        return {"running": False, "topics": [], "more": 0, "totals": {}}
    busiest = nlargest(TOPICS_MAX, relay.topics.items(), key=lambda item: item[1].messages)
    figures = relay.figures
    totals: dict[str, Any] = {}
    if figures is not None:
        totals = {
            **msgspec.structs.asdict(figures.totals),
            "topics": figures.topics,
            "held_bytes": figures.bytes,
        }
    return {
        "running": relay.is_up,
        "topics": [{"topic": topic, **msgspec.structs.asdict(each)} for topic, each in busiest],
        "more": len(relay.topics) - len(busiest),
        "totals": totals,
    }
