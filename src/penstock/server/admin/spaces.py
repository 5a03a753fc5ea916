"""What the person who runs the server may ask and do about its spaces.

What it sends goes through the same machine as everybody's envelopes: checked, written down, told to everybody, answered when
durable. It speaks as `operator` and is not present, so nobody sees somebody join and leave for the sake of one message; when
it is there under that id already, its message keeps its place behind what it sent before.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from penstock.core.clock import Now
from penstock.core.errors import Refusal
from penstock.dialects.mew import accept
from penstock.dialects.mew.envelopes import read_envelope, read_object
from penstock.dialects.mew.gateway_messages import MewRefusal
from penstock.dialects.mew.machine import OPERATOR, SpaceMachine
from penstock.dialects.mew.participants import Answer, Participant
from penstock.server.http.admin_routes import Ask, Desk
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


def serve(desk: Desk, spaces: Spaces) -> None:
    """Have the desk answer these."""
    desk.add("spaces", lambda ask: spaces_shown(spaces, ask))
    desk.add("space_send", lambda ask: send(spaces, ask))
    desk.add("space_invite", lambda ask: invite(spaces, ask))
    desk.add("space_kick", lambda ask: kick(spaces, ask))


def spaces_shown(spaces: Spaces, ask: Ask) -> dict[str, Any] | Refusal:
    """Every space, or the one that is asked for."""
    wanted = ask.query.space
    found = [each for each in spaces.describe() if wanted in (None, each["id"])]
    if wanted is not None and not found:
        return _unknown(wanted)
    return {"spaces": found}


async def send(spaces: Spaces, ask: Ask) -> dict[str, Any] | Refusal:
    """Say something in a space."""
    outcome = await _say(spaces, ask, _encode(ask.body))
    return outcome if isinstance(outcome, Refusal) else {**outcome, "from": OPERATOR}


async def invite(spaces: Spaces, ask: Ask) -> dict[str, Any] | Refusal:
    """Let somebody into a space; the answer has the token, this once."""
    body = ask.body
    capabilities = [{"kind": each} if isinstance(each, str) else each for each in body.capabilities]
    if not all(isinstance(each.get("kind"), str) and each["kind"] for each in capabilities):
        hint = """for example `"chat"`, or `{"kind": "mcp/request", "payload": {"method": "tools/*"}}`"""
        return Refusal("InvalidRequest", "a capability needs a `kind`", hint=hint)
    payload = {"participant_id": body.participant, "initial_capabilities": capabilities}
    envelope = {"kind": "space/invite", "payload": payload | _reason(body.reason)}
    outcome = await _say(spaces, ask, _encode(envelope))
    if isinstance(outcome, Refusal):
        return outcome
    return {"participant": body.participant, "token": outcome["token"], "url": outcome["connection_url"]}


async def kick(spaces: Spaces, ask: Ask) -> dict[str, Any] | Refusal:
    """Put somebody out of a space."""
    payload = {"participant_id": ask.body.participant, **_reason(ask.body.reason)}
    outcome = await _say(spaces, ask, _encode({"kind": "space/kick", "payload": payload}))
    return outcome if isinstance(outcome, Refusal) else {"participant": ask.body.participant}


async def _say(spaces: Spaces, ask: Ask, data: bytes) -> dict[str, Any] | Refusal:
    """Have an envelope of the operator's accepted, and wait until it is durable."""
    space = spaces.spaces.get(ask.values[0])
    if space is None:
        return _unknown(ask.values[0])
    now = spaces.runtime.scheduler.now()
    fields = read_object(data, spaces.limits)
    if isinstance(fields, MewRefusal):
        return _refusal(fields)
    envelope = read_envelope(
        fields, spaces.limits, now, fresh_id=spaces.messages.fresh(OPERATOR), strict=True
    )
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
        hint = "choose another name; somebody who was kicked may be invited again"
        return Refusal("IdConflict", outcome["message"], hint=hint)
    logs.event("space.operated", space=space.id, kind=envelope.kind, id=envelope.id, by=ask.principal.name)
    return {"id": envelope.id, **outcome}


def _operator(space: SpaceMachine) -> Participant:
    return space.present.get(OPERATOR) or Participant(OPERATOR, OPERATOR, None, "http")


def _reason(text: str | None) -> dict[str, str]:
    return {} if text is None else {"reason": text}


def _unknown(name: str) -> Refusal:
    hint = "`penstock space ls` lists them; the config section `spaces` adds some"
    return Refusal("UnknownStream", f"there is no space `{name[:60]}`", ref="space", hint=hint)


def _refusal(fault: MewRefusal) -> Refusal:
    """MEW's words in ours."""
    code = _CODES.get(fault.error) or _CODES_BY_STATUS.get(fault.status, "InvalidRequest")
    hint = None if code != "InvalidRequest" else "see docs/reference/mew.md for what each kind needs"
    return Refusal(code, fault.message or fault.error, hint=hint)
