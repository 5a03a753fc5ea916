"""Joining and leaving a space: which token admits which id, takeovers, and what happens to the streams of a participant that left.

People and models read ids, so an id that looks like another one could speak in its place. The plain form of an ASCII id is trimmed and
case-folded. Any other id is also normalised (NFKC), loses its invisible characters, and has letters of one script. Glyphs that only
resemble each other within a script stay distinct: `worker-1` and `worker-l` are two ids.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from unicodedata import category, normalize
from unicodedata import name as character_name

import msgspec

from penstock.core.clock import Now
from penstock.core.fanout.frame_router import Member
from penstock.core.limits import Limits
from penstock.core.records import Entry
from penstock.dialects.mew import stream_requests, stream_writers
from penstock.dialects.mew.gateway_messages import GATEWAY, MewRefusal
from penstock.dialects.mew.machine import OPERATOR, SpaceMachine
from penstock.dialects.mew.participants import Participant
from penstock.dialects.mew.state import DOOR, OpenStream

FORMS_MAX = 16_384
"""Plain forms that are remembered: a join compares the ids of a whole space."""
_INVISIBLE = re.compile("[\u034f\u115f\u1160\u3164\uffa0\ufe00-\ufe0f\U000e0100-\U000e01ef]")
_EAST_ASIAN = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO", "IDEOGRAPHIC")
"""Scripts that one text mixes; they count as one."""


@lru_cache(FORMS_MAX)
def plain_form(id_: str) -> str:
    """The form that ids which look alike have in common."""
    if not id_.isascii():
        id_ = normalize("NFKC", normalize("NFKC", _INVISIBLE.sub("", id_)).casefold())
    return id_.strip().casefold()


def has_one_script(id_: str) -> bool:
    """Whether all letters of an id are of one script."""
    if id_.isascii():
        return True
    words = {character_name(each, "").partition(" ")[0] for each in normalize("NFKC", id_) if category(each)[0] == "L"}
    return len({"CJK" if word in _EAST_ASIAN else word for word in words}) <= 1


def lookalike(id_: str, others: Iterable[str]) -> str | None:
    """The first of other ids that looks like this one."""
    form = plain_form(id_)
    return next((other for other in others if other != id_ and plain_form(other) == form), None)


TAKEN_OVER = 4001
KICKED = 4003
SLOW = 4008
"""WebSocket close codes of the gateway."""
RESERVED_IDS = (GATEWAY, "system")
_encode = msgspec.json.encode


def is_id(text: str, limits: Limits) -> bool:
    """Whether a text is a valid participant id."""
    if len(text) > limits.id_max or not text.isprintable():
        return False
    form = plain_form(text)
    return form not in RESERVED_IDS and not form.startswith("system:")


def mistakable(space: SpaceMachine, id_: str) -> MewRefusal | None:
    """Why an id that the space does not know could be taken for another one."""
    if not has_one_script(id_):
        message = f"`{id_[:60]}` mixes letters of several scripts; use one"
    elif (other := lookalike(id_, space.ids())) is not None:
        message = f"`{id_[:60]}` looks like `{other[:60]}`, which is another id of the space; choose a different one"
    else:
        return None
    return MewRefusal("invalid_participant", message, status=403)


def identify(
    space: SpaceMachine, id_: str | None, digest: str | None, *, is_operator: bool
) -> tuple[str, str] | MewRefusal:
    """The id and the party of a token and a requested id; the party is the name that the space knows."""
    party = OPERATOR if is_operator else None if digest is None else space.party_of(digest)
    if party is None:
        message = "there is no token" if digest is None else "the token is not valid here"
        return MewRefusal("unauthorized", f"{message}; ask who runs the space for yours", status=401)
    if party in space.state.kicked:
        return put_out(space, party)
    id_ = id_ or party
    if not is_id(id_, space.limits):
        return MewRefusal("invalid_participant", f"`{id_[:60]}` cannot be the id of a participant")
    if id_ != party:
        if space.is_taken(id_):
            return MewRefusal("invalid_participant", f"the token is not that of `{id_}`", status=403)
        if space.holder(id_) not in (None, party):
            return MewRefusal("invalid_participant", f"`{id_}` is another participant", status=403)
        if (fault := mistakable(space, id_)) is not None:
            return fault
    return id_, party


def put_out(space: SpaceMachine, party: str) -> MewRefusal:
    """The refusal for a participant that was kicked."""
    why = space.state.kicked[party]
    return MewRefusal("kicked", f"`{party}` was kicked from the space" + (f": {why}" if why else ""), status=403)


def still_welcome(space: SpaceMachine, participant: Participant) -> MewRefusal | None:
    """Why a participant that was admitted earlier would now be rejected."""
    if participant.party in space.state.kicked:
        return put_out(space, participant.party)
    id_, party = participant.id, participant.party
    there = space.present.get(id_)
    is_other = id_ != party and (space.is_known(id_) or space.holder(id_) not in (None, party))
    if is_other or (there is not None and there.party != party):
        return MewRefusal("invalid_participant", f"`{id_}` is another participant", status=403)
    return None if id_ == party else mistakable(space, id_)


def enter(space: SpaceMachine, now: Now, participant: Participant) -> MewRefusal | None:
    """A participant joins: it gets the welcome, the others its presence. A connection that had the id is closed."""
    before = space.present.get(participant.id)
    if before is None and len(space.present) >= space.limits.participants_max:
        return MewRefusal(
            "space_full",
            f"{len(space.present)} participants are here and `limits.participants_max` allows no more",
            status=429,
        )
    space.present[participant.id] = participant
    space.router.enter(Member(participant.id, participant.party, participant.outbox))
    if before is not None:
        fault = MewRefusal("taken_over", f"`{participant.id}` has joined again from elsewhere", status=409)
        space.evicted.append((before, TAKEN_OVER, fault))
    for stream in space.state.streams.values():
        if stream.route.owner == participant.id:
            stream.ticket = 0  # cancels the timer: the owner is back
    meta = _encode({"as": participant.party, "transport": participant.kind}).decode()
    space.commit_log.observe_entry(Entry(DOOR, "join", space.id, peer=participant.id, meta=meta))
    space.welcome(now, participant)
    data = space.messages.presence(now, "join", space.shown(participant))
    space.broadcast(now, data, "", but=participant.id)
    stream_requests.open_configured(space, now, participant.id)
    return None


def leave(space: SpaceMachine, now: Now, participant: Participant, reason: str) -> None:
    """A participant leaves, unless another connection has taken over its id."""
    id_ = participant.id
    if space.present.get(id_) is not participant:
        return
    del space.present[id_]
    space.router.leave(id_)
    writable = [stream for stream in space.state.streams.values() if id_ in stream.route.writers]
    for stream in space.state.streams.values():
        route = stream.route
        if route.owner == id_:
            space.timers.arm(now.us + space.limits.owner_grace_ms * 1000, stream)
        if id_ in route.targets or participant.party in route.targets:
            _notify_owner(space, now, stream, participant)
    for stream in writable:
        # A restart keeps the writers, planned or not: they come back under the same ids.
        if stream.route.owner != id_ and not space.commit_log.draining:
            stream_writers.revoke_disconnected(space, stream, id_)
    space.commit_log.observe_entry(Entry(DOOR, "leave", space.id, peer=id_, reason=reason))
    space.after(now, lambda now: space.in_turn(now, lambda now: _announce_leave(space, now, id_)))


def _announce_leave(space: SpaceMachine, now: Now, id_: str) -> None:
    if id_ not in space.present:  # it may be back before its turn came
        space.broadcast(now, space.messages.presence(now, "leave", {"id": id_}), "")


def _notify_owner(space: SpaceMachine, now: Now, stream: OpenStream, gone: Participant) -> None:
    """Notify the owner of a stream that a target left; the stream stays open."""
    owner = space.present.get(stream.route.owner)
    names = [name for name in (gone.id, gone.party) if name in stream.route.targets]
    names = [name for name in dict.fromkeys(names) if not space.router.is_there(name)]
    if owner is None or not names:
        return
    fault = MewRefusal(
        "target_disconnected",
        "a target of the stream is gone; its frames go to the others, and to it again when it returns",
        {"stream_id": stream.id, "targets": names},
        cause=stream.request_id,
    )
    data = space.messages.error(now, fault, owner.id)
    space.after(now, lambda now: space.send(now, owner, data))


def begin(space: SpaceMachine, now: Now) -> None:
    """Start a space: pipeline participants join, and streams wait for their owners."""
    for stream in list(space.state.streams.values()):
        if stream.name is not None and not stream_requests.is_as_configured(space, stream):
            stream_requests.close(space, now, None, stream, GATEWAY, stream_requests.RECONFIGURED)
    for name, settings in space.settings.participants.items():
        if settings.is_pipeline:
            enter(space, now, Participant(name, name, None, "pipeline"))
    for stream in space.state.streams.values():
        if stream.route.owner not in space.present:
            space.timers.arm(now.us + space.limits.owner_grace_ms * 1000, stream)


def wake(space: SpaceMachine, now: Now) -> None:
    """Close streams whose owners did not return in time, and retry what the journal refused."""
    while (stream := space.timers.pop_due(now.us)) is not None:
        stream.ticket = 0
        if space.state.streams.get(stream.id) is not stream:
            stream_requests.open_configured(space, now, stream.route.owner)
        elif stream_requests.is_leaving(space, stream):
            continue
        elif stream.name is not None and not stream_requests.is_as_configured(space, stream):
            stream_requests.close(space, now, None, stream, GATEWAY, stream_requests.RECONFIGURED)
        elif stream.route.owner not in space.present:
            stream_requests.close(space, now, None, stream, GATEWAY, "owner_disconnected")
