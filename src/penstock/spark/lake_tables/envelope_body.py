"""Parse the body of an envelope into columns of the table `envelopes`.

Never raises: an invalid body gives nulls and the reason. Nothing is re-encoded: the payload is the sender's exact text. Unknown members,
and those of the wrong type, go to `extra`. Needs no Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import msgspec

from penstock.core.errors import Refusal
from penstock.core.json_checks import depth_problem
from penstock.dialects.courier.wire.envelopes import json_problem

BODY_BYTES_MAX = 8 * 1024 * 1024
"""Bytes of a body that is parsed. The default limit of the doors is lower."""
DEPTH_MAX = 64
"""Nesting of a body that is parsed: readers of the payload have limits too."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_TIMES_US = range(
    (datetime(1, 1, 2, tzinfo=UTC) - _EPOCH) // _MICROSECOND,
    (datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH) // _MICROSECOND,
)
"""Times that a reader in any time zone can represent."""
_IN_COLUMNS = ("id", "type", "from", "corr")
"""Members that are columns of the journal row, validated on enqueue."""
_IN_COLUMNS_MEW = ("id", "kind", "from")

_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_time = msgspec.json.Decoder(Annotated[datetime, msgspec.Meta(tz=True)])
_text = msgspec.json.Decoder(str)
_texts = msgspec.json.Decoder(list[str])
_encode = msgspec.json.encode


class Contents(msgspec.Struct):
    """The members of an envelope that are not columns of its journal row."""

    to: str | None = None
    targets: list[str] | None = None
    """In a space, where `to` may be a list."""
    refs: list[str] | None = None
    tags: list[str] | None = None
    headers: list[tuple[str, str | None]] | None = None
    schema: str | None = None
    ts_us: int | None = None
    """Microseconds since 1970 by the producer's clock."""
    payload: str | None = None
    problem: str | None = None
    extra: str | None = None


def parse(data: bytes | None) -> Contents:
    """Parse the body of an envelope in a queue."""
    problem = _problem(data)
    if problem is not None:
        return Contents(problem=problem)
    assert data is not None
    members = _object.decode(data)
    payload = members.pop("payload", None)
    if payload is None:
        return Contents(problem="there is no `payload`")
    made = Contents(payload=bytes(payload).decode())
    made.to = _taken(members, "to", _text)
    made.refs = _taken(members, "refs", _texts)
    made.tags = _taken(members, "tags", _texts)
    made.schema = _taken(members, "schema", _text)
    made.headers = _headers(members)
    made.ts_us = _time_us(members)
    return _left(made, members, _IN_COLUMNS)


def parse_mew(data: bytes | None) -> Contents:
    """Parse the body of an envelope in a space. The payload is optional; `correlation_id` becomes `refs`."""
    problem = _problem(data)
    if problem is not None:
        return Contents(problem=problem)
    assert data is not None
    members = _object.decode(data)
    payload = members.pop("payload", None)
    made = Contents(payload=None if payload is None else bytes(payload).decode())
    made.targets = _listed(members, "to")
    made.refs = _listed(members, "correlation_id")
    made.ts_us = _time_us(members)
    return _left(made, members, _IN_COLUMNS_MEW)


def _left(made: Contents, members: dict[str, msgspec.Raw], known: tuple[str, ...]) -> Contents:
    """Put the remaining members into `extra`."""
    for name in known:
        members.pop(name, None)
    if members:
        made.extra = _encode(members).decode()
    return made


def _listed(members: dict[str, msgspec.Raw], name: str) -> list[str] | None:
    """Take a member that is a string or a list of strings."""
    one = _taken(members, name, _text)
    return _taken(members, name, _texts) if one is None else [one]


def _problem(data: bytes | None) -> str | None:
    """Why bytes are not an envelope."""
    if data is None:
        return "the body was not journaled"
    if len(data) > BODY_BYTES_MAX:
        return f"the body has {len(data)} bytes and at most {BODY_BYTES_MAX} are read"
    refusal: Refusal | None
    try:
        data.decode()
        refusal = json_problem(data) or depth_problem(data, DEPTH_MAX)
        if refusal is None:
            _object.decode(data)
    except UnicodeDecodeError as error:
        return f"not UTF-8: {error.reason} at byte {error.start}"
    except (msgspec.DecodeError, ValueError, OverflowError) as error:
        return str(error)
    return None if refusal is None else refusal.message


def _taken(members: dict[str, msgspec.Raw], name: str, decoder: msgspec.json.Decoder[Any]) -> Any:
    """Take a member out if it has the right type; null counts as absent."""
    raw = members.get(name)
    if raw is None:
        return None
    try:
        value = None if bytes(raw) == b"null" else decoder.decode(raw)
    except msgspec.DecodeError:
        return None
    del members[name]
    return value


def _time_us(members: dict[str, msgspec.Raw]) -> int | None:
    """The producer's time; an invalid one stays in `extra`."""
    raw = members.get("ts")
    moment = _taken(members, "ts", _time)
    if raw is None or moment is None:
        return None
    time_us = int((moment - _EPOCH) // _MICROSECOND)
    if time_us in _TIMES_US:
        return time_us
    members["ts"] = raw
    return None


def _headers(members: dict[str, msgspec.Raw]) -> list[tuple[str, str | None]] | None:
    """Headers as text: strings as they are, other values as JSON."""
    headers: Mapping[str, msgspec.Raw] | None = _taken(members, "headers", _object)
    if headers is None:
        return None
    return [(name, _as_text(raw)) for name, raw in headers.items()]


def _as_text(raw: msgspec.Raw) -> str | None:
    data = bytes(raw)
    if data == b"null":
        return None
    return str(_text.decode(data)) if data.startswith(b'"') else data.decode()
