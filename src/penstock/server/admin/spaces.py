"""`/v1/spaces`: list spaces, and send, invite and kick as their operator.

An envelope of the operator takes the same path as all others: checked, written to the journal, delivered, answered when
durable. The operator sends without joining, so participants see no join and leave for one message. If it has joined, the
message keeps its order behind what it sent before.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from penstock.core.errors import Refusal
from penstock.core.scopes import Principal
from penstock.dialects.mew.envelopes import read_envelope
from penstock.dialects.mew.gateway_messages import MewRefusal
from penstock.dialects.mew.machine import OPERATOR, SpaceMachine
from penstock.dialects.mew.participants import Participant
from penstock.server.logging import logs
from penstock.server.spaces.host import Spaces

_CODES = {
    "participant_not_found": "UnknownParticipant",
    "too_large": "TooLarge",
    "draining": "Draining",
    "journal_unavailable": "JournalUnavailable",
}
_ROUTE_FIGURES = ("keep", "overflow", "frames", "bytes", "deliveries", "broadcast", "dropped")
_CODES_BY_STATUS = {403: "Forbidden", 404: "UnknownStream", 409: "IdConflict", 429: "QuotaExceeded"}
_encode = msgspec.json.encode


class SpacesQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The query of `/v1/spaces`."""

    space: str | None = None
    """Only this one."""


class SpaceMessage(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The body of `/v1/spaces/{space}/messages`: an envelope without the fields that the server fills."""

    kind: Annotated[str, msgspec.Meta(min_length=1)]
    payload: msgspec.Raw
    to: list[str] = []
    correlation_id: list[str] = []


class InviteRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `/v1/spaces/{space}/invite`."""

    participant: Annotated[str, msgspec.Meta(min_length=1)]
    capabilities: list[str | dict[str, Any]] = []
    """Kinds that it may send, or whole capabilities."""
    reason: str | None = None


class KickRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `/v1/spaces/{space}/kick`."""

    participant: Annotated[str, msgspec.Meta(min_length=1)]
    reason: str | None = None


class SpaceRow(msgspec.Struct):
    """A space. Documentation: `describe_space` builds the rows."""

    id: str
    name: str
    participants: list[dict[str, Any]]
    streams: list[dict[str, Any]]
    invited: list[str]
    kicked: list[str]
    counts: dict[str, Any]


class SpacesReply(msgspec.Struct):
    """The spaces: participants, open streams, counts."""

    spaces: list[SpaceRow]


class SpaceSentReply(msgspec.Struct, rename={"sender": "from"}):
    """An envelope that the space accepted. Documentation: the answer has what the space says of it too."""

    id: str
    status: str
    sender: str


class InvitedReply(msgspec.Struct):
    """A new participant; no later answer has its token."""

    participant: str
    token: str
    url: str


class KickedReply(msgspec.Struct):
    """A participant that was removed."""

    participant: str


def list_spaces(spaces: Spaces, query: SpacesQuery) -> dict[str, Any] | Refusal:
    """Every space, or the one that the query names."""
    found = [describe_space(space) for id_, space in spaces.spaces.items() if query.space in (None, id_)]
    if query.space is not None and not found:
        return _unknown(query.space)
    return {"spaces": found}


def describe_space(space: SpaceMachine) -> dict[str, Any]:
    """Everything that an operator sees of a space."""
    present = space.present.values()
    here = [(each.id, each.party, each.kind) for each in present]
    parties = {party for _, party, _ in here}
    known = dict.fromkeys((*space.settings.participants, *space.state.invited))
    absent = [(name, name, None) for name in known if name not in parties]
    return {
        "id": space.id,
        "name": space.settings.name,
        "participants": [
            {
                "id": id_,
                "as": party,
                "connected": kind is not None,
                "type": kind,
                "capabilities": space.rights(party).all,
            }
            for id_, party, kind in (*here, *absent)
        ],
        "streams": [
            {
                **stream.shown(),
                "name": stream.name,
                **{name: getattr(stream.route, name) for name in _ROUTE_FIGURES},
                "receivers": [each.name for each in space.router.receivers(stream.route)],
                "behind": [each.id for each in present if each.outbox in stream.route.full],
            }
            for stream in space.state.streams.values()
        ],
        "invited": list(space.state.invited),
        "kicked": list(space.state.kicked),
        "counts": space.counts(),
    }


async def send(spaces: Spaces, by: Principal, name: str, body: SpaceMessage) -> dict[str, Any] | Refusal:
    """Send an envelope into a space."""
    outcome = await _accept(spaces, by, name, _encode(body))
    return outcome if isinstance(outcome, Refusal) else {**outcome, "from": OPERATOR}


async def invite(spaces: Spaces, by: Principal, name: str, body: InviteRequest) -> InvitedReply | Refusal:
    """Add a participant to a space."""
    capabilities = [{"kind": each} if isinstance(each, str) else each for each in body.capabilities]
    if not all(isinstance(each.get("kind"), str) and each["kind"] for each in capabilities):
        hint = """for example `"chat"`, or `{"kind": "mcp/request", "payload": {"method": "tools/*"}}`"""
        return Refusal("InvalidRequest", "a capability needs a `kind`", hint=hint)
    payload = {"participant_id": body.participant, "initial_capabilities": capabilities}
    envelope = {"kind": "space/invite", "payload": payload | _reason(body.reason)}
    outcome = await _accept(spaces, by, name, _encode(envelope))
    if isinstance(outcome, Refusal):
        return outcome
    return InvitedReply(body.participant, outcome["token"], outcome["connection_url"])


async def kick(spaces: Spaces, by: Principal, name: str, body: KickRequest) -> KickedReply | Refusal:
    """Remove a participant from a space."""
    payload = {"participant_id": body.participant, **_reason(body.reason)}
    outcome = await _accept(spaces, by, name, _encode({"kind": "space/kick", "payload": payload}))
    return outcome if isinstance(outcome, Refusal) else KickedReply(body.participant)


async def _accept(spaces: Spaces, by: Principal, name: str, data: bytes) -> dict[str, Any] | Refusal:
    """Send an envelope as the operator, and wait until it is durable."""
    space = spaces.spaces.get(name)
    if space is None:
        return _unknown(name)
    fields = await spaces.read(data)
    now = spaces.runtime.scheduler.now()
    if isinstance(fields, MewRefusal):
        return _refusal(fields)
    envelope = read_envelope(fields, spaces.limits, now, fresh_id=spaces.messages.fresh(OPERATOR), strict=True)
    if isinstance(envelope, MewRefusal):
        return _refusal(envelope)
    sender = space.present.get(OPERATOR) or Participant(OPERATOR, OPERATOR, None, "http")
    outcome = await spaces.accept(now, space, sender, envelope)
    if isinstance(outcome, MewRefusal):
        return _refusal(outcome)
    if outcome.get("status") == "already_exists":
        hint = "choose another name; a participant that was kicked may be invited again"
        return Refusal("IdConflict", outcome["message"], hint=hint)
    logs.event("space.operated", space=space.id, kind=envelope.kind, id=envelope.id, by=by.name)
    return {"id": envelope.id, **outcome}


def _reason(text: str | None) -> dict[str, str]:
    return {} if text is None else {"reason": text}


def _unknown(name: str) -> Refusal:
    hint = "`penstock space ls` lists them; the config section `spaces` adds some"
    return Refusal("UnknownStream", f"there is no space `{name[:60]}`", ref="space", hint=hint)


def _refusal(fault: MewRefusal) -> Refusal:
    """A fault of MEW as a refusal of the HTTP API."""
    code = _CODES.get(fault.error) or _CODES_BY_STATUS.get(fault.status, "InvalidRequest")
    hint = None if code != "InvalidRequest" else "see docs/reference/mew.md for what each kind needs"
    return Refusal(code, fault.message or fault.error, hint=hint)
