"""MEW envelopes: decode, check, complete and encode.

The members that a participant wrote pass unchanged except for spaces. The gateway only completes or corrects what it is responsible for:
`protocol`, `id`, `ts` and `from` come first, and a scalar `correlation_id` becomes a list. A payload is decoded only if the gateway acts
on it: JSON allows numbers that no program can hold, and some that are slow to parse.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import msgspec

from penstock.core import json_checks
from penstock.core.clock import Now, rfc3339
from penstock.core.json_checks import cost_steps, depth_problem, outside_strings, range_steps
from penstock.core.limits import Limits
from penstock.core.steps import Steps
from penstock.dialects.mew.gateway_messages import PROTOCOL, PROTOCOLS, MewRefusal

SLACK = 64 * 1024
"""Bytes of spaces and names that an envelope may have beyond its limit, which counts its members only."""
STRINGS_MAX = 100_000
"""Strings of a message, keys included: a closer look at the numbers between them costs about 0.1 µs each."""
NAMES_MAX = 10_000
"""Items of `to` and of `correlation_id`."""
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items = msgspec.json.Decoder(list[msgspec.Raw])
_string = msgspec.json.Decoder(str)
_encode = msgspec.json.encode
_NULL = b"null"
_NOTHING = (_NULL, b"false", b"0", b'""', b"[]", b"{}")
_SPACES = (b" ", b"\n", b"\r", b"\t")


class Envelope(msgspec.Struct):
    """An envelope as its sender wrote it, with its members undecoded."""

    fields: dict[str, msgspec.Raw]
    kind: str
    id: str
    sender: str | None
    """The value of `from`."""
    corr: str | None
    """The first correlation id."""
    cause: str | None = None
    """The id that its sender gave, if any; errors refer to it."""
    _payload: Any = msgspec.UNSET

    @property
    def raw_payload(self) -> bytes | None:
        raw = self.fields.get("payload")
        return None if raw is None else bytes(raw)

    @property
    def is_readable(self) -> bool:
        """Whether the payload can be decoded; it may have too many values."""
        try:
            return self.payload is not None
        except msgspec.DecodeError:
            return False

    @property
    def payload(self) -> dict[str, Any]:
        """The decoded payload; empty if it is not an object. Call only if `is_readable`."""
        if self._payload is msgspec.UNSET:
            raw = self.fields.get("payload")
            value = None if raw is None else json_checks.decode(bytes(raw))
            self._payload = value if isinstance(value, dict) else {}
        found: dict[str, Any] = self._payload
        return found

    def text(self, name: str) -> str | None:
        """A member of the payload that is a non-empty text."""
        value = self.payload.get(name)
        return value if isinstance(value, str) and value else None

    @property
    def correlations(self) -> list[str]:
        raw = self.fields.get("correlation_id")
        return [] if raw is None or bytes(raw) == _NULL else strings(raw)

    @property
    def to(self) -> msgspec.Raw | None:
        """The list `to`, if it has one. It is a label: all participants get the envelope."""
        raw = self.fields.get("to")
        return raw if raw is not None and bytes(raw).startswith(b"[") and bytes(raw) != b"[]" else None

    @property
    def size(self) -> int:
        """Bytes of its members."""
        return sum(len(bytes(raw)) for raw in self.fields.values())

    def put(self, name: str, value: object) -> None:
        """Set a member."""
        self.fields[name] = msgspec.Raw(_encode(value))
        if name == "payload":
            self._payload = value

    def encode(self) -> bytes:
        """The envelope as all participants get it."""
        fields = self.fields
        head = {name: fields[name] for name in ("protocol", "id", "ts", "from")}
        return _encode(head | fields)


Fields = dict[str, msgspec.Raw]
"""The undecoded members of a JSON object."""


def read_object(data: bytes, limits: Limits) -> Fields | MewRefusal:
    """A JSON object, checked at once."""
    return Steps(read_steps(data, limits)).all()


def read_steps(data: bytes, limits: Limits) -> Generator[None, None, Fields | MewRefusal]:
    """A JSON object without spaces between its members, checked in steps. One that is too large is split, and checked no further."""
    is_refused = len(data) > limits.space_envelope_max + SLACK
    try:
        if not data.isascii():
            data.decode()
        if is_refused:
            return _fields.decode(data)
        if any(space in data for space in _SPACES):
            data = msgspec.json.format(data, indent=-1)
            yield
        if data.count(b'"') - data.count(b'\\"') > 2 * STRINGS_MAX:
            return MewRefusal.processing(f"the message has more than {STRINGS_MAX} strings")
        yield
        problem = yield from cost_steps(data)
        if problem is None:
            yield
            problem = depth_problem(data, limits.depth_max)
        if problem is not None:
            return MewRefusal.processing(problem.message)
        yield
        fields = _fields.decode(data)
        yield
        problem = yield from range_steps(data)
        yield
        return fields if problem is None else MewRefusal.processing(problem.message)
    except msgspec.ValidationError:
        return MewRefusal.validation("Message must be an object")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if is_refused:
            bound = f"`limits.space_envelope_max` allows {limits.space_envelope_max}"
            return MewRefusal("too_large", f"the message has {len(data)} bytes and {bound}", status=413)
        return MewRefusal.processing(f"the message is not JSON: {error}"[:300])


def read_envelope(
    fields: dict[str, msgspec.Raw], limits: Limits, now: Now, *, fresh_id: str, strict: bool
) -> Envelope | MewRefusal:
    """Check an envelope and add what is missing, except `from`; `strict` also checks payloads of `chat` and `mcp/request`."""
    protocol = text_of(fields, "protocol")
    if not protocol and _is_empty(fields, "protocol"):
        fields["protocol"] = msgspec.Raw(_encode(PROTOCOL))
    elif protocol not in PROTOCOLS:
        shown = bytes(fields["protocol"])[:60].decode(errors="replace") if protocol is None else protocol[:60]
        return MewRefusal.validation(f"Invalid protocol version: {shown}", text_of(fields, "id"))
    id_ = given = text_of(fields, "id") or None
    if id_ is None:
        if not _is_empty(fields, "id"):
            return MewRefusal.validation("Message id must be a string")
        id_ = fresh_id
        fields["id"] = msgspec.Raw(_encode(id_))
    if len(id_) > limits.id_max:
        return MewRefusal.validation(f"Message id is longer than {limits.id_max} characters")
    kind = text_of(fields, "kind")
    if not kind:
        return MewRefusal.validation("Message kind is required", given)
    if len(kind) > limits.type_max:
        return MewRefusal.validation(f"Message kind is longer than {limits.type_max} characters", given)
    if not text_of(fields, "ts"):
        fields["ts"] = msgspec.Raw(_encode(rfc3339(now.wall_us)))
    for name in ("to", "correlation_id"):
        items = bytes(fields.get(name, b""))
        if items.count(b",") >= NAMES_MAX and outside_strings(items).count(b",") >= NAMES_MAX:
            return MewRefusal.validation(f"Message {name} has more than {NAMES_MAX} items", given)
    sender = text_of(fields, "from")
    if sender is None and not _is_empty(fields, "from"):
        return MewRefusal.validation("Message from must be a string", given)
    corr = _correlation(fields)
    envelope = Envelope(fields, kind, id_, sender, corr, given)
    if strict and kind == "chat" and not _has(fields, "text"):
        return MewRefusal.validation("Chat message requires payload.text", given)
    if strict and kind == "mcp/request" and not _has(fields, "method"):
        return MewRefusal.validation("MCP request requires payload.method", given)
    return envelope


def text_of(fields: dict[str, msgspec.Raw], name: str) -> str | None:
    """A member that is a text."""
    raw = fields.get(name)
    return None if raw is None or not bytes(raw).startswith(b'"') else _string.decode(raw)


def members_of(fields: dict[str, msgspec.Raw], name: str) -> dict[str, msgspec.Raw]:
    """The undecoded members of a member that is an object."""
    raw = fields.get(name)
    return {} if raw is None or not bytes(raw).startswith(b"{") else _fields.decode(raw)


def strings(raw: msgspec.Raw) -> list[str]:
    """The texts in a list."""
    return [_string.decode(each) for each in _items.decode(raw) if bytes(each).startswith(b'"')]


def _has(fields: dict[str, msgspec.Raw], name: str) -> bool:
    """Whether the payload has a non-empty member of this name."""
    return bytes(members_of(fields, "payload").get(name, _NULL)) not in _NOTHING


def _is_empty(fields: dict[str, msgspec.Raw], name: str) -> bool:
    """Whether a member is missing, null or an empty text."""
    raw = fields.get(name)
    return raw is None or bytes(raw) in (_NULL, b'""')


def _correlation(fields: dict[str, msgspec.Raw]) -> str | None:
    """Turn `correlation_id` into a list, and return its first item."""
    raw = fields.get("correlation_id")
    if raw is None or bytes(raw) == _NULL:
        return None
    if not bytes(raw).startswith(b"["):
        raw = fields["correlation_id"] = msgspec.Raw(b"[" + bytes(raw) + b"]")
    first = _items.decode(raw)[:1]
    return _string.decode(first[0]) if first and bytes(first[0]).startswith(b'"') else None
