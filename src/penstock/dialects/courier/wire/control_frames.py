"""Control v1 frames: what a client may say in one line."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec

from penstock.core.errors import Refusal
from penstock.dialects.courier.triggers.config import Trigger

ReqId = str | int | None


class _Frame(msgspec.Struct, tag_field="type", rename="camel"):
    """What every frame may carry."""


class HelloFrame(_Frame, tag="hello"):
    version: str = "v1"
    features: list[str] = []
    token: str | None = None
    req_id: ReqId = None


class EnqueueFrame(_Frame, tag="enqueue"):
    to: str
    env: msgspec.Raw
    req_id: ReqId = None
    delay_ms: Annotated[int, msgspec.Meta(ge=0)] | None = None
    deliver_at: Annotated[datetime, msgspec.Meta(tz=True)] | None = None


class SendFrame(_Frame, tag="send"):
    to: str
    kind: str
    payload: msgspec.Raw
    from_: str | None = msgspec.field(default=None, name="from")
    id: str | None = None
    corr: str | None = None
    refs: list[str] | None = None
    tags: list[str] | None = None
    headers: dict[str, str | int | float | bool | None] | None = None
    delay_ms: Annotated[int, msgspec.Meta(ge=0)] | None = None
    schema: str | None = None
    req_id: ReqId = None


class SubscribeFrame(_Frame, tag="subscribe"):
    stream: str
    sub_id: str | None = None
    credit: int | None = None
    lease_ms: int | None = None
    batch: int = 1
    auto: int = 0
    expired: bool = False
    req_id: ReqId = None


class TapFrame(_Frame, tag="tap"):
    stream: str
    req_id: ReqId = None


class UnsubscribeFrame(_Frame, tag="unsubscribe"):
    sub_id: str | None = None
    req_id: ReqId = None


class GrantFrame(_Frame, tag="grant"):
    n: int
    sub_id: str | None = None
    req_id: ReqId = None


class _Settling(_Frame):
    id: str
    sub_id: str | None = None
    lease_id: str | None = None
    delay_ms: int | None = None
    requeue: bool = True
    reason: str | None = None
    ms: int | None = None
    req_id: ReqId = None


class AckFrame(_Frame, tag="ack"):
    id: str | list[str]
    sub_id: str | None = None
    lease_id: str | None = None
    req_id: ReqId = None


class NackFrame(_Settling, tag="nack"):
    pass


class ReleaseFrame(_Settling, tag="release"):
    pass


class TermFrame(_Settling, tag="term"):
    pass


class ExtendFrame(_Settling, tag="extend"):
    pass


class PullFrame(_Frame, tag="pull"):
    stream: str
    max: int = 1
    wait_ms: int = 0
    lease_ms: int | None = None
    req_id: ReqId = None


class SettleFrame(_Frame, tag="settle"):
    id: str
    op: str
    lease_id: str | None = None
    stream: str | None = None
    delay_ms: int | None = None
    reason: str | None = None
    requeue: bool = True
    ms: int | None = None
    req_id: ReqId = None


class StatsFrame(_Frame, tag="stats"):
    stream: str
    req_id: ReqId = None


class MetricsFrame(_Frame, tag="metrics"):
    req_id: ReqId = None


class PeekFrame(_Frame, tag="peek"):
    stream: str
    state: str = "ready"
    max: int = 10
    req_id: ReqId = None


class WhereFrame(_Frame, tag="where"):
    id: str
    req_id: ReqId = None


class ExplainFrame(_Frame, tag="explain"):
    stream: str
    req_id: ReqId = None


class RedriveFrame(_Frame, tag="redrive"):
    stream: str
    max: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 1_000
    req_id: ReqId = None


class SnapshotFrame(_Frame, tag="snapshot"):
    view: str
    addr: str | None = None
    req_id: ReqId = None


class LiveFrame(_Frame, tag="live"):
    view: str
    sub_id: str | None = None
    credit: int | None = None
    since: Annotated[int, msgspec.Meta(ge=0)] | None = None
    addr: str | None = None
    req_id: ReqId = None


class TriggerFrame(_Frame, tag="trigger"):
    """Look at triggers and change them: `op` is one of `ls show explain put remove try`."""

    op: str = "ls"
    id: str = ""
    rule: Trigger | None = None
    to: str = ""
    env: msgspec.Raw = msgspec.Raw(b"null")
    req_id: ReqId = None


class SchemaListFrame(_Frame, tag="schema.list"):
    req_id: ReqId = None


class SchemaValidateFrame(_Frame, tag="schema.validate"):
    env: msgspec.Raw
    req_id: ReqId = None


class PingFrame(_Frame, tag="ping"):
    req_id: ReqId = None


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
    | SnapshotFrame
    | TriggerFrame
    | SchemaListFrame
    | SchemaValidateFrame
    | LiveFrame
    | PingFrame
)

decode_frame = msgspec.json.Decoder(ControlFrame).decode
FRAME_NAMES = tuple(kind.__struct_config__.tag for kind in ControlFrame.__args__)


class Reference(msgspec.Struct, rename="camel"):
    """The part of a refused frame that its error must name."""

    req_id: Any = None
    type: msgspec.Raw = msgspec.Raw(b"null")


NAMED = ("hello", "enqueue")
"""Frames whose answers carry their name where no `reqId` was given."""


def req_id_of(frame: ControlFrame) -> str | int | None:
    """What an answer to this frame is called; None where it has no name."""
    name = str(frame.__struct_config__.tag)
    return name if frame.req_id is None and name in NAMED else frame.req_id


decode_reference = msgspec.json.Decoder(Reference).decode


def refusal_of(line: bytes, error: Exception) -> tuple[str | int | None, Refusal]:
    """What is wrong with a line that could not be read as a frame, and the request it belongs to."""
    try:
        reference = decode_reference(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None, Refusal("InvalidJSON", f"not a JSON object: {error}")
    req_id = reference.req_id if isinstance(reference.req_id, str | int) else None
    if req_id is None:
        req_id = next((name for name in NAMED if bytes(reference.type) == b'"%b"' % name.encode()), None)
    message = str(error)
    if message.endswith("`$.type`") or "field `type`" in message:
        name = bytes(reference.type).decode(errors="replace")[:64]
        known = ", ".join(map(str, FRAME_NAMES))
        return req_id, Refusal("UnknownOp", f"no operation {name}", hint=f"operations: {known}")
    code = "InvalidCredit" if "`$.n`" in message or "`$.credit`" in message else "InvalidRequest"
    return req_id, Refusal(code, message[:1].lower() + message[1:])
