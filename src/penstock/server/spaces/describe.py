"""A space as `GET /v1/spaces` and the console show it: participants, streams with their counts, invitations."""
# size: one answer, apart from the host that runs the spaces.

from __future__ import annotations

from typing import Any

from penstock.dialects.mew.machine import SpaceMachine


def describe_space(space: SpaceMachine) -> dict[str, Any]:
    """Everything that an operator sees of a space."""
    return {
        "id": space.id,
        "name": space.settings.name,
        "participants": [
            {
                "id": each.id,
                "as": each.party,
                "connected": True,
                "type": each.kind,
                "capabilities": space.rights(each.party).all,
            }
            for each in space.present.values()
        ]
        + [
            {"id": name, "as": name, "connected": False, "type": None, "capabilities": space.rights(name).all}
            for name in dict.fromkeys((*space.settings.participants, *space.state.invited))
            if not any(each.party == name for each in space.present.values())
        ],
        "streams": [
            {
                **stream.shown(),
                "name": stream.name,
                "keep": stream.route.keep,
                "overflow": stream.overflow,
                "receivers": [each.name for each in space.router.receivers(stream.route)],
                "frames": stream.route.frames,
                "bytes": stream.route.bytes,
                "deliveries": stream.route.deliveries,
                "broadcast": stream.route.broadcast,
                "dropped": stream.route.dropped,
            }
            for stream in space.state.streams.values()
        ],
        "invited": list(space.state.invited),
        "kicked": list(space.state.kicked),
        "counts": {
            "envelopes": space.envelopes,
            "refused": space.refused,
            **space.router.counts(),
            "slow_cut": space.slow_cut,
        },
    }
