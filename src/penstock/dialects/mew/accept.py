"""What happens to an envelope that a participant sent: it is checked, then broadcast or acted upon.

The order of the checks is the protocol's: the claimed sender, the kinds that are reserved for the gateway, the sender's capabilities, and
only then the request itself. Cost: O(1), plus the capability match.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from hashlib import sha256
from typing import Any

import msgspec

from penstock.core.clock import Now
from penstock.core.json_checks import VALUES_MAX
from penstock.core.records import Entry
from penstock.core.scopes import TOKEN_BYTES, token_text
from penstock.dialects.mew import stream_requests, stream_writers
from penstock.dialects.mew.capabilities import Capability, Matcher, clean, covers, with_baseline
from penstock.dialects.mew.envelopes import Envelope, strings
from penstock.dialects.mew.gateway_messages import MewRefusal
from penstock.dialects.mew.join import KICKED, is_id, mistakable, put_out
from penstock.dialects.mew.machine import OPERATOR, SpaceMachine
from penstock.dialects.mew.participants import Answer, CapabilitySource, Decision, Done, Fault, Participant, Rights
from penstock.dialects.mew.state import DOOR, grant_entry, invite_entry

HEARTBEAT = "system/heartbeat"
IMPLICIT: tuple[Capability, CapabilitySource] = ({"kind": HEARTBEAT}, "implicit")
"""What every participant may send."""
NOTICES = (*stream_writers.ACKNOWLEDGEMENTS, "space/invite-ack")
"""Kinds that only the gateway sends. `stream/open` and `stream/close` are not among them: upstream's participants send these too."""
CORRELATIONS_MAX = 16
"""Ids in the notice to those who wait for an answer that was too large."""
_encode = msgspec.json.encode

Act = Callable[[SpaceMachine, Now, Participant, Envelope, Done | None], MewRefusal | None]


def accept(
    space: SpaceMachine, now: Now, sender: Participant, envelope: Envelope, transport: str, done: Done | None = None
) -> None:
    """Handle an envelope. `done` gets what HTTP should answer; without it the sender is notified of failures only."""
    fault = _check(space, now, sender, envelope, transport)
    if fault is None:
        act = ACTS.get(envelope.kind)
        if act is None:
            space.relay(sender, envelope, done)
        elif not envelope.is_readable:
            fault = MewRefusal.processing(f"the payload has more than {VALUES_MAX} values")
        else:
            fault = act(space, now, sender, envelope, done)
    if fault is not None:
        refuse(space, now, sender, msgspec.structs.replace(fault, cause=envelope.cause), done)
        if fault.error == "too_large":
            _notify_waiting(space, now, sender, envelope, fault)


def _notify_waiting(space: SpaceMachine, now: Now, sender: Participant, envelope: Envelope, fault: MewRefusal) -> None:
    """Notify those who wait for an answer that was too large, by the ids that it answers."""
    causes = envelope.correlations[:CORRELATIONS_MAX]
    if not causes:
        return
    names = set() if envelope.to is None else set(strings(envelope.to))
    payload = {**fault.payload, "refused_id": envelope.id, "refused_from": sender.id, "refused_kind": envelope.kind}
    for each in list(space.present.values()):
        if each.id != sender.id and (not names or each.id in names or each.party in names):
            data = space.messages.say(now, "system/error", payload, to=(each.id,), cause=causes)
            space.then(now, sender, partial(lambda each, data, now: space.send(now, each, data), each, data))


def refuse(space: SpaceMachine, now: Now, sender: Participant, fault: MewRefusal, done: Done | None) -> None:
    """Report a refusal to the request, and to the sender's connection if it has one."""
    there = space.present.get(sender.id)
    if done is None or (there is not None and not fault.whole):
        space.fail(now, sender if there is None or done is None else there, fault)
    else:
        space.refused += 1
    if done is not None:
        done(now, fault)


def _check(space: SpaceMachine, now: Now, sender: Participant, envelope: Envelope, transport: str) -> MewRefusal | None:
    if sender.party in space.state.kicked:  # kicked since it joined, or since its request was admitted
        return put_out(space, sender.party)
    if envelope.sender not in (None, "", sender.id, sender.party):
        message = f"`from` is `{(envelope.sender or '')[:60]}` and you are `{sender.id}`; leave it out"
        return MewRefusal("invalid_from", message, status=403)
    if not envelope.sender:
        envelope.put("from", sender.id)
    most, size = space.limits.space_envelope_max, envelope.size
    watch = space.watch if size <= most else None
    if watch is not None:
        watch.received(now, envelope.encode(), envelope.id, sender.id, space.id, transport)
    kind = envelope.kind
    if (kind.startswith("system/") and kind != HEARTBEAT) or kind in NOTICES:
        return MewRefusal("invalid_request", f"{kind} is reserved for the gateway")
    rights = space.rights(sender.party)
    found = IMPLICIT if kind == HEARTBEAT else _matched(rights, envelope, is_whole=size <= most)
    if watch is not None:
        matched, source = found or (None, None)
        causes = tuple(envelope.correlations)
        decision = Decision(envelope.id, sender.id, space.id, kind, matched, source, rights.all, transport, causes)
        watch.decided(now, decision)
    if found is None:
        if watch is not None:
            data = envelope.encode()
            watch.rejected(now, data, envelope.id, sender.id, space.id, transport, "capability_violation")
        more = {"attempted_kind": kind, "your_capabilities": rights.all}
        message = f"you have no capability for `{kind}`"
        return MewRefusal("capability_violation", message, more, status=403)
    if space.commit_log.draining:
        return MewRefusal("draining", "the server is shutting down; reconnect in a moment", status=503)
    if size > most:
        message = f"the envelope has {size} bytes and `limits.space_envelope_max` allows {most}"
        return MewRefusal("too_large", message, status=413)
    if space.pending_bytes + size > space.limits.pending_max:
        return MewRefusal("journal_unavailable", "the journal does not keep up; send again in a moment", status=503)
    return None


def _matched(rights: Rights, envelope: Envelope, *, is_whole: bool) -> tuple[Capability, CapabilitySource] | None:
    """The capability that allows an envelope. The payload of one that is too large is not decoded: its kind must be allowed."""
    if is_whole:
        return rights.match(envelope.kind, envelope.raw_payload)
    kinds = Matcher([{"kind": each["kind"]} for each in rights.all])
    return None if kinds.match(envelope.kind, None) is None else IMPLICIT


def _grant(space: SpaceMachine, now: Now, sender: Participant, envelope: Envelope, done: Done | None) -> Fault:
    """`capability/grant`: a participant grants another a part of its own capabilities."""
    party = _party(space, envelope, "recipient")
    if isinstance(party, MewRefusal):
        return party
    capabilities = clean(envelope.payload.get("capabilities"))
    if not capabilities:
        return MewRefusal("invalid_request", "`payload.capabilities` is a list of capabilities, each with a `kind`")
    held_grants = len(space.state.grants.get(party, {})) + space.undecided("capability/grant", peer=party)
    if held_grants >= space.limits.grants_max:
        message = f"`{party}` has {space.limits.grants_max} grants and `limits.grants_max` allows no more"
        return MewRefusal("too_many_grants", message, status=429)
    refusal = _check_held(space, sender, envelope, capabilities, "you may grant only what you may send yourself")
    if refusal is not None:
        return refusal
    entry = grant_entry(space.id, envelope.id, sender.id, party, capabilities, envelope.text("reason"))
    space.relay(sender, envelope, done, (entry,), lambda now: _update(space, now, party))
    return None


def _revoke(space: SpaceMachine, now: Now, sender: Participant, envelope: Envelope, done: Done | None) -> Fault:
    """`capability/revoke`: take grants back, by their id or by what they cover."""
    party = _party(space, envelope, "recipient")
    if isinstance(party, MewRefusal):
        return party
    meta: dict[str, object] = {"grant": "capability"}
    grant_id = envelope.text("grant_id")
    capabilities = clean(envelope.payload.get("capabilities"))
    if grant_id is not None:
        meta["grant_id"] = grant_id
    elif capabilities:
        meta["capabilities"] = capabilities
    else:
        return MewRefusal("invalid_request", "`payload.grant_id` or `payload.capabilities` says what to take back")
    about = {"peer": party, "reason": envelope.text("reason"), "meta": _encode(meta).decode()}
    entry = _withdrawal(space, "revoke", sender, envelope, **about)
    space.relay(sender, envelope, done, (entry,), lambda now: _update(space, now, party))
    return None


def _withdrawal(space: SpaceMachine, event: str, sender: Participant, envelope: Envelope, **columns: Any) -> Entry:
    """The fact that a party has less than before; a journal short of space accepts it."""
    columns |= {"id": envelope.id, "kind": envelope.kind, "sender": sender.id}
    return Entry(DOOR, event, space.id, **columns, fresh=False)


def _party(space: SpaceMachine, envelope: Envelope, field: str) -> str | MewRefusal:
    """The party that a member of the payload names."""
    name = envelope.text(field)
    if name is None:
        return MewRefusal("invalid_request", f"`payload.{field}` is required")
    party = space.resolve(name)
    if party is None:
        return MewRefusal("participant_not_found", f"the space has no participant `{name[:200]}`", status=404)
    return party


def _check_held(
    space: SpaceMachine, sender: Participant, envelope: Envelope, given: Iterable[Capability], message: str
) -> MewRefusal | None:
    """Why a sender may not give these capabilities: it must hold each of them."""
    held = space.rights(sender.party).all
    beyond = [each for each in given if not covers(held, each)]
    if not beyond:
        return None
    more = {"attempted_kind": envelope.kind, "your_capabilities": held, "capabilities": beyond}
    return MewRefusal("capability_violation", message, more, status=403)


def _update(space: SpaceMachine, now: Now, party: str) -> None:
    """Send every participant of a party its new capabilities."""
    for participant in space.present.values():
        if participant.party == party:
            space.welcome(now, participant, is_update=True)


def _invite(space: SpaceMachine, now: Now, sender: Participant, envelope: Envelope, done: Done | None) -> Fault:
    """`space/invite`: admit a new participant with a new token, which only the inviter receives."""
    who = envelope.text("participant_id")
    if who is None:
        return MewRefusal("invalid_request", "`payload.participant_id` is required")
    if "/" in who or "\\" in who or ".." in who or not is_id(who, space.limits):
        message = "`payload.participant_id` has invalid characters, is too long, or is a name of the gateway's"
        return MewRefusal("invalid_request", message)
    is_back = who in space.state.kicked and not space.undecided("space/invite", peer=who)
    if (space.is_taken(who) or space.holder(who) is not None) and not is_back:
        text = f"`{who}` is known to the space already"
        said = {"status": "already_exists", "participant_id": who, "error": text}
        space.then(now, sender, lambda now: _acknowledge(space, now, sender, envelope, said))
        if done is not None:
            done(now, {"status": "already_exists", "participant_id": who, "message": text})
        return None
    fault = None if is_back else mistakable(space, who)
    if fault is not None:
        return MewRefusal("invalid_request", fault.message)
    invited = len(space.state.invited) + space.undecided("space/invite", channel=space.id)
    if invited >= space.limits.invites_max and who not in space.state.invited:
        message = f"{space.limits.invites_max} are invited and `limits.invites_max` allows no more"
        return MewRefusal("too_many_invites", message, status=429)
    if who in space.settings.participants:  # invited again after a kick: it gets the capabilities of the settings
        capabilities = space.static(who)
    else:
        capabilities = clean(envelope.payload.get("initial_capabilities"))
    kinds = [(each, Matcher([{"kind": each["kind"]}])) for each in capabilities]
    powers = [each for each, matcher in kinds if any(matcher.match(kind, None) is not None for kind in POWERS)]
    message = "an invitation cannot give more power to grant, revoke, invite or kick than you have"
    if (refusal := _check_held(space, sender, envelope, powers, message)) is not None:
        return refusal
    token = token_text(space.messages.entropy(TOKEN_BYTES))
    reason = envelope.text("reason")
    digest = sha256(token.encode()).hexdigest()
    body = envelope.encode()
    entry = invite_entry(space.id, sender.id, who, digest, capabilities, id_=envelope.id, reason=reason, body=body)

    def announce(now: Now) -> Answer:
        space.minted.append((who, token))
        created = {"status": "created", "participant_id": who, "token": token, "connection_url": space.url}
        _acknowledge(space, now, sender, envelope, created)
        more = {"invited_by": sender.id} | ({} if reason is None else {"reason": reason})
        shown = {"id": who, "capabilities": with_baseline(capabilities)}
        space.broadcast(now, space.messages.presence(now, "invited", shown, **more), "", but=sender.id)
        return created

    space.commit(sender, [entry], announce, done, cause=envelope.cause)
    return None


POWERS = ("capability/grant", "capability/revoke", "space/invite", "space/kick")
"""Kinds that change what other participants may do."""


def _acknowledge(
    space: SpaceMachine, now: Now, sender: Participant, envelope: Envelope, payload: dict[str, str]
) -> None:
    there = space.present.get(sender.id)
    if there is not None:
        data = space.messages.say(now, "space/invite-ack", payload, to=(sender.id,), cause=(envelope.id,))
        space.send(now, there, data)


def _kick(space: SpaceMachine, now: Now, sender: Participant, envelope: Envelope, done: Done | None) -> Fault:
    """`space/kick`: remove a participant, who cannot join again until invited."""
    party = _party(space, envelope, "participant_id")
    if isinstance(party, MewRefusal):
        return party
    known = space.settings.participants.get(party)
    if party == OPERATOR or (known is not None and known.is_pipeline):
        return MewRefusal("invalid_operation", f"`{party}` belongs to the server itself", status=400)
    reason = envelope.text("reason") or ""
    entry = _withdrawal(space, "kick", sender, envelope, peer=party, reason=reason)

    def evict(now: Now) -> None:
        fault = MewRefusal("kicked", f"`{sender.id}` kicked you from the space" + (f": {reason}" if reason else ""))
        for participant in space.present.values():
            if participant.party == party:
                space.evicted.append((participant, KICKED, fault))

    space.relay(sender, envelope, done, (entry,), evict)
    return None


ACTS: dict[str, Act] = {
    "capability/grant": _grant,
    "capability/revoke": _revoke,
    "space/invite": _invite,
    "space/kick": _kick,
    "stream/request": stream_requests.request,
    "stream/close": stream_requests.close_asked,
    **dict.fromkeys(stream_writers.KINDS, stream_writers.change),
}
"""Kinds that the gateway acts upon; all others are only broadcast."""
