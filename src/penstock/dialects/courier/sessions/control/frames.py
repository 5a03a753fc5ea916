"""The frames of Control v1: what a client may send in one line of JSON.

Owns the decoding of a line into a typed frame, and the refusal of one that is not a frame. A frame whose operation HTTP has too extends the
HTTP request struct, so an operation takes the frame itself. Unknown fields are ignored, unlike in HTTP bodies. Cost: one decode.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any

import msgspec

from penstock.core.errors import Refusal
from penstock.dialects.courier.operations.enqueue import SendRequest
from penstock.dialects.courier.operations.queries import PeekRequest
from penstock.dialects.courier.operations.redrive_and_purge import DropRequest, RedriveRequest, StreamRequest
from penstock.dialects.courier.operations.settle import SettleRequest
from penstock.dialects.courier.operations.views import SnapshotQuery
from penstock.dialects.courier.sessions.pull import PullRequest
from penstock.dialects.courier.triggers.admin import TriggerOperation
from penstock.dialects.courier.wire.envelopes import path_of

ReqId = str | int | None


class _Frame(msgspec.Struct, tag_field="type", rename="camel", forbid_unknown_fields=False):
    """Marks a frame: its tag is the member `type`. It has no field, so a frame can also extend a request struct."""


class _OwnFrame(_Frame, kw_only=True):
    """A frame that extends no request struct."""

    req_id: ReqId = None


class HelloFrame(_OwnFrame, tag="hello"):
    version: str = "v1"
    features: list[str] = []
    token: str | None = None
    agent: str | None = None
    unordered: bool = False
    """Whether answers may come in another order than the requests, where several cells give them."""
    owners: bool = False
    """Whether the client wants to learn where the owners of the shards are, and when that changes."""


class EnqueueFrame(_OwnFrame, tag="enqueue"):
    to: str
    env: msgspec.Raw
    delay_ms: Annotated[int, msgspec.Meta(ge=0)] | None = None
    deliver_at: Annotated[datetime, msgspec.Meta(tz=True)] | None = None


class SendFrame(_Frame, SendRequest, tag="send"):
    kind: str = msgspec.field(name="kind")  # `type` is the tag here
    req_id: ReqId = None


class SubscribeFrame(_OwnFrame, tag="subscribe"):
    stream: str
    sub_id: str | None = None
    credit: int | None = None
    lease_ms: int | None = None
    batch: int = 1
    auto: int = 0
    expired: bool = False


class TapFrame(_Frame, StreamRequest, tag="tap"):
    req_id: ReqId = None


class UnsubscribeFrame(_OwnFrame, tag="unsubscribe"):
    sub_id: str | None = None


class GrantFrame(_OwnFrame, tag="grant"):
    n: int
    sub_id: str | None = None


class _Settling(_OwnFrame):
    id: str
    sub_id: str | None = None
    lease_id: str | None = None
    delay_ms: int | None = None
    backoff: bool = False
    requeue: bool = True
    reason: str | None = None
    ms: int | None = None

    def to_request(self) -> SettleRequest:
        """The request that HTTP has for it."""
        op = str(self.__struct_config__.tag)
        fields = self.delay_ms, self.reason, self.requeue, self.ms, self.backoff
        return SettleRequest(self.id, op, self.lease_id, None, *fields)


class AckFrame(_OwnFrame, tag="ack"):
    id: str | list[str]
    sub_id: str | None = None
    lease_id: str | None = None


class NackFrame(_Settling, tag="nack"): ...


class ReleaseFrame(_Settling, tag="release"): ...


class TermFrame(_Settling, tag="term"): ...


class ExtendFrame(_Settling, tag="extend"): ...


class PullFrame(_Frame, PullRequest, tag="pull"):
    wait_ms: int = msgspec.field(default=0, name="waitMs")  # HTTP has these two in snake case
    lease_ms: int | None = msgspec.field(default=None, name="leaseMs")
    req_id: ReqId = None


class SettleFrame(_Frame, SettleRequest, tag="settle"):
    req_id: ReqId = None


class StatsFrame(_Frame, StreamRequest, tag="stats"):
    req_id: ReqId = None


class MetricsFrame(_OwnFrame, tag="metrics"): ...


class PeekFrame(_Frame, PeekRequest, tag="peek"):
    req_id: ReqId = None


class WhereFrame(_OwnFrame, tag="where"):
    id: str


class ExplainFrame(_Frame, StreamRequest, tag="explain"):
    req_id: ReqId = None


class RedriveFrame(_Frame, RedriveRequest, tag="redrive"):
    req_id: ReqId = None


class PurgeFrame(_Frame, StreamRequest, tag="purge"):
    req_id: ReqId = None


class DropFrame(_Frame, DropRequest, tag="drop"):
    req_id: ReqId = None


class SnapshotFrame(_Frame, SnapshotQuery, tag="snapshot"):
    req_id: ReqId = None


class FollowFrame(_OwnFrame, tag="live"):
    view: str
    sub_id: str | None = None
    credit: int | None = None
    since: Annotated[int, msgspec.Meta(ge=0)] | None = None
    addr: str | None = None


class TriggerFrame(_Frame, TriggerOperation, tag="trigger"):
    req_id: ReqId = None


class SchemaListFrame(_OwnFrame, tag="schema.list"): ...


class SchemaValidateFrame(_OwnFrame, tag="schema.validate"):
    env: msgspec.Raw


class PingFrame(_OwnFrame, tag="ping"): ...


ControlFrame = (
    HelloFrame
    | EnqueueFrame
    | SendFrame
    | SubscribeFrame
    | TapFrame
    | UnsubscribeFrame
    | GrantFrame
    | AckFrame
    | NackFrame
    | ReleaseFrame
    | TermFrame
    | ExtendFrame
    | PullFrame
    | SettleFrame
    | StatsFrame
    | MetricsFrame
    | PeekFrame
    | WhereFrame
    | ExplainFrame
    | RedriveFrame
    | PurgeFrame
    | DropFrame
    | SnapshotFrame
    | TriggerFrame
    | SchemaListFrame
    | SchemaValidateFrame
    | FollowFrame
    | PingFrame
)

decode_frame = msgspec.json.Decoder(ControlFrame).decode
FRAME_NAMES = tuple(kind.__struct_config__.tag for kind in ControlFrame.__args__)


class Reference(msgspec.Struct, rename="camel"):
    """The part of a refused frame that its error must name."""

    req_id: msgspec.Raw = msgspec.Raw(b"null")
    type: msgspec.Raw = msgspec.Raw(b"null")


NAMED = ("hello", "enqueue")
"""Frames whose answers carry their name where no `reqId` was given."""


def req_id_of(frame: ControlFrame) -> str | int | None:
    """What an answer to this frame is called; None where it has no name."""
    name = str(frame.__struct_config__.tag)
    return name if frame.req_id is None and name in NAMED else frame.req_id


decode_reference = msgspec.json.Decoder(Reference).decode
_decode_req_id: Callable[[bytes], str | int] = msgspec.json.Decoder(str | int).decode


UNIDENTIFIED = Refusal("Unauthorized", "say hello with a token first")
FEATURES = ["credit", "extend", "release", "term", "pull", "peek", "delay", "dlq", "batch", "auto", "backoff"]
FEATURES += ["views", "live", "triggers", "tap", "partition"]


def hello_result(health: dict[str, Any]) -> dict[str, Any]:
    """What the answer to a `hello` says of the server."""
    server = f"penstock/{health['version']}"
    return {"version": "v1", "features": FEATURES, "server": server, "bootId": health["bootId"]}


FRAME_WEIGHT = 8
"""For how many enqueues or acks of a run a line counts that is refused, or that is another request."""
READ_WEIGHT, SEARCHED = 100, 16
"""The same for a read, which may list a thousand envelopes, or `STEP_BYTES` of an answer; subscriptions that are searched in the time of one."""
NUMBER_MAX = 64
"""Bytes of a `reqId` that is a number: to decode a longer one would cost too much."""
HEAD_MAX = 1024
"""Bytes at each end of a broken line in which its `reqId` is looked for."""
LENIENT_MAX = 64 * 1024
"""Bytes of a broken line that is read as a whole: a longer one would hold the loop."""

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
"""The escape of a surrogate. Half of a pair is grammatical JSON, and no text."""
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]]')
_VALUE = re.compile(rb'\s*:\s*("(?:[^"\\]|\\.)*"|-?[0-9]{1,18})(?=[\s,}])')
_LAST = re.compile(rb'[,{]\s*"reqId"\s*:\s*("(?:[^"\\]|\\.)*"|-?[0-9]{1,18})\s*}\s*\Z')


def reference_of(line: bytes) -> Reference | None:
    """What can be read of the request in a line that is no frame: leniently as a whole, else from its ends."""
    for text in (line, _SURROGATE.sub(rb"\\ufffd", line) if len(line) <= LENIENT_MAX else line[:0]):
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return decode_reference(text)
    return scan_reference(line, is_whole=True)


def scan_reference(line: bytes, *, is_whole: bool) -> Reference | None:
    """Find the members `reqId` and `type` of the object itself, never of one inside it: that is a user's payload."""
    found = {b'"reqId"': b"null", b'"type"': b"null"}
    depth = 0
    head = line[:HEAD_MAX]
    if head.lstrip()[:1] != b"{":
        return None
    for token in _TOKEN.finditer(head):
        text = token.group()
        depth += (text in b"{[") - (text in b"}]")
        if depth == 1 and text in found and (value := _VALUE.match(head, token.end())):
            found[text] = value.group(1)
    if is_whole and found[b'"reqId"'] == b"null" and (last := _LAST.search(line[-HEAD_MAX:])):
        found[b'"reqId"'] = last.group(1)
    if not any(value != b"null" for value in found.values()):
        return None
    try:
        return decode_reference((b'{"reqId":%b,"type":%b}' % (found[b'"reqId"'], found[b'"type"'])).decode())
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def name_of(reference: Reference | None) -> str | int | None:
    """What an answer to a refused frame is called."""
    if reference is None:
        return None
    raw = bytes(reference.req_id)
    if raw[:1] == b'"' or (len(raw) <= NUMBER_MAX and raw[:1] in b"-0123456789"):
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            return _decode_req_id(raw)
    return next((name for name in NAMED if bytes(reference.type) == b'"%b"' % name.encode()), None)


def refusal_of(line: bytes, error: Exception) -> tuple[Reference | None, Refusal]:
    """What is wrong with a line that could not be read as a frame, and what can be read of its request."""
    reference = reference_of(line)
    if reference is None or not isinstance(error, msgspec.ValidationError):
        return reference, Refusal("InvalidJSON", f"not a JSON object: {error}")
    path = path_of(error)
    if path == "type" or bytes(reference.type) == b"null":
        name = bytes(reference.type).decode(errors="replace")[:64]
        known = ", ".join(map(str, FRAME_NAMES))
        return reference, Refusal("UnknownOp", f"no operation {name}", hint=f"operations: {known}")
    message = str(error)
    code = "InvalidCredit" if path in ("n", "credit") else "InvalidRequest"
    return reference, Refusal(code, message[:1].lower() + message[1:])
