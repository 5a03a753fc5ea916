"""The JSON of Courier's answers, for the OpenAPI document.

These structs only document: the operations build their answers as dicts around the raw bytes of envelopes, once for HTTP
and Control v1, and a copy into a struct would cost time on the hot path. Answers may gain members. Those that the SDK
returns are structs in `dialects/courier/wire/answers.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import GenericAlias
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import UNSET, Meta, UnsetType

from penstock.core.health import State, Status
from penstock.dialects.courier.wire import answers

Batch = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Name = Annotated[str, Meta(min_length=1, max_length=256)]
Object = dict[str, Any]


def _struct(name: str, members: Mapping[str, Any], optional: Mapping[str, Any] | None = None) -> type[msgspec.Struct]:
    """A struct with these JSON members; the optional ones may be missing."""
    fields: list[Any] = [*members.items()]
    fields += [(key, kind | UnsetType, UNSET) for key, kind in (optional or {}).items()]
    return msgspec.defstruct(name, fields, rename={"sender": "from"})


def _list(kind: type[msgspec.Struct]) -> GenericAlias:
    return GenericAlias(list, (kind,))


def documented(answer: type[answers.CourierAnswer], **others: Any) -> type[msgspec.Struct]:
    """The document of an answer that the SDK has as a struct: what is None there is missing in JSON."""
    members: dict[str, Any] = {}
    optional: dict[str, Any] = {}
    for field in msgspec.structs.fields(answer):
        name = field.encode_name
        if field.required:
            members[name] = others.get(name, field.type)
        else:
            plain = field.type if field.default is not None else get_args(field.type)[0]
            optional[name] = others.get(name, plain)
    return _struct(answer.__name__, members, optional)


_ENVELOPE = {"id": Name, "ts": answers.Time, "type": Name, "payload": Any}
_ENVELOPE_MORE = {
    "sender": str | None, "to": Annotated[str, Meta(max_length=512)], "corr": str | None, "schema": str | None,
    "version": int | None, "refs": list[str] | None, "tags": list[str] | None,
}  # fmt: skip
ENVELOPE = _struct("Envelope", _ENVELOPE, {**_ENVELOPE_MORE, "headers": dict[str, str | float | bool | None] | None})
# The headers of a dead letter hold an object that says why it failed.
STORED_ENVELOPE = _struct("StoredEnvelope", _ENVELOPE, {**_ENVELOPE_MORE, "headers": Object | None})
CHECKED_ENVELOPE = _struct("CheckedEnvelope", {"payload": Any}, {"schema": str | None})

ENQUEUED_ONE = _struct("EnqueuedOne", {"id": str, "seq": answers.Count}, {"duplicate": bool})
ENQUEUED_MANY = _struct("EnqueuedMany", {"ids": list[str], "seqs": list[answers.Count]}, {"duplicates": list[str]})
_RECIPIENT = _struct("Recipient", {"known": bool, "present": bool})
SENT = _struct("Sent", {"id": str, "seq": answers.Count, "to": str, "recipient": _RECIPIENT}, {"duplicate": bool})
_DELIVERY = _struct("PulledDelivery", {
    "deliver": STORED_ENVELOPE, "stream": str, "seq": answers.Count, "attempt": answers.Count, "leaseId": str, "leaseExpiresAt": answers.Moment,
})  # fmt: skip
PULLED = _struct("Pulled", {"deliveries": _list(_DELIVERY)})
SETTLED = _struct("Settled", {"id": str, "op": str}, {"settled": bool, "leaseExpiresAt": answers.Moment})
REDRIVEN, PURGED, DROPPED = documented(answers.Redriven), documented(answers.Purged), documented(answers.Dropped)

STATS = documented(answers.Stats)
METRICS = _struct("Metrics", {"streams": _list(documented(answers.StreamMetrics, stats=STATS))})
PLACES = _struct("Places", {"id": str, "places": _list(documented(answers.Place, peer=str | None))})
_PEEKED_ROW = documented(answers.PeekedRow, peer=str | None, env=STORED_ENVELOPE)
PEEKED = _struct("Peeked", {"rows": _list(_PEEKED_ROW)}, {"next": answers.Count | None})
_VIEW_ROW = _struct("ViewRow", {"addr": str}, {"env": STORED_ENVELOPE, "row": Object})
VIEW_ROWS = _struct("ViewRows", {"rows": _list(_VIEW_ROW), "watermark": answers.Count, "asOf": answers.Time})
_REASON = documented(answers.Reason)
EXPLAINED = documented(answers.Explained, reasons=_list(_REASON), consumers=_list(documented(answers.ConsumerFigures)))

_SCHEMA = _struct("SchemaVersions", {"name": str, "versions": list[str]})
SCHEMAS = _struct("Schemas", {"schemas": _list(_SCHEMA)})
_PROBLEM = _struct("SchemaProblem", {"path": str, "rule": str, "message": str})
JUDGED = _struct("Judged", {
    "ok": bool, "finding": Literal["fits", "missing", "malformed", "unknown", "newer", "misfit"],
    "message": str | None, "against": str | None, "problems": _list(_PROBLEM),
})  # fmt: skip

_BATCH = {"app": str, "batch": Batch}
STAGED_PART = _struct("StagedPart", {**_BATCH, "part": str, "staged": answers.Count})
STAGED_BATCH = _struct(
    "StagedBatch", {**_BATCH, "enqueued": answers.Count, "duplicate": bool}, {"last": Batch, "frames": answers.Count}
)
STAGE_ABORTED = _struct("StageAborted", {**_BATCH, "dropped": answers.Count})
STAGE_LAST = _struct("StageLast", {"app": str, "last": Batch | None})

_TRIGGER = {
    "id": str, "hook": Literal["on_insert", "on_ack", "on_timeout", "on_dead"], "origin": Literal["config", "runtime"],
    "state": Literal["ready", "resting", "disabled"], "rule": Object, "counters": dict[str, answers.Count],
}  # fmt: skip
TRIGGER = _struct("TriggerState", _TRIGGER)
TRIGGERS = _struct("Triggers", {"triggers": _list(TRIGGER)})
_COOLDOWN = _struct("TriggerCooldown", {"key": str, "endsInMs": answers.Count, "suppressed": answers.Count})
_FIRING = _struct("TriggerFiring", {"at": answers.Time})
TRIGGER_EXPLAINED = _struct(
    "TriggerExplained", {**_TRIGGER, "reasons": _list(_REASON), "cooling": _list(_COOLDOWN), "recent": _list(_FIRING)}
)
TRIGGER_PUT = _struct("TriggerPut", {"id": str, "created": bool})
TRIGGER_REMOVED = _struct("TriggerRemoved", {"id": str, "removed": bool, "config": bool})
_TRIAL = _struct(
    "TriggerTrial", {"id": str, "hook": str, "fits": bool},
    {"because": list[str], "sends": list[Object], "warnings": answers.Count},
)  # fmt: skip
TRIGGERS_TRIED = _struct("TriggersTried", {"triggers": _list(_TRIAL)})

_FAILURE = _struct("PartFailure", {"at": answers.Time, "reason": str})
_PART = _struct(
    "PartHealth", {"state": State, "since": answers.Time},
    {"reason": str, "lastFailure": _FAILURE | None, "action": str | None},
)  # fmt: skip
HEALTH = _struct("Health", {
    "ok": bool, "status": Status, "version": str, "bootId": str, "features": list[str],
    "spaces": answers.Count, "clients": answers.Count, "uptime": answers.Number, "journal": Object, "parts": GenericAlias(dict, (str, _PART)),
})  # fmt: skip
LIVE = _struct("Live", {"ok": bool, "bootId": str})
