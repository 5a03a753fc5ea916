"""What travels between a participant and the gateway of a space: envelopes as text, frames as `#stream#bytes`, refusals.

Owns the reading and writing of single messages and keeps nothing. What a peer sent is never trusted to have a shape: a field that is
not what it should be counts as absent, and a message that is neither an envelope nor a frame is None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from penstock.client.control.frames import now_text
from penstock.core.errors import TABLE, PenstockError, Refusal

PROTOCOL = "mew/v0.4"
GATEWAYS = ("gateway", "system:gateway")
"""Names that only the gateway sends under."""

_encode = msgspec.json.Encoder().encode
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
"""Words of the gateway that have one of ours; every other refusal is an `InvalidRequest`."""
_HINTS = {
    "already_exists": "choose another name, or put the one that has it out first",
    "capability_violation": "ask for the capability with `capability/grant`, or have it added to the space's file",
    "invalid_from": "leave `from` out",
    "invalid_participant": "join as the participant whose token it is, or under a name that nobody has",
    "kicked": "whoever runs the space can invite you again",
    "participant_not_found": "`participants` lists who is in the space",
    "stream_not_found": "`active_streams` lists the streams that are open",
    "target_not_found": "a target must be in the space when the stream is opened; `participants` lists who is",
    "unknown_space": "`penstock space ls` lists the spaces of a server",
    "unauthorized": "only the owner of a stream may do that",
    "unauthorized_stream_write": "its owner lets others write with `grant_write`",
}
_HINT = "the message says what the gateway expects"


class Frame(NamedTuple):
    """One piece of a stream's data."""

    stream_id: str
    data: bytes


class SpaceEnvelope(msgspec.Struct, frozen=True):
    """One envelope as it arrived."""

    id: str
    kind: str
    sender: str
    """Its `from`; one of `GATEWAYS` is the gateway itself."""
    payload: Any
    to: tuple[str, ...]
    correlation_id: tuple[str, ...]
    ts: str
    fields: dict[str, Any]
    """All of it, with what has no name here."""
    size: int
    """Bytes on the wire."""

    @property
    def is_from_gateway(self) -> bool:
        """Whether the gateway itself says it."""
        return self.sender in GATEWAYS


Arrival = SpaceEnvelope | Frame


class SpaceError(PenstockError):
    """The gateway refused something; `error` is its own word for why and `payload` all it said."""

    def __init__(self, payload: Mapping[str, Any], *, is_join: bool = False) -> None:
        self.payload = dict(payload)
        self.error = text_of(payload.get("error")) or "error"
        if is_join and self.error == "unauthorized":  # the same word, for a token
            code, hint = "Unauthorized", "ask who runs the space for your token"
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


class TargetUnsupported(PenstockError):  # noqa: N818 - it says what is so
    """The gateway opened a stream to everybody although targets were named; the stream was closed again."""

    def __init__(self, target: Sequence[str], stream_id: str) -> None:
        names = ", ".join(f"`{name}`" for name in target)
        message = (
            f"the gateway does not know targeted delivery: it opened `{stream_id}` without the target {names}"
        )
        hint = "nothing was sent, and the stream is closed; open it without a target if everybody may read it"
        super().__init__(Refusal("Unsupported", message, ref=stream_id, hint=hint))


def text_of(value: object) -> str:
    """A text, or an empty one where something else came."""
    return value if isinstance(value, str) else ""


def texts_of(value: object) -> tuple[str, ...]:
    """A list of texts; one text alone is a list of one, as older peers write it."""
    if isinstance(value, str):
        return (value,)
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


def object_of(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def objects_of(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def read_message(data: bytes) -> Arrival | None:
    """A message of the gateway; None when it is nothing we know."""
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
    """How a participant asks to be let in; a gateway with one space needs no name of it."""
    fields = {"type": "join", "space": space, "participantId": participant, "token": token}
    return _encode({name: value for name, value in fields.items() if value is not None}).decode()


def envelope_text(
    envelope_id: str,
    sender: str,
    kind: str,
    payload: object,
    to: Sequence[str] = (),
    correlation_id: Sequence[str] = (),
) -> str:
    """An envelope for the wire."""
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
    return _encode(fields).decode()


def frame_bytes(stream_id: str, data: bytes | str) -> bytes:
    """A frame for the wire."""
    return b"#%b#%b" % (stream_id.encode(), data.encode() if isinstance(data, str) else data)
