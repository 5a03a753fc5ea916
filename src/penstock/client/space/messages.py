"""Messages between a participant and the gateway: envelopes as JSON text, frames as `#stream#bytes`, errors.

Parses and formats single messages and keeps no state. Nothing about a peer's message is trusted: a field of the wrong type counts as
absent, and a message that is neither an envelope nor a frame is None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from penstock.client.control.frames import encode, now_text
from penstock.core.errors import TABLE, PenstockError, Refusal

PROTOCOL = "mew/v0.4"
GATEWAYS = ("gateway", "system:gateway")
"""Names that only the gateway may send as."""

_CODES = {
    "capability_violation": "Forbidden",
    "draining": "Draining",
    "invalid_from": "Forbidden",
    "invalid_participant": "Forbidden",
    "journal_unavailable": "JournalUnavailable",
    "kicked": "Forbidden",
    "rate_limited": "RateLimited",
    "space_full": "QuotaExceeded",
    "stream_not_found": "UnknownStream",
    "too_large": "TooLarge",
    "too_many_grants": "QuotaExceeded",
    "too_many_invites": "QuotaExceeded",
    "too_many_streams": "QuotaExceeded",
    "unauthorized": "Forbidden",
    "unauthorized_stream_write": "Forbidden",
}
"""Our error codes for the gateway's words; every other error is an `InvalidRequest`."""
_HINTS = {
    "already_exists": "choose another name, or kick the participant that has it",
    "capability_violation": "ask for the capability with `capability/grant`, or have it added to the space's file",
    "invalid_from": "leave `from` out",
    "invalid_participant": "join as the participant whose token it is, or under a free name",
    "kicked": "the operator of the space can invite you again",
    "participant_not_found": "`participants` lists who is in the space",
    "stream_not_found": "`active_streams` lists the streams that are open",
    "target_not_found": "a target must be in the space when the stream is opened; `participants` lists who is",
    "unknown_space": "`penstock space ls` lists the spaces of a server",
    "unauthorized": "only the owner of a stream may do that",
    "unauthorized_stream_write": "the stream's owner can let you write with `grant_write`",
}
_HINT = "the message says what the gateway expects"


class Frame(NamedTuple):
    """One frame of a stream."""

    stream_id: str
    data: bytes


class SpaceEnvelope(msgspec.Struct, frozen=True):
    """An envelope as it arrived."""

    id: str
    kind: str
    sender: str
    """Its `from`; one of `GATEWAYS` for the gateway itself."""
    payload: Any
    to: tuple[str, ...]
    correlation_id: tuple[str, ...]
    ts: str
    fields: dict[str, Any]
    """The whole envelope, including fields without an attribute here."""
    size: int
    """Bytes on the wire."""

    @property
    def is_from_gateway(self) -> bool:
        """Whether the gateway itself sent it."""
        return self.sender in GATEWAYS


Arrival = SpaceEnvelope | Frame


class SpaceError(PenstockError):
    """The gateway rejected something: `error` is its own word for the reason, `payload` the whole error."""

    def __init__(self, payload: Mapping[str, Any], *, is_join: bool = False) -> None:
        self.payload = dict(payload)
        self.error = text_of(payload.get("error")) or "error"
        if is_join and self.error == "unauthorized":  # in a join, the word is about the token
            code, hint = "Unauthorized", "ask the operator of the space for your token"
        else:
            said = text_of(self.payload.get("code"))
            code = said if said in TABLE else _CODES.get(self.error, "InvalidRequest")
            hint = _HINTS.get(self.error, _HINT if code == "InvalidRequest" else "")
        hint = text_of(payload.get("hint")) or hint
        super().__init__(Refusal(code, self._message(), hint=hint or None))

    def _message(self) -> str:
        message = text_of(self.payload.get("message"))
        targets = self.payload.get("targets")
        if message and isinstance(targets, list) and targets:
            return f"{message}: {', '.join(map(str, targets))} (`{self.error}`)"
        if message:
            return f"{message} (`{self.error}`)"
        attempted = text_of(self.payload.get("attempted_kind"))
        if attempted:
            return f"you may not send `{attempted}` (`{self.error}`)"
        return self.error


class TargetUnsupported(PenstockError):  # noqa: N818 - reads well in `except TargetUnsupported`
    """The gateway ignored the target of a stream and would send its frames to all; the client closed the stream."""

    def __init__(self, target: Sequence[str], stream_id: str) -> None:
        names = ", ".join(f"`{name}`" for name in target)
        message = f"the gateway does not support targets: it opened `{stream_id}` without the target {names}"
        hint = "no frame was sent and the stream is closed; open it without a target if all participants may read it"
        super().__init__(Refusal("Unsupported", message, ref=stream_id, hint=hint))


def text_of(value: object) -> str:
    """The value if it is a text, else an empty text."""
    return value if isinstance(value, str) else ""


def texts_of(value: object) -> tuple[str, ...]:
    """A list of texts; older peers write a single text instead of a list of one."""
    if isinstance(value, str):
        return (value,)
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


def object_of(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def objects_of(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def read_message(data: bytes) -> Arrival | None:
    """Parse a message of the gateway; None when it is neither an envelope nor a frame."""
    if data[:1] == b"#" and (end := data.find(b"#", 1)) > 0:
        return Frame(data[1:end].decode(errors="replace"), data[end + 1 :])
    try:
        fields = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None
    if not isinstance(fields, dict) or not isinstance(fields.get("kind"), str):
        return None
    return SpaceEnvelope(
        id=text_of(fields.get("id")),
        kind=fields["kind"],
        sender=text_of(fields.get("from")),
        payload=fields.get("payload"),
        to=texts_of(fields.get("to")),
        correlation_id=texts_of(fields.get("correlation_id")),
        ts=text_of(fields.get("ts")),
        fields=fields,
        size=len(data),
    )


def join_message(space: str | None, participant: str, token: str | None) -> str:
    """The join message; a gateway with one space needs no name."""
    fields = {"type": "join", "space": space, "participantId": participant, "token": token}
    return encode({name: value for name, value in fields.items() if value is not None}).decode()


def envelope_text(
    envelope_id: str,
    sender: str,
    kind: str,
    payload: object,
    to: Sequence[str] = (),
    correlation_id: Sequence[str] = (),
) -> str:
    """Format an envelope."""
    fields: dict[str, object] = {
        "protocol": PROTOCOL,
        "id": envelope_id,
        "ts": now_text(),
        "from": sender,
        "kind": kind,
    }
    if to:
        fields["to"] = list(to)
    if correlation_id:
        fields["correlation_id"] = list(correlation_id)
    if payload is not None:
        fields["payload"] = payload
    return encode(fields).decode()


def frame_bytes(stream_id: str, data: bytes | str) -> bytes:
    """Format a frame."""
    return b"#%b#%b" % (stream_id.encode(), data.encode() if isinstance(data, str) else data)
