"""The frames of Control v1 as the client decodes them, and the values it makes of their results.

The camelCase of the wire stays in this module. Envelopes stay raw bytes until the application reads them, so a payload that is only
passed on is never decoded.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct

from penstock.core.cluster.status import OwnerMap
from penstock.core.errors import TABLE, PenstockError, Refusal
from penstock.core.json_checks import nonfinite_problem

EMPTY = Raw(b"{}")


class Ok(Struct, tag="ok", tag_field="type", rename="camel"):
    """The answer to a request."""

    req_id: str
    result: Raw = EMPTY


class Error(Struct, tag="error", tag_field="type", rename="camel"):
    """An error; `req_id` is `req` when it does not answer a request."""

    code: str
    req_id: str = "req"
    detail: str = ""
    hint: str | None = None
    ref: str | None = None
    retry_after_ms: int | None = None

    def exception(self) -> PenstockError:
        """The error to raise; a code that this client does not know becomes `Internal`."""
        code, text = (self.code, self.detail) if self.code in TABLE else ("Internal", f"{self.code}: {self.detail}")
        return PenstockError(Refusal(code, text, ref=self.ref, hint=self.hint, retry_after_ms=self.retry_after_ms))


class DeliverFrame(Struct, tag="deliver", tag_field="type", rename="camel"):
    """One envelope, or arrays of them for a subscription with `batch` above 1."""

    env: Raw
    seq: int | list[int]
    attempt: int | list[int]
    lease_id: str | list[str]
    sub_id: str = ""
    stream: str = ""
    lease_expires_at: int | None = None


class ExpiredFrame(Struct, tag="expired", tag_field="type", rename="camel"):
    """A lease expired."""

    id: str
    lease_id: str = ""
    sub_id: str = ""
    stream: str = ""


class Delta(Struct):
    """One change of a view, or one row of its snapshot."""

    addr: str
    op: Literal["add", "update", "remove"] = "add"
    env: dict[str, Any] | None = None
    row: dict[str, Any] | None = None
    version: int = 0
    prev: int = 0


class Table(Struct):
    """A view as a whole."""

    rows: list[Delta]
    watermark: int


class LiveFrame(Struct, tag="live", tag_field="type", rename="camel"):
    """A message to the follower of a view."""

    sub_id: str
    snapshot: Table | None = None
    delta: Delta | None = None


class OwnersFrame(Struct, tag="owners", tag_field="type", rename="camel"):
    """The shards of a cluster have other owners."""

    owners: OwnerMap


Frame = Ok | Error | DeliverFrame | ExpiredFrame | LiveFrame | OwnersFrame

decode_frame = msgspec.json.Decoder(Frame).decode
decode_bodies = msgspec.json.Decoder(list[Raw]).decode


class Head(Struct):
    """The fields of an envelope that the client itself needs; its payload stays raw."""

    id: str
    corr: str | None = None
    type: str = ""
    sender: str | None = msgspec.field(default=None, name="from")
    payload: Raw = Raw(b"null")


class PulledRow(Struct, rename="camel"):
    """One delivery of a pull."""

    deliver: Raw
    stream: str
    seq: int
    attempt: int
    lease_id: str
    lease_expires_at: int


class PullResult(Struct):
    deliveries: list[PulledRow]


class ServerHello(Struct, frozen=True, rename="camel"):
    """The server's answer to a hello: its version and features."""

    version: str = "v1"
    features: list[str] = []
    server: str | dict[str, Any] = ""
    boot_id: str = ""
    owners: OwnerMap | None = None
    """Where the owners of the shards are, if the server is a node of a cluster."""


class Receipt(Struct, frozen=True):
    """The result of an enqueue, in the order of the request."""

    ids: list[str]
    seqs: list[int]
    duplicates: list[str] = []
    """The ids that were already stored; their `seqs` are the original ones."""

    @property
    def id(self) -> str:
        """The id of the first envelope."""
        return self.ids[0]

    @property
    def seq(self) -> int:
        """The number of the first envelope in its stream."""
        return self.seqs[0]

    @property
    def duplicate(self) -> bool:
        """Whether the first envelope was stored before."""
        return self.ids[0] in self.duplicates


class SingleReceipt(Struct):
    id: str
    seq: int
    duplicate: bool = False


class Recipient(Struct, frozen=True):
    """The recipient of a send: whether its inbox was ever used, and whether a consumer is listening now."""

    known: bool
    present: bool


class Sent(Struct, frozen=True):
    """The result of a send: the stored envelope, and whether the recipient is listening."""

    id: str
    seq: int
    to: str
    recipient: Recipient | None = None


class Settled(Struct, frozen=True, rename="camel"):
    """The outcome of a settle by id."""

    id: str
    op: str = ""
    settled: bool = True
    lease_expires_at: int | None = None


class Extended(Struct, rename="camel"):
    """The result of an extension: the end of the lease."""

    lease_expires_at: int


class HandlerFailure(Struct, frozen=True):
    """The payload of an answer to `ask` whose handler raised; its header `error` has the code."""

    message: str
    code: str = "HandlerFailed"


def now_text() -> str:
    """The current time, formatted for an envelope."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def require(problem: Refusal | None) -> None:
    """Raise the problem, if there is one."""
    if problem is not None:
        raise PenstockError(problem)


def to_plain(value: Any) -> Any:
    """The plain form of a value that msgspec cannot write; for its encoder."""
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise TypeError(f"a value of the type `{type(value).__name__}` has no JSON")
    return dump(mode="json")


_encode = msgspec.json.Encoder(enc_hook=to_plain).encode


def encode(value: object, name: str = "") -> bytes:
    """A value of the application as JSON. Refuses NaN and infinities, which the encoder would send as null."""
    data = _encode(value)
    if b"null" in data:
        require(nonfinite_problem(msgspec.to_builtins(value, enc_hook=to_plain), name))
    return data


def head(kind: str, /, **fields: object) -> bytes:
    """A frame without its closing brace, so that the connection can add the `reqId`; None is left out."""
    given: Mapping[str, object] = {name: value for name, value in fields.items() if value is not None}
    return encode({"type": kind, **given})[:-1]
