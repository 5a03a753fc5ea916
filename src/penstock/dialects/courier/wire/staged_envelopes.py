"""Lines that an application stages: from one line of JSON to a checked draft of an envelope, or to a frame.

A line is an envelope with a `to`. The server sets `from` and the hop header, and a missing `id` and `ts`. A generated id depends on the
application, the batch and the content of the line, never on time or on the part that the line came in, so a batch that is run again gives
the same ids. Cost: about four decodes of the line.

A line for a stream of a space, `{"to": "space:demo/averages", "payload": …}`, becomes one frame. A frame consists of its payload only:
compact JSON, or with `payloadAs: text` the text itself. So other fields are rejected, except `type`, which is ignored because rows for
queues in the same batch need one.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Annotated

import msgspec

from penstock.core.clock import Now, rfc3339
from penstock.core.errors import Refusal
from penstock.core.json_checks import cost_problem
from penstock.core.limits import Limits
from penstock.core.queue.stage import Draft
from penstock.core.scopes import Principal
from penstock.dialects.courier.wire.envelopes import json_problem, parse, to_refusal, too_large

HOP_HEADER = "x-penstock-hop"
"""Header that counts how often a pipeline derived an envelope from others."""
SENDER = "pipeline/"
"""The prefix of an application's `from`."""
HOP_MAX = 2**31 - 1
BATCH_MAX = 2**63 - 1
"""Spark numbers its batches with 64 bits."""

_APP = re.compile(r"[A-Za-z0-9._-]{1,64}")
_PART = re.compile(r"[A-Za-z0-9._-]{1,128}")
_BATCH = re.compile(r"[0-9]{1,19}")
_line = msgspec.json.Decoder(dict[str, msgspec.Raw])
_headers = msgspec.json.Decoder(dict[str, msgspec.Raw] | None)
_any = msgspec.json.Decoder()
_encode = msgspec.json.encode


class StageCommit(msgspec.Struct, forbid_unknown_fields=True):
    """`POST /v1/stage/{app}/{batch}/commit`: the parts that count; all others are dropped."""

    parts: list[Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]{1,128}$")]]


class BatchSource(msgspec.Struct, frozen=True):
    """The application, batch and principal of staged lines."""

    app: str
    batch: int
    principal: Principal
    address: str = ""
    """The network address, for rate limits."""

    @property
    def memory(self) -> str:
        """The name under which batches are remembered; with an agent's token it belongs to that agent."""
        who = self.principal
        app = self.app if who.agent is None else f"{who.agent}/{self.app}"
        return who.to_channel(app)

    @property
    def sender(self) -> str:
        return self.principal.agent or SENDER + self.app


def source_of(app: str, batch: str, principal: Principal, address: str = "") -> BatchSource | Refusal:
    """The application and the batch that a path names."""
    if _APP.fullmatch(app) is None:
        message = "an application's name has 1 to 64 letters, digits, `.`, `_` or `-`"
        return Refusal("InvalidRequest", message, ref="app")
    if _BATCH.fullmatch(batch) is None or int(batch) > BATCH_MAX:
        message = f"a batch is a whole number from 0 on, not `{batch[:40]}`"
        return Refusal("InvalidRequest", message, ref="batch")
    return BatchSource(app, int(batch), principal, address)


def part_problem(part: str) -> Refusal | None:
    """Why the name of a part is invalid."""
    if _PART.fullmatch(part) is not None:
        return None
    message = "a part's name has 1 to 128 letters, digits, `.`, `_` or `-`"
    return Refusal("InvalidRequest", message, ref="part")


def read(line: bytes, source: BatchSource, now: Now, limits: Limits) -> Draft | StagedFrame | Refusal:
    """The draft of one line, or its frame if it goes to a space."""
    if len(line) > limits.envelope_max:
        return too_large(line, limits)
    problem = cost_problem(line) or json_problem(line)
    if problem is not None:
        return problem
    try:
        given = _line.decode(line)
    except msgspec.ValidationError as error:
        return to_refusal(error, "InvalidEnvelope")
    to = _any.decode(given["to"]) if "to" in given else None
    if not isinstance(to, str):
        hint = "every staged envelope says where it goes"
        return Refusal("InvalidEnvelope", "`to` is the name of a stream", ref="to", hint=hint)
    if to.startswith(SPACE_FORM):
        return read_frame(given, to, source.principal)
    headers = _hop(given)
    if isinstance(headers, Refusal):
        return headers
    if (refusal := _foreign(given, source)) is not None:
        return refusal
    is_named = "id" in given
    made: dict[str, object] = {"id": given["id"] if is_named else _made_id(given, source)}
    made["ts"] = given["ts"] if "ts" in given else rfc3339(now.wall_us)
    made["from"] = source.sender
    made.update({name: value for name, value in given.items() if name not in ("id", "ts", "from", "headers")})
    made["headers"] = headers
    body = _encode(made)
    record = parse(body, to, Principal(source.principal.name, source.sender), limits)
    if isinstance(record, Refusal):
        return record
    stamp = (0, 0)
    if "ts" not in given:
        start = len(b'{"id":') + len(_encode(made["id"])) + len(b',"ts":')
        stamp = (start, start + len(_encode(made["ts"])))
    return Draft(
        source.principal.to_channel(to),
        record.id,
        record.kind,
        record.body,
        record.sender,
        record.corr,
        stamp,
        is_named,
    )


def _foreign(given: dict[str, msgspec.Raw], source: BatchSource) -> Refusal | None:
    """Why the `from` of a line is rejected."""
    if "from" not in given:
        return None
    said = _any.decode(given["from"])
    if said == source.sender or (
        isinstance(said, str) and source.principal.agent is not None and source.principal.vouches(said)
    ):
        return None
    message = f"what `{source.app}` stages is from `{source.sender}`, not from `{str(said)[:200]}`"
    return Refusal("Forbidden", message, ref="from", hint="leave `from` out to have it filled")


def _hop(given: dict[str, msgspec.Raw]) -> dict[str, object] | Refusal:
    """The headers with the hop count raised by one."""
    headers: dict[str, object] = {}
    try:
        headers.update((_headers.decode(given["headers"]) if "headers" in given else None) or {})
    except msgspec.ValidationError:
        return Refusal("InvalidEnvelope", "`headers` is an object", ref="headers")
    raw = headers.pop(HOP_HEADER, None)
    hop = _any.decode(raw) if isinstance(raw, msgspec.Raw) else 0
    if isinstance(hop, str) and hop.isascii() and hop.isdigit():  # tables keep headers as a map of texts
        hop = int(hop[:10])
    if not isinstance(hop, int) or isinstance(hop, bool) or not 0 <= hop < HOP_MAX:
        message = f"header `{HOP_HEADER}` counts hops and is a whole number"
        return Refusal("InvalidEnvelope", message, ref=f"headers.{HOP_HEADER}")
    headers[HOP_HEADER] = hop + 1
    return headers


def _made_id(given: dict[str, msgspec.Raw], source: BatchSource) -> str:
    """An id derived from the content. Equal lines of one batch share it until the commit numbers them."""
    digest = sha256(f"{source.memory}\0{source.batch}\0".encode())
    for name in sorted(given):
        if name not in ("id", "ts"):
            digest.update(_encode(name) + b":" + bytes(given[name]) + b",")
    return "s-" + digest.hexdigest()


SPACE_FORM = "space:"
"""The prefix of the address of a space's stream."""
_KNOWN = ("to", "type", "payload", "payloadAs")


class StagedFrame(msgspec.Struct, frozen=True, gc=False):
    """A frame of a batch that is not committed yet."""

    space: str
    stream: str
    """Name or id of the stream."""
    data: bytes


def read_frame(given: dict[str, msgspec.Raw], to: str, principal: Principal) -> StagedFrame | Refusal:
    """The frame of a line for a stream of a space."""
    space, slash, stream = to.removeprefix(SPACE_FORM).rpartition("/")
    if not slash or not space or not stream:
        message = f"`{to[:200]}` is not the stream of a space"
        return Refusal("InvalidEnvelope", message, ref="to", hint="use `space:<space>/<stream>`")
    if (refusal := space_problem(principal)) is not None:
        return refusal
    for name in given:
        if name not in _KNOWN:
            hint = "put it into the payload, or leave it out"
            return Refusal("InvalidEnvelope", f"a frame is its payload and has no `{name}`", ref=name, hint=hint)
    if "payload" not in given:
        return Refusal("InvalidEnvelope", "`payload` is missing", ref="payload")
    data = _data(given)
    return data if isinstance(data, Refusal) else StagedFrame(space, stream, data)


def _data(given: dict[str, msgspec.Raw]) -> bytes | Refusal:
    form = _any.decode(given["payloadAs"]) if "payloadAs" in given else "json"
    if form == "json":
        return msgspec.json.format(bytes(given["payload"]), indent=-1)
    text = _any.decode(given["payload"])
    if form != "text" or not isinstance(text, str):
        message = "`payloadAs` is `json`, or `text` where the payload is a string"
        return Refusal("InvalidEnvelope", message, ref="payloadAs")
    return text.encode()


def space_problem(principal: Principal) -> Refusal | None:
    """Why the principal may not write into spaces as a pipeline."""
    if principal.is_admin and principal.tenant is None:
        return None
    message = f"`{principal.name}` has no scope `admin:*`, which writing into a space needs"
    hint = "use the operator's token, which is in `run/operator.token` of the data directory"
    return Refusal("Forbidden", message, ref="admin:*", hint=hint)
