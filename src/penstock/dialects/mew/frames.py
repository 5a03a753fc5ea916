"""Frames of streams on their slow path, and the rows that the journal keeps of them.

The fast path is `MewSession.publish`, which hands a frame to the router at once. A frame comes here when its sender has an envelope that
waits for its commit, so that the two stay in order, or when the router refuses it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from penstock.core.clock import Now
from penstock.core.fanout.frame_router import FrameRoute
from penstock.core.fanout.outbox import Outbox
from penstock.core.records import Entry
from penstock.dialects.mew.gateway_messages import GATEWAY, MewRefusal
from penstock.dialects.mew.participants import Participant, weight
from penstock.dialects.mew.state import DOOR

if TYPE_CHECKING:  # the machine journals its frames through this module
    from penstock.dialects.mew.machine import SpaceMachine

_encode = msgspec.json.encode


def publish(space: SpaceMachine, now: Now, sender: Participant, data: bytes, end: int) -> None:
    """Forward a frame, after what its sender waits for; `end` is where the stream id in it ends."""

    def forward(now: Now) -> None:
        if space.present.get(sender.id) is sender and space.router.publish(sender.id, data, end):
            return
        stream_id = data[1:end][:200].decode(errors="replace")
        route = space.router.routes.get(data[1:end])
        why = "there is no such stream" if route is None else "you are not among its writers"
        message = f"not written to stream `{stream_id}`: {why}"
        more = {"stream_id": stream_id}
        space.fail_now(now, sender, MewRefusal("unauthorized_stream_write", message, more, status=403, sender=GATEWAY))

    space.then(now, sender, forward, weight(data))


def journal_frame(space: SpaceMachine, route: FrameRoute, writer: str, data: bytes, no: int, reach: int) -> None:
    """Write a frame to the journal. An observation: the frame does not wait for it."""
    entry = Entry(
        DOOR,
        "frame",
        f"{space.id}/{route.id}",
        no,
        sender=writer,
        size=len(data),
        recipients=reach,
        meta=_meta(route, {"participants": len(space.router.members)}),
        body=data,
    )
    space.commit_log.observe_entry(entry)


def remove_target(space: SpaceMachine, now: Now, route: FrameRoute, outbox: Outbox, why: str) -> str | None:
    """Remove a target that takes no frames from a stream whose writers wait for it; returns its id. The owner is notified."""
    member = next((each for each in space.router.members.values() if each.outbox is outbox), None)
    if member is None:
        return None
    more = {"stream_id": route.id, "targets": [member.name], "frames": space.router.remove(route, member)}
    space.targets_removed += 1
    message = f"`{member.name}` {why}, and receives no more frames of the stream"
    for id_ in dict.fromkeys((route.owner, member.name)):
        _notify(space, now, id_, MewRefusal("target_removed", message, more, sender=GATEWAY))
    return member.name


def _notify(space: SpaceMachine, now: Now, id_: str, fault: MewRefusal) -> None:
    """Send a notice about a stream to a participant, if it is present."""
    there = space.present.get(id_)
    if there is not None:
        space.send(now, there, space.messages.error(now, fault, id_))


def journal_counts(space: SpaceMachine, now: Now) -> None:
    """Write what streams did since the last call, for those of which the journal keeps counts. Owners are notified of drops."""
    for tally in space.router.take_tallies():
        route = tally.route
        if tally.dropped and route.sheds:
            message = "frames were dropped for targets that read too slowly; `overflow: wait` drops none"
            more = {"stream_id": route.id, "frames": tally.dropped}
            _notify(space, now, route.owner, MewRefusal("frames_not_delivered", message, more, sender=GATEWAY))
        if route.keep != "counts":
            continue
        counts = {
            "frames": tally.frames,
            "bytes": tally.bytes,
            "deliveries": tally.deliveries,
            "participants": len(space.router.members),
            "broadcast": tally.broadcast,
            "dropped": tally.dropped,
        }
        entry = Entry(
            DOOR,
            "frame_counts",
            f"{space.id}/{route.id}",
            route.seq,
            sender=route.owner,
            size=min(tally.bytes, 2**31 - 1),
            recipients=min(tally.deliveries, 2**31 - 1),
            meta=_meta(route, counts),
        )
        space.commit_log.observe_entry(entry)


def _meta(route: FrameRoute, facts: dict[str, Any]) -> str:
    if route.targets:
        facts["target"] = route.targets
    return _encode(facts).decode()
