"""Who may write to a stream, and who owns it: `stream/grant-write`, `stream/revoke-write`, `stream/transfer-ownership`.

Only the owner may change either. The request itself is not passed on: all participants get the acknowledgement once it is durable.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.core.clock import Now
from penstock.dialects.mew.envelopes import Envelope
from penstock.dialects.mew.gateway_messages import GATEWAY, MewRefusal
from penstock.dialects.mew.machine import SpaceMachine
from penstock.dialects.mew.participants import Answer, Done, Fault, Participant
from penstock.dialects.mew.state import OpenStream, stream_entry
from penstock.dialects.mew.stream_requests import check_owner_later, is_leaving, unauthorized

_encode = msgspec.json.encode


class _Verb(msgspec.Struct, frozen=True):
    """One of the three requests."""

    phrase: str
    """What a refusal says that only the owner may do."""
    field: str
    """The member of the payload that names the other participant."""
    event: str
    status: str
    acknowledgement: str


_VERBS = {
    "stream/grant-write": _Verb("let others write to", "participant_id", "grant", "granted", "stream/write-granted"),
    "stream/revoke-write": _Verb(
        "take back who writes to", "participant_id", "revoke", "revoked", "stream/write-revoked"
    ),
    "stream/transfer-ownership": _Verb(
        "give away", "new_owner", "grant", "transferred", "stream/ownership-transferred"
    ),
}
KINDS = tuple(_VERBS)
ACKNOWLEDGEMENTS = tuple(verb.acknowledgement for verb in _VERBS.values())


def change(space: SpaceMachine, now: Now, sender: Participant, envelope: Envelope, done: Done | None) -> Fault:
    """Grant or revoke the right to write, or transfer the stream with its targets."""
    verb = _VERBS[envelope.kind]
    stream = _owned(space, sender, envelope, verb.phrase)
    if isinstance(stream, MewRefusal):
        return stream
    other = _participant(space, envelope, verb.field, stream if verb.event == "revoke" else None)
    if isinstance(other, MewRefusal):
        return other
    owner = stream.route.owner
    meta: dict[str, Any] = {"grant": "write"}
    named = {"participant_id": other}
    if verb.status == "transferred":
        meta = {"grant": "ownership", "previous": owner}
        named = {"previous_owner": owner, "new_owner": other}
    elif verb.event == "revoke" and other == owner:
        message = "the owner of a stream always writes to it; transfer or close it instead"
        return MewRefusal("invalid_operation", message, {"stream_id": stream.id}, sender=GATEWAY, whole=True)
    reason = envelope.text("reason")
    if verb.event == "grant" and (alias := space.aliases((other,))):
        meta["as"] = alias[other]
    about = {"id": envelope.id, "kind": envelope.kind, "corr": envelope.corr, "reason": reason}
    about |= {"sender": owner, "peer": other, "meta": _encode(meta).decode()}
    entry = stream_entry(space.id, stream, verb.event, **about, fresh=verb.event == "grant")

    def announce(now: Now) -> Answer:
        writers = list(stream.route.writers)
        payload: dict[str, Any] = {"stream_id": stream.id, **named, "authorized_writers": writers}
        said = payload if reason is None else payload | {"reason": reason}
        space.say(now, verb.acknowledgement, said, to=list(space.present), cause=[envelope.id])
        _check_presence(space, now, stream, named)
        extra = {name: each for name, each in named.items() if name != "participant_id"}
        return {"status": verb.status, "stream_id": stream.id, "authorized_writers": writers, **extra}

    def failed(now: Now) -> None:
        if stream.route.owner not in space.present:  # the owner may have left during the commit
            check_owner_later(space, now, stream)

    space.commit(sender, [entry], announce, done, cause=envelope.cause, failed=failed)
    return None


def _owned(space: SpaceMachine, sender: Participant, envelope: Envelope, phrase: str) -> OpenStream | MewRefusal:
    """The stream that a request names, if the sender owns it."""
    id_ = envelope.text("stream_id")
    if id_ is None:
        return MewRefusal("invalid_request", "`payload.stream_id` is required", sender=GATEWAY)
    stream = space.state.streams.get(id_)
    if stream is None:
        message = f"there is no stream `{id_[:200]}`"
        return MewRefusal("stream_not_found", message, {"stream_id": id_[:200]}, status=404, sender=GATEWAY, whole=True)
    if stream.route.owner != sender.id or is_leaving(space, stream):
        return unauthorized(space, stream, phrase)
    return stream


def _participant(space: SpaceMachine, envelope: Envelope, name: str, among: OpenStream | None) -> str | MewRefusal:
    """The participant that a request names: one who is present, or a writer of the stream `among`."""
    who = envelope.text(name)
    if who is None:
        return MewRefusal("invalid_request", f"`payload.{name}` is required", sender=GATEWAY)
    if who in space.present or (among is not None and who in among.route.writers):
        return who
    for each in space.present.values():
        if each.party == who:
            return each.id
    message = f"`{who[:200]}` is not in the space"
    more = {"participant_id": who[:200]}
    return MewRefusal("participant_not_found", message, more, status=404, sender=GATEWAY, whole=True)


def _check_presence(space: SpaceMachine, now: Now, stream: OpenStream, named: dict[str, str]) -> None:
    """A participant that left during the commit is treated like one that leaves later."""
    if named.get("new_owner", stream.route.owner) not in space.present:
        check_owner_later(space, now, stream)
    writer = named.get("participant_id", stream.route.owner)
    if writer in stream.route.writers and writer != stream.route.owner and writer not in space.present:
        revoke_disconnected(space, stream, writer)


def revoke_disconnected(space: SpaceMachine, stream: OpenStream, writer: str) -> None:
    """The gateway takes the right to write from a participant that left."""
    reason, meta = "disconnected", _encode({"grant": "write"}).decode()
    about = {"kind": "stream/revoke-write", "sender": GATEWAY, "peer": writer, "reason": reason, "meta": meta}
    entry = stream_entry(space.id, stream, "revoke", **about, fresh=False)

    def announce(now: Now) -> None:
        if space.state.streams.get(stream.id) is not stream:  # closed during the commit
            return
        writers = list(stream.route.writers)
        payload = {"stream_id": stream.id, "participant_id": writer, "authorized_writers": writers, "reason": reason}
        space.say(now, "stream/write-revoked", payload, to=list(space.present))

    space.commit(None, [entry], announce)
