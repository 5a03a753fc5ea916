"""Streams of a space: open one on request or by the settings, and close it.

Owns the life of a stream. `stream_writers.py` changes who may write to it, and its frames pass through `core/fanout/frame_router.py`. A
stream exists for others only once its commit is durable; until then it counts towards the limits in `SpaceMachine.opening`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.core.clock import Now, rfc3339
from penstock.core.fanout.frame_router import FrameRoute
from penstock.core.records import Entry
from penstock.dialects.mew import frames
from penstock.dialects.mew.envelopes import Envelope
from penstock.dialects.mew.gateway_messages import GATEWAY, MewRefusal
from penstock.dialects.mew.machine import SpaceMachine
from penstock.dialects.mew.participants import Answer, Done, Fault, Participant, accepted
from penstock.dialects.mew.settings import Keep, Overflow
from penstock.dialects.mew.state import OpenStream, open_entry, stream_entry

OVERFLOWS = ("drop-oldest", "wait", "disconnect")
RECONFIGURED = "reconfigured"
"""The reason for closing a stream that is opened again with changed settings."""
_encode = msgspec.json.encode


def request(space: SpaceMachine, now: Now, sender: Participant, envelope: Envelope, done: Done | None) -> Fault:
    """`stream/request`: open a stream. The request is broadcast first, then `stream/open`."""
    raw = envelope.raw_payload or b""
    if len(raw) > space.limits.space_request_max:
        bound = f"`limits.space_request_max` allows {space.limits.space_request_max}"
        return MewRefusal("invalid_request", f"the request's payload has {len(raw)} bytes and {bound}")
    payload = dict(envelope.payload)
    targets = _targets(space, payload.pop("target", None))
    if isinstance(targets, MewRefusal):
        return targets
    # A file with a gap is useless, and its sender knows how long it is; new telemetry is worth more than old.
    is_file = payload.get("expected_size_bytes") is not None
    overflow = payload.get("overflow", "wait" if is_file else "drop-oldest")
    if overflow not in OVERFLOWS:
        return MewRefusal("invalid_request", "`payload.overflow` is `drop-oldest`, `wait` or `disconnect`")
    if (fault := _fullness(space, len(raw))) is not None:
        return fault
    stream = _make(space, now, sender.id, targets, payload, overflow=overflow)
    stream.request_id = envelope.id
    if sender.id != sender.party:  # it may have asked over HTTP without being present
        stream.aliases[sender.id] = sender.party
    opened = _open_message(space, now, stream)
    data = envelope.encode()
    entries = [space.envelope_entry(sender, envelope, data), open_entry(space.id, stream, opened, space.audience)]
    answer = {"status": "stream_opened", "stream_id": stream.id}

    def announce(now: Now) -> Answer:
        if done is None:
            space.broadcast(now, data, envelope.id)
        _opened(space, now, stream, opened)
        return answer

    _begin(space, stream, entries[-1])
    space.commit(sender, entries, announce, done, cause=envelope.cause, failed=lambda now: _settle(space, stream))
    return None


def _targets(space: SpaceMachine, wanted: object) -> tuple[str, ...] | MewRefusal:
    """The participants that receive the frames; empty means all."""
    if isinstance(wanted, str):
        wanted = [wanted]
    if wanted is None or wanted == []:
        return ()
    if not isinstance(wanted, list):
        return MewRefusal("invalid_request", "`payload.target` is a list of participant ids")
    if len(wanted) > space.limits.participants_max:
        return MewRefusal("invalid_request", f"`payload.target` names {len(wanted)} participants, which is too many")
    missing = [name for name in wanted if not isinstance(name, str) or not space.router.is_there(name)]
    if missing:
        message = "One or more target participants do not exist in space"
        return MewRefusal("target_not_found", message, {"targets": missing}, whole=True)
    return tuple(dict.fromkeys(wanted))


def _fullness(space: SpaceMachine, size: int = 0) -> MewRefusal | None:
    """Why another stream with `size` bytes of metadata cannot be opened."""
    most, most_bytes = space.limits.space_streams_max, space.limits.space_streams_bytes_max
    if len(space.state.streams) + len(space.opening) >= most:
        message = f"{most} streams are open and `limits.space_streams_max` allows no more"
    elif space.state.streams_bytes + space.opening_bytes + size > most_bytes:
        message = f"the metadata of open streams has {most_bytes} bytes, the limit of `limits.space_streams_bytes_max`"
    else:
        return None
    return MewRefusal("too_many_streams", message, status=429)


def _make(
    space: SpaceMachine,
    now: Now,
    owner: str,
    targets: tuple[str, ...],
    asked: dict[str, Any],
    *,
    overflow: Overflow | None = None,
    keep: Keep | None = None,
    name: str | None = None,
) -> OpenStream:
    overflow = overflow or "drop-oldest"
    no = space.state.stream_no = space.state.stream_no + 1
    kept = _keep_of(space, targets, keep)
    route = FrameRoute(f"stream-{no}", owner, targets, keep=kept, overflow=overflow)
    open_id = space.messages.fresh(f"stream-open-{no}")
    aliases = space.aliases((owner, *targets))
    return OpenStream(route, no, rfc3339(now.wall_us), asked, name, None, open_id, 0, aliases)


def _keep_of(space: SpaceMachine, targets: tuple[str, ...], keep: Keep | None) -> Keep:
    """What the journal keeps of a stream's frames: all of them if the pipeline is a target."""
    known = space.settings.participants
    to_pipeline = any(name in known and known[name].is_pipeline for name in targets)
    return keep or ("full" if to_pipeline else "counts")


def _open_message(space: SpaceMachine, now: Now, stream: OpenStream) -> bytes:
    route = stream.route
    payload: dict[str, Any] = {
        "stream_id": route.id,
        "encoding": "text",
        "owner": route.owner,
        "authorized_writers": list(route.writers),
    }
    if route.targets:
        payload["target"] = list(route.targets)
    cause = () if stream.request_id is None else (stream.request_id,)
    return space.messages.say(
        now, "stream/open", payload, sender=GATEWAY, to=(route.owner,), cause=cause, id_=stream.open_id
    )


def _opened(space: SpaceMachine, now: Now, stream: OpenStream, opened: bytes) -> None:
    """Announce an open stream. The state built its own `OpenStream` from the row, as after a restart; use that one."""
    _settle(space, stream)
    space.broadcast(now, opened, stream.open_id)
    if stream.route.owner not in space.present:  # it left meanwhile, or is not present
        check_owner_later(space, now, space.state.streams[stream.id])


def _begin(space: SpaceMachine, stream: OpenStream, entry: Entry) -> None:
    """Count a stream that waits for its commit."""
    stream.size = len(entry.meta or "")
    space.opening[stream.id] = stream
    space.opening_bytes += stream.size


def _settle(space: SpaceMachine, stream: OpenStream) -> None:
    """The commit of a stream is decided."""
    space.opening_bytes -= space.opening.pop(stream.id).size


def check_owner_later(space: SpaceMachine, now: Now, stream: OpenStream) -> None:
    """Check after the grace period whether the owner is back; `join.wake` closes the stream if not."""
    space.timers.arm(now.us + space.limits.owner_grace_ms * 1000, stream)


def open_configured(space: SpaceMachine, now: Now, owner: str) -> None:
    """Open the configured streams of an owner that is present, unless they are open."""
    if owner not in space.present:
        return
    there = (*space.state.streams.values(), *space.opening.values())
    named = [stream.name for stream in there if stream.name is not None]
    for name, settings in space.settings.streams.items():
        if settings.owner != owner or name in named or _fullness(space) is not None:
            continue
        stream = _make(
            space,
            now,
            owner,
            settings.target,
            dict(settings.request),
            overflow=settings.overflow,
            keep=settings.keep,
            name=name,
        )
        opened = _open_message(space, now, stream)
        entries = [open_entry(space.id, stream, opened, space.audience)]

        def announce(now: Now, stream: OpenStream = stream, opened: bytes = opened) -> None:
            _opened(space, now, stream, opened)

        def failed(now: Now, stream: OpenStream = stream) -> None:
            _settle(space, stream)
            check_owner_later(space, now, stream)

        _begin(space, stream, entries[-1])
        space.commit(None, entries, announce, failed=failed)


def is_as_configured(space: SpaceMachine, stream: OpenStream) -> bool:
    """Whether a configured stream still matches the settings."""
    settings = space.settings.streams.get(stream.name or "")
    return settings is not None and (settings.target, _keep_of(space, settings.target, settings.keep)) == (
        stream.route.targets,
        stream.route.keep,
    )


def close(
    space: SpaceMachine,
    now: Now,
    sender: Participant | None,
    stream: OpenStream,
    by: str,
    reason: str,
    said: Envelope | None = None,
    done: Done | None = None,
) -> None:
    """Close a stream. Without an envelope of a participant, the gateway sends its own `stream/close`."""
    id_ = None if said is None else said.id
    entry = stream_entry(
        space.id, stream, "stream_close", id=id_, kind="stream/close", sender=by, reason=reason, fresh=False
    )
    data = None if said is None else said.encode()
    entries = [entry]
    if said is not None and data is not None and sender is not None:
        entries.append(space.envelope_entry(sender, said, data))
    causes = [cause for cause in (stream.open_id, stream.request_id) if cause]

    def announce(now: Now) -> Answer:
        if said is not None and data is not None:
            space.broadcast(now, data, said.id)
        else:
            space.say(now, "stream/close", {"stream_id": stream.id, "reason": reason}, cause=causes)
        if reason == RECONFIGURED and stream.name in space.settings.streams:
            open_configured(space, now, space.settings.streams[stream.name].owner)
        return accepted(now)

    def failed(now: Now) -> None:
        if said is None or stream.route.owner not in space.present:
            check_owner_later(space, now, stream)

    frames.journal_counts(space, now)  # the row of its last frames comes before the row of its end
    cause = None if said is None else said.cause
    space.commit(sender, entries, announce, done, cause=cause, failed=failed)


def close_asked(space: SpaceMachine, now: Now, sender: Participant, envelope: Envelope, done: Done | None) -> Fault:
    """`stream/close`: only the owner may close a stream. An envelope that names no known stream is broadcast like any other."""
    stream = _meant(space, envelope)
    if stream is None:
        space.relay(sender, envelope, done)
        return None
    if stream.route.owner != sender.id or is_leaving(space, stream):
        return unauthorized(space, stream, "close")
    if envelope.text("stream_id") is None:
        envelope.put("payload", {**envelope.payload, "stream_id": stream.id})
    if not envelope.correlations:
        envelope.put("correlation_id", [cause for cause in (stream.open_id, stream.request_id) if cause])
    close(space, now, sender, stream, sender.id, envelope.text("reason") or "closed", envelope, done)
    return None


def _meant(space: SpaceMachine, envelope: Envelope) -> OpenStream | None:
    """The stream of a close: by its id, or by the envelope that opened it."""
    id_ = envelope.text("stream_id")
    if id_ is not None:
        return space.state.streams.get(id_) or space.opening.get(id_)
    causes = envelope.correlations
    if not causes:
        return None
    opened: dict[str | None, OpenStream] = {}
    for stream in (*space.state.streams.values(), *space.opening.values()):
        opened.setdefault(stream.open_id, stream)
        opened.setdefault(stream.request_id, stream)
    return next((opened[cause] for cause in causes if cause in opened), None)


def is_leaving(space: SpaceMachine, stream: OpenStream) -> bool:
    """Whether a commit that closes the stream or changes its owner is pending."""
    kinds = ("stream/close", "stream/transfer-ownership")
    return any(space.undecided(kind, channel=f"{space.id}/{stream.id}") for kind in kinds)


def unauthorized(space: SpaceMachine, stream: OpenStream, what: str) -> MewRefusal:
    message = f"only the owner of `{stream.id}`, `{stream.route.owner}`, may {what} it"
    if is_leaving(space, stream):
        message = f"`{stream.id}` is being closed or transferred, so you cannot {what} it now"
    return MewRefusal("unauthorized", message, {"stream_id": stream.id}, status=403, sender=GATEWAY, whole=True)
