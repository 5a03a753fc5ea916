"""Lines that an application stages for a stream of a space: `{"to": "space:demo/averages", "payload": …}` becomes one frame.

A frame consists of its payload only: compact JSON, or with `payloadAs: text` the text itself. So other fields are rejected, except `type`, which
is ignored because rows for queues in the same batch need one.
"""

from __future__ import annotations

import msgspec

from penstock.core.errors import Refusal
from penstock.core.scopes import Principal

SPACE_FORM = "space:"
"""The prefix of the address of a space's stream."""
_KNOWN = ("to", "type", "payload", "payloadAs")
_any = msgspec.json.Decoder()


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
    refusal = space_problem(principal)
    if refusal is not None:
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
