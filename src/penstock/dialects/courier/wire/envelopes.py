"""Courier envelopes: from bytes to a checked record, and the few changes that the server makes to their bytes.

A consumer gets the bytes that the producer sent, except that a missing `to` or `from` is filled in. Payloads are checked for
well-formedness and never re-encoded. Cost of `parse`: about two decodes of the envelope.

Streams that are `partitioned` or have `priority` also read the partition key and the priority, others never do. Both are read from the
envelope's bytes, so a restart, a redrive and a staged batch find the same values as the enqueue. Cost: one decode.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from datetime import datetime
from typing import Annotated, Any

import msgspec

from penstock.core.clock import rfc3339
from penstock.core.errors import Refusal
from penstock.core.json_checks import cost_steps, decode_any, depth_problem, outside_strings, plain_depth
from penstock.core.limits import Limits
from penstock.core.queue.ready_order import LEVELS, NORMAL
from penstock.core.queue.state import Cause
from penstock.core.records import Record, shared
from penstock.core.scopes import Principal

DEAD_HEADER = "x-courier"
"""The header of a dead letter that says why it is one."""

NAMED_MAX = 64 * 1024
"""Bytes of JSON in which an error names a repeated key: the search costs five times the check."""

HEADS_MAX = 16
"""Envelopes that are decoded in one call. With more, the test that none of them can be nested too deep would fail for common ones."""

_Scalar = str | int | float | bool | None


class _Head(msgspec.Struct, rename={"from_": "from"}):
    """The fields we read; everything else stays in the bytes."""

    id: str
    ts: Annotated[datetime, msgspec.Meta(tz=True)]
    type: str
    payload: msgspec.Raw
    to: str | msgspec.UnsetType = msgspec.UNSET
    from_: str | msgspec.UnsetType | None = msgspec.UNSET
    corr: str | None = None
    schema: str | None = None
    version: int | None = None
    refs: list[str] | None = None
    tags: list[str] | None = None
    headers: dict[str, _Scalar] | None = None


_head = msgspec.json.Decoder(_Head)
_heads = msgspec.json.Decoder(list[_Head])
_encode = msgspec.json.encode
_raw_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


_BREAKS = bytes.maketrans(b"\r\n", b"  ")


def flat(data: bytes) -> bytes:
    """JSON in one line. Line ends can only stand between tokens, where a space is equivalent."""
    return data.translate(_BREAKS) if b"\n" in data or b"\r" in data else data


def inbox(to: str) -> str:
    """The stream of a short address."""
    return to if "/" in to else f"agents/{to}/inbox"


def json_problem(data: bytes) -> Refusal | None:
    """Why the JSON of a whole request is rejected: malformed, a number out of range, or a key given twice."""
    return None if plain_depth(data) >= 0 else decoded_json_problem(data)


def decoded_json_problem(data: bytes) -> Refusal | None:
    """The same for any JSON, without the scanner in C."""
    try:
        value = decode_any(data)
    except _MALFORMED as error:
        return _malformed(error)
    again = _again(value)
    return None if again == data else _changed(data, again)


def json_steps(data: bytes) -> Generator[None, None, Refusal | None]:
    """The checks of `json_problem` and those of its cost, one after the other."""
    problem = yield from cost_steps(data)
    if problem is not None:
        return problem
    yield
    try:
        value = decode_any(data)
    except _MALFORMED as error:
        return _malformed(error)
    yield
    again = _again(value)
    del value
    yield
    return _changed(data, again)


_OUT_OF_RANGE = Refusal("InvalidJSON", "a number is out of range", hint="write large numbers as strings")
_MALFORMED = (RecursionError, msgspec.DecodeError, UnicodeDecodeError)


def _malformed(error: Exception) -> Refusal:
    return Refusal("InvalidJSON", "nested far too deep" if isinstance(error, RecursionError) else _sentence(error))


def _again(value: Any) -> bytes | None:
    """JSON of a value. A repeated key is gone, and with it its colon; a number out of range is null, or there is no JSON."""
    try:
        return _encode(value)
    except (OverflowError, ValueError, TypeError):  # an integer that our encoder does not take
        try:
            return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        except ValueError:
            return None


def _changed(data: bytes, again: bytes | None) -> Refusal | None:
    """Why JSON that was decoded and encoded again is not the same, except for spaces and how a value is written."""
    if again == data:
        return None
    if again is None:
        return _OUT_OF_RANGE
    given, kept = (data, again) if b"\\" not in data else (outside_strings(data), outside_strings(again))
    if given.count(b":") != kept.count(b":"):
        return _repeated_key(data) if len(data) <= NAMED_MAX else Refusal("InvalidJSON", "a key is given twice")
    if given.count(b"null") != kept.count(b"null"):
        return _OUT_OF_RANGE
    return None


class _RepeatedKeyError(Exception):
    pass


def _pairs(pairs: list[tuple[str, Any]]) -> None:
    seen: dict[str, None] = {}
    for key, _ in pairs:
        if key in seen:
            raise _RepeatedKeyError(key)
        seen[key] = None


def _repeated_key(data: bytes) -> Refusal | None:
    try:
        json.loads(data, object_pairs_hook=_pairs)
    except _RepeatedKeyError as error:
        return Refusal("InvalidJSON", f"key `{error}` is given twice", ref=str(error))
    except RecursionError:
        return Refusal("InvalidJSON", "nested far too deep")
    except ValueError as error:
        return Refusal("InvalidJSON", str(error))
    return None


def _sentence(error: Exception) -> str:
    text = str(error)
    return text if text[:4] == "JSON" else text[:1].lower() + text[1:]


def to_refusal(error: msgspec.ValidationError, code: str = "InvalidRequest") -> Refusal:
    """The refusal of a value that has the wrong type, with its field."""
    text = str(error)
    missing = text.split("`")[1] if "field `" in text else None
    return Refusal(code, _sentence(error), ref=path_of(error) or missing)


def path_of(error: Exception) -> str | None:
    """The path of the wrong value. msgspec gives it only at the end of its message, as `$.path`."""
    return str(error).rsplit("`$.", 1)[1].rstrip("`") if "`$." in str(error) else None


def parse(
    raw: bytes, to: str, principal: Principal, limits: Limits, fresh_id: str | None = None, *, is_checked: bool = False
) -> Record | Refusal:
    """A record of the envelope in `raw`, to `to`, from `principal`. Its request has passed `json_problem`, or all of `check_request`."""
    if len(raw) > limits.envelope_max:
        return too_large(raw, limits)
    try:
        head = _head.decode(raw)
    except msgspec.ValidationError as error:
        if fresh_id is not None and _lacks_id(raw):
            return parse(_insert(raw, b'"id":' + _encode(fresh_id)), to, principal, limits, is_checked=is_checked)
        return to_refusal(error, "InvalidEnvelope")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return Refusal("InvalidJSON", _sentence(error))
    if not is_checked and (problem := depth_problem(raw, limits.depth_max)) is not None:
        return problem
    return _to_record(head, raw, to, principal, limits)


def parse_all(
    raws: list[bytes], to: str, principal: Principal, limits: Limits, *, is_checked: bool = False
) -> list[Record] | None:
    """The records of several envelopes, for half of what `parse` costs; None if one of them is refused, or lacks an id."""
    records: list[Record] = []
    id_max, kind, sender = limits.id_max, "", None
    for start in range(0, len(raws), HEADS_MAX):
        part = raws[start : start + HEADS_MAX]
        joined = b"[%b]" % b",".join(part)
        try:
            heads = _heads.decode(joined)
        except _MALFORMED:
            return None
        if max(map(len, part)) > limits.envelope_max:
            return None
        # Each of the others has at least one of the brackets, and one is ours: with the rest, none may be too deep.
        is_shallow = is_checked or joined.count(b"{") + joined.count(b"[") - len(part) <= limits.depth_max
        if not is_shallow and any(depth_problem(raw, limits.depth_max) for raw in part):
            return None
        for raw, head in zip(part, heads, strict=True):
            if kind and head.type == kind and head.from_ == sender and head.to == to and 0 < len(head.id) <= id_max:
                records.append(Record(head.id, kind, raw, sender, head.corr))
                continue
            record = _to_record(head, raw, to, principal, limits)
            if isinstance(record, Refusal):
                return None
            records.append(record)
            kind, sender = record.kind, record.sender  # the same in the next ones: then they are accepted too
    return records


def _to_record(head: _Head, raw: bytes, to: str, principal: Principal, limits: Limits) -> Record | Refusal:
    if not 0 < len(head.id) <= limits.id_max:
        return _bad_length("id", limits.id_max)
    if not 0 < len(head.type) <= limits.type_max:
        return _bad_length("type", limits.type_max)
    added = b""
    if head.to is msgspec.UNSET:
        added = b'"to":' + _encode(to)
    elif head.to != to:
        return Refusal("AddressMismatch", f"the envelope says `{head.to}` and the request `{to}`", ref=head.id)
    sender = head.from_
    if sender is msgspec.UNSET or sender is None:
        sender = principal.agent
        if sender is not None and head.from_ is msgspec.UNSET:
            added += (b"," if added else b"") + b'"from":' + _encode(sender)
        elif sender is not None:
            return Refusal("InvalidEnvelope", "`from` is null; leave it out to have it filled", ref="from")
    elif not principal.vouches(sender):
        return _foreign_sender(principal, sender, head.id)
    body = _insert(raw, added) if added else raw
    return Record(head.id, shared(head.type), body, shared(sender) if sender else None, head.corr)


def compose(envelope: dict[str, Any], principal: Principal, limits: Limits) -> Record | Refusal:
    """A record of an envelope that the server writes itself: the checks of `parse`, without decoding again."""
    raw = _encode(envelope)
    if len(raw) > limits.envelope_max:
        return too_large(raw, limits)
    if (problem := depth_problem(raw, limits.depth_max)) is not None:
        return problem
    id_, kind, sender = envelope["id"], envelope["type"], envelope["from"]
    if not 0 < len(id_) <= limits.id_max:
        return _bad_length("id", limits.id_max)
    if not 0 < len(kind) <= limits.type_max:
        return _bad_length("type", limits.type_max)
    if not principal.vouches(sender):
        return _foreign_sender(principal, sender, id_)
    return Record(id_, shared(kind), raw, shared(sender) if sender else None, envelope.get("corr"))


def too_large(raw: bytes, limits: Limits) -> Refusal:
    message = f"the envelope has {len(raw)} bytes and at most {limits.envelope_max} are allowed"
    return Refusal("TooLarge", message)


def _bad_length(field: str, limit: int) -> Refusal:
    return Refusal("InvalidEnvelope", f"`{field}` has 1 to {limit} characters", ref=field)


def _foreign_sender(principal: Principal, sender: str, id_: str) -> Refusal:
    if principal.agent is None:
        message = f"`{sender.partition('/')[0]}/` in `from` is reserved for the server"
        return Refusal("Forbidden", message, ref=id_, hint="name another sender, or leave `from` out")
    message = f"this token speaks for `{principal.agent}`, not for `{sender}`"
    return Refusal("Forbidden", message, ref=id_, hint="leave `from` out to have it filled")


def _lacks_id(raw: bytes) -> bool:
    try:
        return "id" not in _raw_object.decode(raw)
    except msgspec.ValidationError:  # not an object
        return False


def _insert(raw: bytes, members: bytes) -> bytes:
    """The same object with members inserted before its first one."""
    start = raw.index(b"{") + 1
    comma = b"" if raw[start:].lstrip().startswith(b"}") else b","
    return raw[:start] + members + comma + raw[start:]


def bury(body: bytes, cause: Cause) -> bytes:
    """The envelope of a dead letter: the same with a header that says why it died."""
    envelope = _raw_object.decode(body)
    headers = _headers(envelope)
    headers[DEAD_HEADER] = msgspec.Raw(
        _encode(
            {
                "reason": cause.reason,
                "stream": cause.stream,
                "attempts": cause.attempts,
                "firstTs": rfc3339(cause.first_wall_us) if cause.first_wall_us else None,
                "lastError": cause.error,
            }
        )
    )
    envelope["headers"] = msgspec.Raw(_encode(headers))
    return _encode(envelope)


def revive(body: bytes) -> bytes:
    """The envelope of a dead letter without that header."""
    envelope = _raw_object.decode(body)
    headers = _headers(envelope)
    headers.pop(DEAD_HEADER, None)
    if headers:
        envelope["headers"] = msgspec.Raw(_encode(headers))
    else:
        envelope.pop("headers", None)
    return _encode(envelope)


def _headers(envelope: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    raw = envelope.get("headers")
    return {} if raw is None or bytes(raw) == b"null" else _raw_object.decode(raw)


KEY_MAX = 256
"""Characters of a partition key."""
KEY_FIELD = "partitionKey"
NAMED = {"high": 8, "normal": NORMAL, "low": 2}
"""The levels with a name."""


class _Sorted(msgspec.Struct, rename="camel"):
    """The fields that streams sort by."""

    partition_key: Any = None
    headers: dict[str, Any] | None = None


_sorted = msgspec.json.Decoder(_Sorted)


def partition_key(body: bytes) -> str | Refusal | None:
    """The envelope's `partitionKey`, else that of its headers; None when it has neither."""
    found = _sorted.decode(body)
    key, where = found.partition_key, KEY_FIELD
    if key is None and found.headers:
        key, where = found.headers.get(KEY_FIELD), f"headers.{KEY_FIELD}"
    if key is None:
        return None
    if isinstance(key, str) and 0 < len(key) <= KEY_MAX:
        return key
    message = f"`{where}` is a text of 1 to {KEY_MAX} characters"
    hint = "write a number as a text, or leave the key out of an envelope that has none"
    return Refusal("InvalidEnvelope", message, ref=where, hint=hint)


def priority(body: bytes) -> int:
    """The level of `headers.priority`: a name, or 0 to 9 as a number or a text. Any other value is normal."""
    headers = _sorted.decode(body).headers
    asked = headers.get("priority") if headers else None
    if isinstance(asked, str):
        if len(asked) == 1 and asked.isascii() and asked.isdigit():
            return int(asked)
        return NAMED.get(asked, NORMAL)
    if isinstance(asked, int) and not isinstance(asked, bool) and 0 <= asked < LEVELS:
        return asked
    return NORMAL
