"""`/v1/spaces`: list spaces, and send, invite and kick as their operator.

An envelope of the operator takes the same path as all others: checked, written to the journal, delivered, answered when
durable. The operator sends without joining, so participants see no join and leave for one message. If it has joined, the
message keeps its order behind what it sent before.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec

from penstock.core.clock import Now
from penstock.core.errors import Refusal
from penstock.core.scopes import Principal
from penstock.dialects.mew import accept
from penstock.dialects.mew.envelopes import read_envelope, read_object
from penstock.dialects.mew.gateway_messages import MewRefusal
from penstock.dialects.mew.machine import OPERATOR, SpaceMachine
from penstock.dialects.mew.participants import Answer, Participant
from penstock.server.logging import logs
from penstock.server.spaces.host import Spaces

_CODES = {
    "participant_not_found": "UnknownParticipant",
    "too_large": "TooLarge",
    "draining": "Draining",
    "journal_unavailable": "JournalUnavailable",
}
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
    """A space. Documentation: `Spaces.describe` builds the rows."""

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
    found = [each for each in spaces.describe() if query.space in (None, each["id"])]
    if query.space is not None and not found:
        return _unknown(query.space)
    return {"spaces": found}


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
    now = spaces.runtime.scheduler.now()
    fields = read_object(data, spaces.limits)
    if isinstance(fields, MewRefusal):
        return _refusal(fields)
    envelope = read_envelope(fields, spaces.limits, now, fresh_id=spaces.messages.fresh(OPERATOR), strict=True)
    if isinstance(envelope, MewRefusal):
        return _refusal(envelope)
    future: asyncio.Future[Answer | MewRefusal] = asyncio.get_running_loop().create_future()

    def done(now: Now, outcome: Answer | MewRefusal) -> None:
        if not future.done():
            future.set_result(outcome)

    accept.accept(space, now, _operator(space), envelope, "http", done)
    spaces.schedule_turn()
    outcome = await future
    if isinstance(outcome, MewRefusal):
        return _refusal(outcome)
    if outcome.get("status") == "already_exists":
        hint = "choose another name; a participant that was kicked may be invited again"
        return Refusal("IdConflict", outcome["message"], hint=hint)
    logs.event("space.operated", space=space.id, kind=envelope.kind, id=envelope.id, by=by.name)
    return {"id": envelope.id, **outcome}


def _operator(space: SpaceMachine) -> Participant:
    return space.present.get(OPERATOR) or Participant(OPERATOR, OPERATOR, None, "http")


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
